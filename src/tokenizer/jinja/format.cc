// Python's three ways to format: format(value, spec), text.format(...) and text % values.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "tokenizer/jinja/operations.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {
namespace {

// Digits after the point that are ever asked for; snprintf would make any number of them.
constexpr int64_t kMaxPrecision = 500;

struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =, 0 for the type's own
  char sign = '-';
  bool alternate = false;
  bool has_zero = false;
  int64_t width = 0;
  char grouping = 0;  // , or _
  std::optional<int64_t> precision;
  char type = 0;
};

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }
bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

// Reads the digits text starts with; fails past what could be a width.
int64_t take_digits(std::string_view* text) {
  int64_t number = 0;
  while (!text->empty() && is_ascii_digit(text->front())) {
    number = number * 10 + (text->front() - '0');
    if (number > 1'000'000'000) fail("expected a width or precision below 1000000000, found a larger one");
    text->remove_prefix(1);
  }
  return number;
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  const std::string_view whole = text;
  const size_t first = byte_offset(text, 1);
  if (text.size() > first && is_align(text[first])) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    text.remove_prefix(first + 1);
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[0];
    text.remove_prefix(1);
  }
  const auto take = [&](char c) {
    if (text.empty() || text[0] != c) return false;
    text.remove_prefix(1);
    return true;
  };
  if (take('+')) spec.sign = '+';
  else if (take(' ')) spec.sign = ' ';
  else take('-');
  spec.alternate = take('#');
  if (take('0')) {
    spec.has_zero = true;
    if (spec.align == 0) spec.fill = "0";
  }
  spec.width = take_digits(&text);
  if (take(',')) spec.grouping = ',';
  else if (take('_')) spec.grouping = '_';
  if (take('.')) {
    if (text.empty() || !is_ascii_digit(text[0])) fail("expected digits after '.' in the format '{}'", whole);
    spec.precision = take_digits(&text);
  }
  if (!text.empty()) {
    spec.type = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty()) fail("expected a format like '>10.2f', found '{}'", whole);
  return spec;
}

// Pads text, which starts with sign_bytes of sign and prefix, to the width.
std::string padded(Runtime& rt, std::string text, const Spec& spec, char own_align, size_t sign_bytes = 0) {
  const auto num_chars = static_cast<int64_t>(count_chars(text));
  if (spec.width <= num_chars) return text;
  const auto missing = static_cast<size_t>(spec.width - num_chars);
  rt.heap.check(text.size() + missing * spec.fill.size());
  rt.heap.work(missing * spec.fill.size());
  const char align = spec.align ? spec.align : own_align;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string fill_left, out;
  for (size_t i = 0; i < left; ++i) fill_left += spec.fill;
  if (align == '=') return text.substr(0, sign_bytes) + fill_left + text.substr(sign_bytes);
  out = fill_left + text;
  for (size_t i = left; i < missing; ++i) out += spec.fill;
  return out;
}

std::string grouped(std::string_view digits, char separator, size_t every) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out;
}

std::string sign_of(bool negative, const Spec& spec) {
  return negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
}

// Zero-padding of numbers goes between sign and digits; with grouping the zeros are grouped too.
std::string padded_number(Runtime& rt, const std::string& sign, std::string whole, const std::string& rest, const Spec& spec) {
  const size_t every = spec.type == 'b' || spec.type == 'o' || spec.type == 'x' || spec.type == 'X' ? 4 : 3;
  const char align = spec.align ? spec.align : spec.has_zero ? '=' : '>';
  if (spec.grouping) {
    std::string digits = grouped(whole, spec.grouping, every);
    if (align == '=' && spec.fill == "0") {
      // Each turn makes one more digit of all of them.
      if (spec.width > kMaxPrecision) fail("expected a width of at most {} for grouped zeros, found {}", kMaxPrecision, spec.width);
      while (static_cast<int64_t>(sign.size() + digits.size() + rest.size()) < spec.width)
        digits = grouped(whole.insert(0, 1, '0'), spec.grouping, every);
    }
    whole = std::move(digits);
  }
  return padded(rt, sign + whole + rest, spec, align, sign.size());
}

