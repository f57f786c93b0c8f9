// The methods of Python's str. On markup (what `safe` and `escape` return) they return markup and escape what they add.
#include <algorithm>

#include "tokenizer/jinja/methods.h"
#include "tokenizer/jinja/operations.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {
namespace {

constexpr auto kNoKeywords = Params::Keywords::kRefused;

bool is_markup(const Value& self) { return self.as<StringObject>().is_markup; }
Value same_kind(Runtime& rt, const Value& self, std::string text) { return rt.string(std::move(text), is_markup(self)); }

void no_args(const Args& args, std::string_view name) { Params(args, name, {}, 0); }

template <std::string (*kChange)(std::string_view)>
Value changed(Runtime& rt, const Value& self, const Args& args) {
  no_args(args, "string method");
  rt.heap.check(self.text().size() * 4);  // characters of UTF-32 on the way
  rt.heap.scan(2 * self.text().size());
  return same_kind(rt, self, kChange(self.text()));
}

template <bool (*kTest)(std::string_view)>
Value tested(Runtime& rt, const Value& self, const Args& args) {
  no_args(args, "string method");
  rt.heap.scan(self.text().size());
  return kTest(self.text());
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

template <Side kSide>
Value stripped(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "strip", {"chars"}, 0, kNoKeywords);
  const auto chars = params.has(0) ? std::optional(params.text(0)) : std::nullopt;
  const std::string_view kept = strip(self.text(), chars, kSide);
  charge_strip(rt, self.text().size() - kept.size(), chars);
  return same_kind(rt, self, std::string(kept));
}

Value string_list(Runtime& rt, const Value& self, const std::vector<std::string_view>& parts) {
  rt.heap.step(parts.size());
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(same_kind(rt, self, std::string(part)));
  return rt.list(std::move(items));
}

// Before a split: the views of the parts are memory too.
void check_parts(Runtime& rt, std::string_view text, size_t num_parts) {
  rt.heap.scan(text.size() / 4);
  rt.heap.step(num_parts);
  rt.heap.check(num_parts * (sizeof(std::string_view) + sizeof(StringObject)));
}

size_t find_last(Runtime& rt, std::string_view text, std::string_view needle) {
  // The search from the right compares the needle anew at each place.
  if (needle.size() > 16) rt.heap.work(text.size() * std::min<size_t>(needle.size(), 1 << 20));
  return text.rfind(needle);
}

template <bool kFromRight>
Value split_method(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "split", {"sep", "maxsplit"}, 0);
  const int64_t max_splits = params.integer(1, -1);
  if (!params.has(0)) {
    check_parts(rt, self.text(), self.text().size() / 2);
    rt.heap.scan(self.text().size());
    return string_list(rt, self, kFromRight ? rsplit_space(self.text(), max_splits) : split_space(self.text(), max_splits));
  }
  const std::string_view separator = params.text(0);
  if (separator.empty()) fail("split(): expected a separator that is not empty, found ''");
  check_parts(rt, self.text(), count_occurrences(self.text(), separator) + 1);
  if (kFromRight) find_last(rt, self.text(), separator);
  return string_list(rt, self, kFromRight ? rsplit(self.text(), separator, max_splits) : split(self.text(), separator, max_splits));
}

Value splitlines(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "splitlines", {"keepends"}, 0);
  check_parts(rt, self.text(), self.text().size() / 4);
  rt.heap.scan(self.text().size());
  return string_list(rt, self, split_lines(self.text(), params.truth(0, false)));
}

template <bool kFromRight>
Value partition(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "partition", {"sep"}, 1, kNoKeywords);
  const std::string_view text = self.text(), separator = params.text(0);
  if (separator.empty()) fail("partition(): expected a separator that is not empty, found ''");
  const size_t found = kFromRight ? find_last(rt, text, separator) : find_first(text, separator);
  std::vector<std::string_view> parts{text.substr(0, found), separator, text.substr(std::min(found, text.size() - separator.size()) + separator.size())};
  if (found == text.npos) parts = kFromRight ? std::vector<std::string_view>{"", "", text} : std::vector<std::string_view>{text, "", ""};
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(same_kind(rt, self, std::string(part)));
  return rt.tuple(std::move(items));
}

Value replace_method(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "replace", {"old", "new", "count"}, 2, kNoKeywords);
  const Value added = is_markup(self) ? escaped(rt, params[1]) : params[1];
  params.text(1);
  const std::string_view text = self.text(), old = params.text(0), fresh = added.text();
  charge_replace(rt, text, old, fresh);
  return same_kind(rt, self, replace(text, old, fresh, params.integer(2, -1)));
}

