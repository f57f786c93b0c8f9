// Filters that make text: tojson, trim, replace, join, indent and their like.
#include <algorithm>
#include <utility>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {
namespace {

Value same_kind(Runtime& rt, const Value& like, std::string text) { return rt.string(std::move(text), like.as<StringObject>().is_markup); }

template <std::string (*kChange)(std::string_view)>
Value changed(Runtime& rt, Args& args) {
  const Params params(args, "filter", {"s"}, 1);
  const Value text = soft_text(rt, params[0]);
  rt.heap.check(text.text().size() * 4);
  rt.heap.scan(2 * text.text().size());
  return same_kind(rt, text, kChange(text.text()));
}

// Unlike str.title: words begin after spaces, hyphens and opening brackets only.
std::string title_words(std::string_view text) {
  std::string out;
  const auto is_break = [](char32_t c) { return c == '-' || is_space(c) || c == '(' || c == '{' || c == '[' || c == '<'; };
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 0, end = pos;
    const bool breaks = is_break(utf8::decode(text.substr(pos), &length));
    while (end < text.size() && is_break(utf8::decode(text.substr(end), &length)) == breaks) end += length;
    const std::string_view part = text.substr(pos, end - pos);
    const size_t first = byte_offset(part, 1);
    out += upper(part.substr(0, first)) + lower(part.substr(first));
    pos = end;
  }
  return out;
}

Value trim(Runtime& rt, Args& args) {
  const Params params(args, "trim", {"value", "chars"}, 1);
  const Value text = soft_text(rt, params[0]);
  const auto chars = params.has(1) ? std::optional(params.text(1)) : std::nullopt;
  const std::string_view kept = strip(text.text(), chars, Side::kBoth);
  charge_strip(rt, text.text().size() - kept.size(), chars);
  return same_kind(rt, text, std::string(kept));
}

Value to_string(Runtime& rt, Args& args) { return soft_text(rt, Params(args, "string", {"value"}, 1)[0]); }

Value mark_safe(Runtime& rt, Args& args) { return rt.string(to_text(rt, Params(args, "safe", {"value"}, 1)[0]), true); }

Value escape(Runtime& rt, Args& args) { return escaped(rt, Params(args, "escape", {"s"}, 1)[0]); }

Value force_escape(Runtime& rt, Args& args) { return escaped(rt, rt.string(to_text(rt, Params(args, "forceescape", {"value"}, 1)[0]))); }

Value replace_filter(Runtime& rt, Args& args) {
  const Params params(args, "replace", {"s", "old", "new", "count"}, 3);
  const std::string text = to_text(rt, params[0]), old = to_text(rt, params[1]), fresh = to_text(rt, params[2]);
  charge_replace(rt, text, old, fresh);
  return rt.string(replace(text, old, fresh, params.has(3) ? params.integer(3) : -1));
}

Value join(Runtime& rt, Args& args) {
  const Params params(args, "join", {"value", "d", "attribute"}, 1);
  const std::string separator = params.given(1) ? to_text(rt, params[1]) : "";
  Cursor cursor(rt, params[0]);
  Value item;
  std::string out;
  bool first = true;
  while (cursor.next(&item)) {
    if (params.has(2)) item = look_up_path(rt, item, params[2]);
    if (!std::exchange(first, false)) {
      rt.heap.work(separator.size());
      out += separator;
    }
    append_text(rt, out, item);
  }
  return rt.string(std::move(out));
}

Value indent(Runtime& rt, Args& args) {
  const Params params(args, "indent", {"s", "width", "first", "blank"}, 1);
  refuse_undefined(params[0]);
  if (!params[0].is_string()) fail("indent: expected a string, found {}", describe(params[0]));
  const bool is_markup = params[0].as<StringObject>().is_markup;
  const size_t width = params.given(1) && params[1].is_string() ? params[1].text().size() : static_cast<size_t>(std::max<int64_t>(params.integer(1, 4), 0));
  const std::string whole = std::string(params[0].text()) + "\n";
  const std::vector<std::string_view> lines = split_lines(whole, false);
  rt.heap.step(lines.size());
  rt.heap.check(whole.size() + lines.size() * sizeof(std::string_view) + (width > (size_t{1} << 40) ? size_t{1} << 60 : width * lines.size()));
  std::string indention = params.given(1) && params[1].is_string() ? std::string(params[1].text()) : std::string(width, ' ');
  if (is_markup && params.given(1) && params[1].is_string()) indention = params[1].text();
  const bool indents_first = params.truth(2, false), indents_blank = params.truth(3, false);
  std::string out = indents_first ? indention : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (indents_blank || !lines[i].empty())) out += indention;
    out += lines[i];
  }
  return rt.string(std::move(out), is_markup);
}