std::string digits_in_base(uint64_t magnitude, int base, bool upper_case) {
  char buffer[72];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, magnitude, base);
  std::string out(buffer, result.ptr);
  return upper_case ? upper(out) : out;
}

std::string c_format(const char* format, int64_t precision, double value) {
  if (precision > kMaxPrecision) fail("expected a precision of at most {}, found {}", kMaxPrecision, precision);
  std::string out(1024, '\0');
  const int n = std::snprintf(out.data(), out.size(), format, static_cast<int>(precision), value);
  out.resize(static_cast<size_t>(n));
  return out;
}

// The text of |value| under a float type, without sign.
std::string float_digits(double value, const Spec& spec) {
  const double magnitude = std::abs(value);
  const bool upper_case = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
  if (std::isnan(value)) return upper_case ? "NAN" : "nan";
  if (std::isinf(value)) return upper_case ? "INF" : "inf";
  const int64_t precision = spec.precision.value_or(6);
  switch (spec.type) {
    case 'e': return c_format(spec.alternate ? "%#.*e" : "%.*e", precision, magnitude);
    case 'E': return c_format(spec.alternate ? "%#.*E" : "%.*E", precision, magnitude);
    case 'f':
    case 'F': return c_format(spec.alternate ? "%#.*f" : "%.*f", precision, magnitude);
    case 'g':
    case 'n': return c_format(spec.alternate ? "%#.*g" : "%.*g", precision, magnitude);
    case 'G': return c_format(spec.alternate ? "%#.*G" : "%.*G", precision, magnitude);
    case '%': return c_format("%.*f", precision, magnitude * 100) + "%";
    case 0: {
      if (!spec.precision) return float_repr(magnitude);
      std::string text = c_format("%.*g", std::max<int64_t>(precision, 1), magnitude);
      // Like %g, but with one digit after the point at least, and an exponent one power of ten earlier.
      const size_t e = text.find('e');
      if (e == text.npos && text.find('.') == text.npos) {
        if (static_cast<int64_t>(text.size()) >= std::max<int64_t>(precision, 1) && magnitude >= 1)
          return c_format("%.*e", std::max<int64_t>(precision, 1) - 1, magnitude);
        text += ".0";
      }
      return text;
    }
    default: fail("expected a format type for a number, found '{}'", spec.type);
  }
}

std::string format_float(Runtime& rt, double value, const Spec& spec) {
  const std::string digits = float_digits(value, spec);
  const size_t num_whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  return padded_number(rt, sign_of(std::signbit(value) && !std::isnan(value), spec), digits.substr(0, num_whole),
                       digits.substr(num_whole), spec);
}

std::string format_integer(Runtime& rt, bool negative, uint64_t magnitude, const Spec& spec) {
  if (spec.precision) fail("expected no precision in the format of an integer, found one");
  std::string prefix = sign_of(negative, spec);
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n': return padded_number(rt, prefix, digits_in_base(magnitude, 10, false), "", spec);
    case 'b': return padded_number(rt, prefix + (spec.alternate ? "0b" : ""), digits_in_base(magnitude, 2, false), "", spec);
    case 'o': return padded_number(rt, prefix + (spec.alternate ? "0o" : ""), digits_in_base(magnitude, 8, false), "", spec);
    case 'x': return padded_number(rt, prefix + (spec.alternate ? "0x" : ""), digits_in_base(magnitude, 16, false), "", spec);
    case 'X': return padded_number(rt, prefix + (spec.alternate ? "0X" : ""), digits_in_base(magnitude, 16, true), "", spec);
    case 'c': {
      if (negative || magnitude > 0x10FFFF || (magnitude >= 0xD800 && magnitude < 0xE000)) fail("expected a code point for 'c', found {}", magnitude);
      std::string text;
      utf8::append(text, static_cast<char32_t>(magnitude));
      return padded(rt, std::move(text), spec, '<');
    }
    default: fail("expected a format type for an integer, found '{}'", spec.type);
  }
}

std::string format_text(Runtime& rt, std::string_view text, const Spec& spec) {
  if ((spec.type != 0 && spec.type != 's') || spec.sign != '-' || spec.align == '=' || spec.grouping || spec.alternate)
    fail("expected a format for a string, found one for another type");
  if (spec.precision) text = text.substr(0, byte_offset(text, static_cast<size_t>(*spec.precision)));
  return padded(rt, std::string(text), spec, '<');
}