// self[start:end] as Python's search methods take it; *offset gets its first character. nullopt: start lies past the end.
std::optional<std::string_view> searched_part(Runtime& rt, const Value& self, const Params& params, size_t start_param, int64_t* offset) {
  const auto& string = self.as<StringObject>();
  rt.heap.work(string.text.size());
  const auto length = static_cast<int64_t>(string.num_chars);
  const auto bound = [&](size_t i, int64_t otherwise) {
    const int64_t idx = params.has(i) ? params.integer(i) : otherwise;
    return idx < 0 ? std::max<int64_t>(idx + length, 0) : idx;
  };
  const int64_t start = bound(start_param, 0), end = std::min(bound(start_param + 1, length), length);
  *offset = start;
  if (start > length || start > end) return std::nullopt;
  rt.heap.scan(string.text.size() / 4);
  if (string.is_ascii()) return std::string_view(string.text).substr(static_cast<size_t>(start), static_cast<size_t>(end - start));
  rt.heap.scan(string.text.size() / 2);
  const std::string_view text = string.text;
  const size_t from = byte_offset(text, static_cast<size_t>(start));
  return text.substr(from, byte_offset(text.substr(from), static_cast<size_t>(end - start)));
}

template <bool kFromRight, bool kMustFind>
Value find_method_of(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "find", {"sub", "start", "end"}, 1, kNoKeywords);
  int64_t offset = 0;
  const auto part = searched_part(rt, self, params, 1, &offset);
  const std::string_view needle = params.text(0);
  const size_t found = !part ? std::string_view::npos : kFromRight ? find_last(rt, *part, needle) : find_first(*part, needle);
  if (found != std::string_view::npos) return offset + static_cast<int64_t>(count_chars(part->substr(0, found)));
  if (kMustFind) fail("index(): expected a part of the string, found that {} is none", describe(params[0]));
  return int64_t{-1};
}

Value count_method(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "count", {"sub", "start", "end"}, 1, kNoKeywords);
  int64_t offset = 0;
  const auto part = searched_part(rt, self, params, 1, &offset);
  const size_t count = part ? count_occurrences(*part, params.text(0)) : 0;
  rt.heap.step(count / 4);
  return static_cast<int64_t>(count);
}

template <bool kAtEnd>
Value affix_test(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, kAtEnd ? "endswith" : "startswith", {"affix", "start", "end"}, 1, kNoKeywords);
  int64_t offset = 0;
  const auto part = params.given(1) ? searched_part(rt, self, params, 1, &offset) : std::optional(self.text());
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) fail("{}(): expected a string or a tuple of strings, found {}", kAtEnd ? "endswith" : "startswith", describe(affix));
    return part && (kAtEnd ? part->ends_with(affix.text()) : part->starts_with(affix.text()));
  };
  if (!params[0].is(Kind::kTuple)) return matches(params[0]);
  rt.heap.step(params[0].items().size());
  return std::any_of(params[0].items().begin(), params[0].items().end(), matches);
}

template <bool kSuffix>
Value remove_affix(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "removeprefix", {"affix"}, 1, kNoKeywords);
  std::string_view text = self.text();
  const std::string_view affix = params.text(0);
  if (kSuffix ? text.ends_with(affix) : text.starts_with(affix))
    text = kSuffix ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size());
  return same_kind(rt, self, std::string(text));
}

Value join_method(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "join", {"iterable"}, 1, kNoKeywords);
  Cursor cursor(rt, params[0]);
  Value item;
  std::string out;
  bool first = true;
  while (cursor.next(&item)) {
    if (!item.is_string()) {
      refuse_undefined(item);
      fail("join(): expected strings, found {}", describe(item));
    }
    const Value part = is_markup(self) ? escaped(rt, item) : item;
    rt.heap.check(out.size() + self.text().size() + part.text().size());
    if (!std::exchange(first, false)) out += self.text();
    out += part.text();
  }
  return same_kind(rt, self, std::move(out));
}