Value format_filter(Runtime& rt, Args& args) {
  if (args.positional.size() > 1 && !args.keyword.empty()) fail("format: expected either positional or keyword arguments, found both");
  const Value text = soft_text(rt, args.positional[0]);
  if (args.keyword.empty()) return percent_format(rt, text, rt.tuple({args.positional.begin() + 1, args.positional.end()}));
  const Value values = rt.dict();
  for (const auto& [key, value] : args.keyword) values.as<DictObject>().set(rt.string(key), value);
  return percent_format(rt, text, values);
}

Value to_json_filter(Runtime& rt, Args& args) {
  const Params params(args, "tojson", {"x", "ensure_ascii", "indent", "separators", "sort_keys"}, 1);
  JsonStyle style;
  style.ensure_ascii = params.truth(1, false);
  style.sort_keys = params.truth(4, false);
  if (params.has(2)) {
    style.item_separator = ",";
    if (params[2].is_string()) style.indent = params[2].text();
    else {
      const int64_t width = std::max<int64_t>(params.integer(2), 0);
      rt.heap.check(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
  }
  if (params.has(3)) {
    if (!params[3].is_sequence() || params[3].items().size() != 2 || !params[3].items()[0].is_string() || !params[3].items()[1].is_string())
      fail("tojson: expected separators=(item, key), found {}", describe(params[3]));
    style.item_separator = params[3].items()[0].text();
    style.key_separator = params[3].items()[1].text();
  }
  return rt.string(to_json(rt, params[0], style));
}

// Percent-encodes UTF-8 as urllib.parse.quote does.
std::string quote_url(std::string_view text, bool is_query) {
  static constexpr std::string_view kKept = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~";
  std::string out;
  for (const char c : text) {
    if (kKept.find(c) != kKept.npos || (c == '/' && !is_query)) out += c;
    else if (c == ' ' && is_query) out += '+';
    else out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

Value url_encode(Runtime& rt, Args& args) {
  const Params params(args, "urlencode", {"value"}, 1);
  if (params[0].is_string() || !is_iterable(params[0])) {
    const std::string text = to_text(rt, params[0]);
    rt.heap.check(text.size() * 3);
    rt.heap.scan(8 * text.size());
    return rt.string(quote_url(text, false));
  }
  std::string out;
  for (const Value& pair : collect(rt, params[0].is(Kind::kDict) ? rt.view(params[0], ViewObject::What::kItems) : params[0])) {
    const std::vector<Value> items = collect(rt, pair);
    if (items.size() != 2) fail("urlencode: expected pairs of key and value, found {} items", items.size());
    const std::string key = to_text(rt, items[0]), value = to_text(rt, items[1]);
    rt.heap.check(out.size() + (key.size() + value.size()) * 3);
    rt.heap.scan(8 * (key.size() + value.size()));
    out += (out.empty() ? "" : "&") + quote_url(key, true) + "=" + quote_url(value, true);
  }
  return rt.string(std::move(out));
}

Value word_count(Runtime& rt, Args& args) {
  const Value text = soft_text(rt, Params(args, "wordcount", {"s"}, 1)[0]);
  int64_t count = 0;
  bool in_word = false;
  rt.heap.scan(text.text().size());
  for_each_char(text.text(), [&](char32_t c) {
    const bool is_word = is_word_char(c);
    count += is_word && !in_word;
    return in_word = is_word, true;
  });
  return count;
}

Value truncate(Runtime& rt, Args& args) {
  const Params params(args, "truncate", {"s", "length", "killwords", "end", "leeway"}, 1);
  const int64_t length = params.integer(1, 255), leeway = params.has(4) ? params.integer(4) : 5;
  const std::string_view end = params.given(3) ? params.text(3) : "...";
  const auto end_chars = static_cast<int64_t>(count_chars(end));
  if (length < end_chars || leeway < 0) fail("truncate: expected a length of at least {} and a leeway of at least 0, found {} and {}", end_chars, length, leeway);
  const auto num_chars = length_of(params[0]);
  if (!num_chars) fail("truncate: expected a string, found {}", describe(params[0]));
  if (*num_chars <= leeway || *num_chars - leeway <= length) return params[0];
  if (!params[0].is_string()) fail("truncate: expected a string, found {}", describe(params[0]));
  const std::string_view text = params[0].text();
  std::string_view kept = text.substr(0, byte_offset(text, static_cast<size_t>(length - end_chars)));
  if (!params.truth(2, false)) kept = kept.substr(0, kept.rfind(' '));
  return same_kind(rt, params[0], std::string(kept) + std::string(end));
}

Value center(Runtime& rt, Args& args) {
  const Params params(args, "center", {"value", "width"}, 1);
  const Value text = soft_text(rt, params[0]);
  Args width;
  width.positional.push_back(Value(params.integer(1, 80)));
  return call(rt, get_attribute(rt, text, "center"), width);
}

Value strip_tags(Runtime& rt, Args& args) {
  std::string text = to_text(rt, Params(args, "striptags", {"value"}, 1)[0]);
  rt.heap.scan(2 * text.size());
  for (const auto& [open, close] : {std::pair<std::string_view, std::string_view>{"<!--", "-->"}, {"<", ">"}}) {
    std::string kept;
    size_t pos = 0;
    for (size_t start; (start = text.find(open, pos)) != text.npos;) {
      const size_t end = text.find(close, start);
      if (end == text.npos) break;
      kept += text.substr(pos, start - pos);
      pos = end + close.size();
    }
    text = kept + text.substr(pos);
  }
  std::string out;
  for (const std::string_view word : split_space(text, -1)) out += (out.empty() ? "" : " ") + std::string(word);
  for (const auto& [entity, character] : {std::pair<std::string_view, std::string_view>{"&lt;", "<"}, {"&gt;", ">"}, {"&#34;", "\""}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}})
    out = replace(out, entity, character, -1);
  return rt.string(std::move(out));
}

Value xml_attributes(Runtime& rt, Args& args) {
  const Params params(args, "xmlattr", {"d", "autospace"}, 1);
  if (!params[0].is(Kind::kDict)) fail("xmlattr: expected a dict, found {}", describe(params[0]));
  std::string out;
  for (const auto& [key, value] : params[0].as<DictObject>().entries) {
    if (value.is_none() || value.is_undefined()) continue;
    if (!key.is_string() || key.text().find_first_of(" \t\n\r\f\v/>=") != std::string_view::npos) fail("xmlattr: expected names of attributes as keys, found {}", describe(key));
    const Value name = escaped(rt, key), shown = escaped(rt, value);
    rt.heap.check(out.size() + name.text().size() + shown.text().size() + 4);
    out += fmt::format("{}{}=\"{}\"", out.empty() ? "" : " ", name.text(), shown.text());
  }
  return rt.string(params.truth(1, true) && !out.empty() ? " " + out : out);
}

constexpr std::pair<std::string_view, Builtin> kFilters[] = {
    {"tojson", to_json_filter}, {"trim", trim}, {"string", to_string}, {"join", join}, {"replace", replace_filter},
    {"lower", changed<lower>}, {"upper", changed<upper>}, {"capitalize", changed<capitalize>}, {"title", changed<title_words>},
    {"safe", mark_safe}, {"escape", escape}, {"e", escape}, {"forceescape", force_escape}, {"indent", indent},
    {"format", format_filter}, {"urlencode", url_encode}, {"wordcount", word_count}, {"truncate", truncate}, {"center", center},
    {"striptags", strip_tags}, {"xmlattr", xml_attributes},
};

}  // namespace

Builtin find_text_filter(std::string_view name) {
  for (const auto& [known, filter] : kFilters)
    if (known == name) return filter;
  return nullptr;
}

}  // namespace cadre::jinja