bool is_float_type(char type) { return type != 0 && std::string_view("eEfFgG%").find(type) != std::string_view::npos; }

uint64_t magnitude_of(const Value& integer) {
  if (integer.is(Kind::kBigInt)) return integer.big();
  const int64_t i = integer.integer();
  return i < 0 ? -static_cast<uint64_t>(i) : static_cast<uint64_t>(i);
}

bool is_negative(const Value& integer) { return !integer.is(Kind::kBigInt) && integer.integer() < 0; }

std::string format_with(Runtime& rt, const Value& value, const Spec& spec) {
  if (value.is_string()) return format_text(rt, value.text(), spec);
  if (value.is(Kind::kFloat) || (value.is_number() && is_float_type(spec.type))) return format_float(rt, value.real(), spec);
  if (value.is_number()) return format_integer(rt, is_negative(value), magnitude_of(value), spec);
  fail("expected a string or number to format, found {}", describe(value));
}

std::string ascii_only(const std::string& text) {
  std::string out;
  for_each_char(text, [&](char32_t c) {
    if (c < 0x80) out += static_cast<char>(c);
    else if (c < 0x100) out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    else if (c < 0x10000) out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    else out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    return true;
  });
  return out;
}

Value converted(Runtime& rt, const Value& value, char how) {
  std::string text;
  if (how == 's') return soft_text(rt, value);
  if (how != 'r' && how != 'a') fail("expected one of !s, !r, !a in a format, found '!{}'", how);
  append_repr(rt, text, value);
  return rt.string(how == 'a' ? ascii_only(text) : text);
}

// text.format(...), one pass over the text; formats may hold fields themselves, one level deep.
class BraceFormatter {
 public:
  BraceFormatter(Runtime& rt, const Args& args, bool escapes) : rt_(rt), args_(args), escapes_(escapes) {}

  std::string format(std::string_view text, int depth = 0) {
    if (depth > 1) fail("expected at most one level of fields inside a format, found more");
    std::string out;
    while (!text.empty()) {
      const size_t brace = std::min(text.find_first_of("{}"), text.size());
      out += text.substr(0, brace);
      text.remove_prefix(brace);
      if (text.empty()) break;
      if (text.size() > 1 && text[1] == text[0]) {
        out += text[0];
        text.remove_prefix(2);
        continue;
      }
      if (text[0] == '}') fail("expected '}}}}' for a brace in a format, found a single '}}'");
      const size_t end = field_end(text);
      out += field(text.substr(1, end - 1), depth);
      rt_.heap.check(out.size());
      text.remove_prefix(end + 1);
    }
    return out;
  }

