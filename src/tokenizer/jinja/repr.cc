// str(), repr() and JSON of values.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "tokenizer/jinja/operations.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {
namespace {

// Before text grows by bytes: both the work and the memory it takes.
void reserve(Runtime& rt, const std::string& out, size_t bytes) {
  rt.heap.check(out.size() + bytes);
  rt.heap.work(bytes);
}

// The same for text that is escaped character by character.
void reserve_escaped(Runtime& rt, const std::string& out, size_t bytes) {
  rt.heap.check(out.size() + bytes);
  rt.heap.scan(2 * bytes);
}

void append_items(Runtime& rt, std::string& out, const std::vector<Value>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(rt, out, items[i]);
  }
}

void append_dict(Runtime& rt, std::string& out, const DictObject& dict) {
  out += '{';
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(rt, out, dict.entries[i].first);
    out += ": ";
    append_repr(rt, out, dict.entries[i].second);
  }
  out += '}';
}

void append_view(Runtime& rt, std::string& out, const ViewObject& view) {
  using What = ViewObject::What;
  out += view.what == What::kKeys ? "dict_keys([" : view.what == What::kValues ? "dict_values([" : "dict_items([";
  bool first = true;
  for (const auto& [key, value] : view.dict.as<DictObject>().entries) {
    if (!std::exchange(first, false)) out += ", ";
    if (view.what == What::kItems) out += '(';
    if (view.what != What::kValues) append_repr(rt, out, key);
    if (view.what == What::kItems) out += ", ";
    if (view.what != What::kKeys) append_repr(rt, out, value);
    if (view.what == What::kItems) out += ')';
  }
  out += "])";
}

void append_range(std::string& out, const RangeObject& range) {
  fmt::format_to(std::back_inserter(out), "range({}, {}", range.start, range.stop);
  if (range.step != 1) fmt::format_to(std::back_inserter(out), ", {}", range.step);
  out += ')';
}

class JsonWriter {
 public:
  JsonWriter(Runtime& rt, const JsonStyle& style, std::string& out) : rt_(rt), style_(style), out_(out) {}

  void write(const Value& value) {
    const Nested nested(rt_);
    rt_.heap.step();
    rt_.heap.check(out_.size());
    switch (value.kind()) {
      case Kind::kNone: out_ += "null"; return;
      case Kind::kBool: out_ += value.boolean() ? "true" : "false"; return;
      case Kind::kInt: out_ += fmt::to_string(value.integer()); return;
      case Kind::kBigInt: out_ += fmt::to_string(value.big()); return;
      case Kind::kFloat: out_ += number(value.real()); return;
      case Kind::kString: write_string(value.text()); return;
      case Kind::kList:
      case Kind::kTuple: write_list(value.items()); return;
      case Kind::kDict: write_dict(value.as<DictObject>()); return;
      default: fail("expected a value that JSON has, found {}", describe(value));
    }
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_repr(value);
  }

  void write_string(std::string_view text) {
    reserve_escaped(rt_, out_, text.size());
    append_json_string(out_, text, style_.ensure_ascii);
  }

  void new_line() {
    if (!style_.indent) return;
    reserve(rt_, out_, 1 + level_ * style_.indent->size());
    out_ += '\n';
    for (size_t i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  void separate(bool* first) {
    if (!std::exchange(*first, false)) {
      reserve(rt_, out_, style_.item_separator.size());
      out_ += style_.item_separator;
    }
    new_line();
  }

  void write_list(const std::vector<Value>& items) {
    out_ += '[';
    ++level_;
    bool first = true;
    for (const Value& item : items) {
      separate(&first);
      write(item);
    }
    --level_;
    if (!items.empty()) new_line();
    out_ += ']';
  }

  std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::kString: return std::string(key.text());
      case Kind::kNone: return "null";
      case Kind::kBool: return key.boolean() ? "true" : "false";
      case Kind::kInt:
      case Kind::kBigInt: return to_text(rt_, key);
      case Kind::kFloat: return number(key.real());
      default: fail("expected keys that JSON has, found {}", describe(key));
    }
  }

  void write_dict(const DictObject& dict) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) { return less(a->first, b->first); });
    out_ += '{';
    ++level_;
    bool first = true;
    for (const auto* entry : entries) {
      separate(&first);
      write_string(key_text(entry->first));
      reserve(rt_, out_, style_.key_separator.size());
      out_ += style_.key_separator;
      write(entry->second);
    }
    --level_;
    if (!entries.empty()) new_line();
    out_ += '}';
  }

  Runtime& rt_;
  const JsonStyle& style_;
  std::string& out_;
  size_t level_ = 0;
};

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(result.ptr - buffer));
  std::string out;
  if (text.front() == '-') {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 1) digits += text.substr(2, e - 2);
  // Python writes 1e-05 and 1e+16 with an exponent, and what lies between without.
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t num_whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= num_whole) return out + digits + std::string(num_whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, num_whole) + "." + digits.substr(num_whole);
}

void append_repr(Runtime& rt, std::string& out, const Value& value) {
  if (value.is_string()) {
    reserve_escaped(rt, out, value.text().size());
    const bool is_markup = value.as<StringObject>().is_markup;
    out += is_markup ? "Markup(" : "";
    out += python_repr(value.text());
    out += is_markup ? ")" : "";
    return;
  }
  if (value.is_undefined()) {
    out += "Undefined";
    return;
  }
  append_text(rt, out, value);
}

void append_text(Runtime& rt, std::string& out, const Value& value) {
  const Nested nested(rt);
  rt.heap.step();
  rt.heap.check(out.size());
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined: return;
    case Kind::kNone: out += "None"; return;
    case Kind::kBool: out += value.boolean() ? "True" : "False"; return;
    case Kind::kInt: out += fmt::to_string(value.integer()); return;
    case Kind::kBigInt: out += fmt::to_string(value.big()); return;
    case Kind::kFloat: out += float_repr(value.real()); return;
    case Kind::kString:
      reserve(rt, out, value.text().size());
      out += value.text();
      return;
    case Kind::kList:
      out += '[';
      append_items(rt, out, value.items());
      out += ']';
      return;
    case Kind::kTuple:
      out += '(';
      append_items(rt, out, value.items());
      out += value.items().size() == 1 ? ",)" : ")";
      return;
    case Kind::kDict: append_dict(rt, out, value.as<DictObject>()); return;
    case Kind::kRange: append_range(out, value.as<RangeObject>()); return;
    case Kind::kView: append_view(rt, out, value.as<ViewObject>()); return;
    case Kind::kIterator: out += "<generator object>"; return;
    case Kind::kNamespace:
      out += "<Namespace ";
      append_repr(rt, out, value.as<NamespaceObject>().attributes);
      out += '>';
      return;
    case Kind::kFunction: out += value.as<FunctionObject>().repr(); return;
    case Kind::kLoop: out += "<LoopContext>"; return;
    case Kind::kCycler: out += "<Cycler>"; return;
    case Kind::kScope: return;
  }
}

std::string to_text(Runtime& rt, const Value& value) {
  std::string out;
  append_text(rt, out, value);
  return out;
}

Value soft_text(Runtime& rt, const Value& value) { return value.is_string() ? value : rt.string(to_text(rt, value)); }

Value escaped(Runtime& rt, const Value& value) {
  if (value.is_string() && value.as<StringObject>().is_markup) return value;
  const std::string text = to_text(rt, value);
  rt.heap.check(text.size() * 5);
  rt.heap.scan(text.size());
  return rt.string(escape_html(text), true);
}

std::string to_json(Runtime& rt, const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(rt, style, out).write(value);
  return out;
}

}  // namespace cadre::jinja