enum class Justify { kLeft, kRight, kCenter };
template <Justify kHow>
Value justified(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "justify", {"width", "fillchar"}, 1, kNoKeywords);
  const auto num_chars = static_cast<int64_t>(self.as<StringObject>().num_chars);
  const std::string_view fill = params.given(1) ? params.text(1) : " ";
  if (count_chars(fill) != 1) fail("expected one character to fill with, found {}", describe(params[1]));
  const int64_t missing = std::max<int64_t>(params.integer(0) - num_chars, 0);
  rt.heap.check(self.text().size() + std::min<size_t>(static_cast<size_t>(missing), SIZE_MAX / 8) * fill.size());
  // Where centring cannot be even, Python puts the odd one left exactly when both the gap and the width are odd.
  const int64_t left = kHow == Justify::kLeft ? 0 : kHow == Justify::kRight ? missing : missing / 2 + (missing & params.integer(0) & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += self.text();
  for (int64_t i = left; i < missing; ++i) out += fill;
  return same_kind(rt, self, std::move(out));
}

Value zfill(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "zfill", {"width"}, 1, kNoKeywords);
  const int64_t missing = std::max<int64_t>(params.integer(0) - static_cast<int64_t>(self.as<StringObject>().num_chars), 0);
  rt.heap.check(self.text().size() + static_cast<size_t>(missing));
  const std::string_view text = self.text();
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  return same_kind(rt, self, std::string(text.substr(0, sign)) + std::string(static_cast<size_t>(missing), '0') + std::string(text.substr(sign)));
}

Value expandtabs(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "expandtabs", {"tabsize"}, 0);
  const int64_t tab_size = std::max<int64_t>(params.integer(0, 8), 0);
  std::string out;
  int64_t column = 0;
  rt.heap.scan(self.text().size());
  for_each_char(self.text(), [&](char32_t c) {
    if (c == '\t') {
      const int64_t num_spaces = tab_size > 0 ? tab_size - column % tab_size : 0;
      rt.heap.check(out.size() + static_cast<size_t>(num_spaces));
      out.append(static_cast<size_t>(num_spaces), ' ');
      column += num_spaces;
    } else {
      utf8::append(out, c);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
    return true;
  });
  return same_kind(rt, self, std::move(out));
}

Value format_method(Runtime& rt, const Value& self, const Args& args) { return brace_format(rt, self, args); }

Value format_map(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "format_map", {"mapping"}, 1, kNoKeywords);
  if (!params[0].is(Kind::kDict)) fail("format_map(): expected a dict, found {}", describe(params[0]));
  Args named;
  for (const auto& [key, value] : params[0].as<DictObject>().entries)
    if (key.is_string()) named.keyword.emplace_back(key.text(), value);
  return brace_format(rt, self, named);
}

// Sorted by name.
constexpr Method kMethods[] = {
    {"capitalize", changed<capitalize>},
    {"casefold", changed<casefold>},
    {"center", justified<Justify::kCenter>},
    {"count", count_method},
    {"endswith", affix_test<true>},
    {"expandtabs", expandtabs},
    {"find", find_method_of<false, false>},
    {"format", format_method},
    {"format_map", format_map},
    {"index", find_method_of<false, true>},
    {"isalnum", tested<is_alnum>},
    {"isalpha", tested<is_alpha>},
    {"isascii", tested<is_ascii>},
    {"isdecimal", tested<is_decimal>},
    {"isdigit", tested<is_digit>},
    {"isidentifier", tested<is_identifier>},
    {"islower", tested<is_lower>},
    {"isnumeric", tested<is_numeric>},
    {"isprintable", tested<is_all_printable>},
    {"isspace", tested<is_all_space>},
    {"istitle", tested<is_title>},
    {"isupper", tested<is_upper>},
    {"join", join_method},
    {"ljust", justified<Justify::kLeft>},
    {"lower", changed<lower>},
    {"lstrip", stripped<Side::kLeft>},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"replace", replace_method},
    {"rfind", find_method_of<true, false>},
    {"rindex", find_method_of<true, true>},
    {"rjust", justified<Justify::kRight>},
    {"rpartition", partition<true>},
    {"rsplit", split_method<true>},
    {"rstrip", stripped<Side::kRight>},
    {"split", split_method<false>},
    {"splitlines", splitlines},
    {"startswith", affix_test<false>},
    {"strip", stripped<Side::kBoth>},
    {"swapcase", changed<swapcase>},
    {"title", changed<title>},
    {"upper", changed<upper>},
    {"zfill", zfill},
};

}  // namespace

const Method* find_string_method(std::string_view name) {
  const auto found = std::lower_bound(std::begin(kMethods), std::end(kMethods), name,
                                      [](const Method& method, std::string_view value) { return method.name < value; });
  return found != std::end(kMethods) && found->name == name ? &*found : nullptr;
}

}  // namespace cadre::jinja