 private:
  static size_t field_end(std::string_view text) {
    int open = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      open += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
      if (open == 0) return i;
    }
    fail("expected '}}' at the end of a format field, found the end of the text");
  }

  std::string field(std::string_view field, int depth) {
    rt_.heap.step();
    const size_t bracket_end = field.rfind(']');
    const size_t name_end = std::min(field.find_first_of("!:", bracket_end == field.npos ? 0 : bracket_end), field.size());
    Value value = lookup(field.substr(0, name_end));
    std::string_view rest = field.substr(name_end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2) fail("expected a letter after '!' in a format, found none");
      value = converted(rt_, value, rest[1]);
      rest.remove_prefix(2);
    }
    if (!rest.empty() && rest[0] != ':') fail("expected ':' before the format of a field, found '{}'", rest);
    const std::string spec = rest.empty() ? "" : format(rest.substr(1), depth + 1);
    if (!escapes_ || depth > 0) return format_value(rt_, value, spec);
    if (value.is_string() && value.as<StringObject>().is_markup && !spec.empty()) fail("expected no format for markup, found '{}'", spec);
    const bool is_markup = value.is_string() && value.as<StringObject>().is_markup;
    return is_markup ? std::string(value.text()) : escape_html(format_value(rt_, value, spec));
  }

  Value lookup(std::string_view path) {
    const size_t first_end = std::min(path.find_first_of(".["), path.size());
    Value value = argument(path.substr(0, first_end));
    path.remove_prefix(first_end);
    while (!path.empty()) {
      if (path[0] == '.') {
        const size_t end = std::min(path.find_first_of(".[", 1), path.size());
        value = get_attribute(rt_, value, path.substr(1, end - 1));
        path.remove_prefix(end);
      } else {
        const size_t end = path.find(']');
        if (path[0] != '[' || end == path.npos) fail("expected '.name' or '[key]' in a format field, found '{}'", path);
        const std::string_view key = path.substr(1, end - 1);
        value = get_item(rt_, value, is_number(key) ? Value(to_number(key)) : rt_.string(key));
        path.remove_prefix(end + 1);
      }
    }
    return value;
  }

  Value argument(std::string_view name) {
    if (name.empty() || is_number(name)) {
      const auto mode = name.empty() ? Numbering::kAutomatic : Numbering::kManual;
      if (numbering_ != Numbering::kUnknown && numbering_ != mode) fail("expected either all fields of a format numbered or none, found both");
      numbering_ = mode;
      const int64_t idx = name.empty() ? next_++ : to_number(name);
      if (idx >= static_cast<int64_t>(args_.positional.size()))
        fail("format(): expected more than {} arguments, found {}", idx, args_.positional.size());
      return args_.positional[static_cast<size_t>(idx)];
    }
    for (const auto& [key, value] : args_.keyword)
      if (key == name) return value;
    fail("format(): expected an argument '{}', found none", name);
  }

  static bool is_number(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == text.npos; }
  static int64_t to_number(std::string_view text) { return take_digits(&text); }

  enum class Numbering { kUnknown, kAutomatic, kManual };
  Runtime& rt_;
  const Args& args_;
  const bool escapes_;
  Numbering numbering_ = Numbering::kUnknown;
  int64_t next_ = 0;
};

// text % values.
class PercentFormatter {
 public:
  PercentFormatter(Runtime& rt, const Value& values, bool escapes) : rt_(rt), values_(values), escapes_(escapes) {}

  std::string format(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      const size_t percent = std::min(text.find('%'), text.size());
      out += text.substr(0, percent);
      text.remove_prefix(percent);
      if (text.empty()) break;
      text.remove_prefix(1);
      out += directive(&text);
      rt_.heap.check(out.size());
    }
    const bool all_used = values_.is(Kind::kTuple) ? next_ == values_.items().size() : next_ > 0;
    // Python lets what has items by key or number go unused.
    const bool may_be_unused = values_.is(Kind::kDict) || values_.is(Kind::kList) || values_.is(Kind::kRange) || values_.is_undefined();
    if (!all_used && !may_be_unused) fail("expected a place in the format for every value, found too many values");
    return out;
  }

 private:
  Value next_value() {
    if (values_.is(Kind::kTuple)) {
      if (next_ >= values_.items().size()) fail("expected a value for every place in the format, found {}", values_.items().size());
      return values_.items()[next_++];
    }
    if (next_++ > 0) fail("expected a value for every place in the format, found 1");
    return values_;
  }

  int64_t number(std::string_view* text) {
    if (text->empty() || text->front() != '*') return take_digits(text);
    text->remove_prefix(1);
    const Value value = next_value();
    if (!value.is_integral() || std::abs(value.real()) > 1e9) fail("expected an integer for '*' in a format, found {}", describe(value));
    return value.integer();
  }

  std::string directive(std::string_view* text) {
    rt_.heap.step();
    std::optional<Value> named;
    if (!text->empty() && text->front() == '(') {
      const size_t end = text->find(')');
      if (end == text->npos || !values_.is(Kind::kDict)) fail("expected a dict for '%(name)' in a format, found {}", describe(values_));
      const std::string_view key = text->substr(1, end - 1);
      const Value* found = values_.as<DictObject>().find(key);
      if (!found) fail("expected a value for '%({})', found none", key);
      named = *found;
      next_ = 1;
      text->remove_prefix(end + 1);
    }
    Spec spec;
    bool to_left = false;
    for (; !text->empty() && std::string_view("-+ #0").find(text->front()) != std::string_view::npos; text->remove_prefix(1)) {
      const char flag = text->front();
      to_left = to_left || flag == '-';
      spec.alternate = spec.alternate || flag == '#';
      spec.has_zero = spec.has_zero || flag == '0';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
    }
    spec.width = number(text);
    if (spec.width < 0) {
      to_left = true;
      spec.width = -spec.width;
    }
    if (!text->empty() && text->front() == '.') {
      text->remove_prefix(1);
      spec.precision = std::max<int64_t>(number(text), 0);
    }
    while (!text->empty() && std::string_view("hlL").find(text->front()) != std::string_view::npos) text->remove_prefix(1);
    if (text->empty()) fail("expected a letter at the end of a '%' format, found the end of the text");
    spec.type = text->front();
    text->remove_prefix(1);
    if (spec.type == '%') return "%";
    if (to_left) spec.align = '<';
    return one(named ? *named : next_value(), spec);
  }

  std::string one(const Value& value, Spec spec) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        Value text = spec.type == 's' ? soft_text(rt_, value) : converted(rt_, value, spec.type);
        if (escapes_) text = escaped(rt_, spec.type == 's' ? value : text);
        spec = {.align = spec.align, .width = spec.width, .precision = spec.precision};
        std::string_view shown = text.text();
        if (spec.precision) shown = shown.substr(0, byte_offset(shown, static_cast<size_t>(*spec.precision)));
        return padded(rt_, std::string(shown), spec, '>');
      }
      case 'c':
        if (value.is_string()) {
          if (value.as<StringObject>().num_chars != 1) fail("expected one character for '%c', found {}", describe(value));
          return padded(rt_, std::string(value.text()), spec, '>');
        }
        [[fallthrough]];
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X': return integer(value, spec);
      default:
        if (!is_float_type(spec.type) || spec.type == '%') fail("expected a known letter after '%' in a format, found '{}'", spec.type);
        if (!value.is_number()) fail("expected a number for '%{}', found {}", spec.type, describe(value));
        zero_fill(&spec);
        return format_float(rt_, value.real(), spec);
    }
  }

  static void zero_fill(Spec* spec) {
    if (spec->align == '<') spec->has_zero = false;
    if (spec->has_zero) spec->fill = "0";
  }

  std::string integer(const Value& value, Spec spec) {
    const bool is_decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    if (!value.is_number() || (value.is(Kind::kFloat) && (!is_decimal || !(std::abs(value.real()) < 9e18))))
      fail("expected an integer for '%{}', found {}", spec.type, describe(value));
    const Value whole = value.is(Kind::kFloat) ? Value(static_cast<int64_t>(value.real())) : value;
    if (is_decimal) spec.type = 'd';
    zero_fill(&spec);
    const std::optional<int64_t> precision = std::exchange(spec.precision, std::nullopt);
    if (precision && *precision > kMaxPrecision) fail("expected a precision of at most {}, found {}", kMaxPrecision, *precision);
    if (!precision || spec.type == 'c') return format_integer(rt_, is_negative(whole), magnitude_of(whole), spec);
    Spec bare = spec;
    bare.width = *precision;
    bare.sign = '-';
    bare.fill = "0";
    bare.align = '=';
    return padded_number(rt_, sign_of(is_negative(whole), spec), format_integer(rt_, false, magnitude_of(whole), bare), "", spec);
  }

  Runtime& rt_;
  const Value& values_;
  const bool escapes_;
  size_t next_ = 0;
};

}  // namespace

std::string format_value(Runtime& rt, const Value& value, std::string_view spec) {
  if (spec.empty()) return to_text(rt, value);
  return format_with(rt, value, parse_spec(spec));
}

Value brace_format(Runtime& rt, const Value& text, const Args& args) {
  const bool is_markup = text.as<StringObject>().is_markup;
  return rt.string(BraceFormatter(rt, args, is_markup).format(text.text()), is_markup);
}

Value percent_format(Runtime& rt, const Value& text, const Value& values) {
  const bool is_markup = text.as<StringObject>().is_markup;
  return rt.string(PercentFormatter(rt, values, is_markup).format(text.text()), is_markup);
}

}  // namespace cadre::jinja
