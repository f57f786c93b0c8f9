// Filters that make numbers: int, float, abs, round, sum, and filesizeformat.
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {
namespace {

// Drops underscores between digits; nullopt when one stands elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto is_digit = [&](size_t pos) { return pos < text.size() && std::isxdigit(static_cast<unsigned char>(text[pos])); };
    if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
  }
  return out;
}

// int(text, base) of Python; nullopt where it raises ValueError.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  const auto plain = without_underscores(strip(text, std::nullopt, Side::kBoth));
  if (!plain) return std::nullopt;
  std::string_view digits = *plain;
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) digits.remove_prefix(1);
  const auto prefix = digits.size() > 1 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : '\0';
  const int64_t prefix_base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
  if (base == 0) base = prefix_base ? prefix_base : 10;
  if (prefix_base == base) digits.remove_prefix(2);
  if (base < 2 || base > 36) return std::nullopt;
  uint64_t magnitude = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, static_cast<int>(base));
  if (result.ec == std::errc::result_out_of_range) fail("int: expected an integer of at most 64 bits, found a longer one");
  if (result.ec != std::errc() || result.ptr != digits.data() + digits.size()) return std::nullopt;
  if (magnitude > static_cast<uint64_t>(INT64_MAX)) fail("int: expected an integer of at most 64 bits, found a longer one");
  return is_negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
}

// float(text) of Python; nullopt where it raises ValueError.
std::optional<double> parse_float(std::string_view text) {
  const auto plain = without_underscores(strip(text, std::nullopt, Side::kBoth));
  if (!plain || plain->empty()) return std::nullopt;
  std::string lowered = lower(*plain);
  const std::string_view bare = std::string_view(lowered).substr(lowered[0] == '+' || lowered[0] == '-');
  const bool is_word = bare == "inf" || bare == "infinity" || bare == "nan";
  if (!is_word && (bare.empty() || bare.find_first_not_of("0123456789.e+-") != bare.npos)) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(lowered.c_str(), &end);
  if (end != lowered.c_str() + lowered.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> whole_part(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (std::abs(value) >= 9.2e18) fail("int: expected an integer of at most 64 bits, found {}", value);
  return static_cast<int64_t>(value);
}

Value to_int(Runtime& rt, Args& args) {
  const Params params(args, "int", {"value", "default", "base"}, 1);
  const Value& value = params[0];
  const Value otherwise = params.get(1, Value(int64_t{0}));
  refuse_undefined(value);
  if (value.is_string()) {
    rt.heap.scan(2 * value.text().size());
    if (const auto number = parse_integer(value.text(), params.integer(2, 10))) return *number;
    const auto real = parse_float(value.text());
    const auto whole = real ? whole_part(*real) : std::nullopt;
    return whole ? Value(*whole) : otherwise;
  }
  if (value.is(Kind::kBigInt)) return value;
  if (value.is_integral()) return value.integer();
  if (!value.is(Kind::kFloat)) return otherwise;
  if (std::isinf(value.real())) fail("int: expected a finite number, found {}", float_repr(value.real()));
  const auto whole = whole_part(value.real());
  return whole ? Value(*whole) : otherwise;
}

Value to_float(Runtime& rt, Args& args) {
  const Params params(args, "float", {"value", "default"}, 1);
  const Value otherwise = params.get(1, Value(0.0));
  refuse_undefined(params[0]);
  if (params[0].is_number()) return params[0].real();
  if (!params[0].is_string()) return otherwise;
  rt.heap.scan(2 * params[0].text().size());
  const auto number = parse_float(params[0].text());
  return number ? Value(*number) : otherwise;
}

Value absolute(Runtime&, Args& args) {
  const Params params(args, "abs", {"x"}, 1);
  if (!params[0].is_number()) fail("abs: expected a number, found {}", describe(params[0]));
  if (!params[0].is_integral()) return params[0].is(Kind::kBigInt) ? params[0] : Value(std::abs(params[0].real()));
  return params[0].integer() < 0 ? negated(params[0]) : Value(params[0].integer());
}

// Python's round(): to even where the exact decimal value lies in the middle.
double round_half_even(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < -308) return std::copysign(0.0, value);
  if (digits >= 0) {
    char buffer[700];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), value);
    return std::strtod(buffer, nullptr);
  }
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / unit) * unit;
}

Value round_integer(int64_t value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -18) return int64_t{0};
  int64_t unit = 1;
  for (int64_t i = 0; i < -digits; ++i) unit *= 10;
  const int64_t rest = value % unit, whole = value - rest, twice = std::abs(rest) - (unit - std::abs(rest));
  const bool away = twice > 0 || (twice == 0 && (whole / unit) % 2 != 0);
  int64_t result;
  if (__builtin_add_overflow(whole, away ? (value < 0 ? -unit : unit) : 0, &result)) fail("round: expected a result of at most 64 bits, found a longer one");
  return result;
}

Value round_filter(Runtime&, Args& args) {
  const Params params(args, "round", {"value", "precision", "method"}, 1);
  const std::string_view method = params.given(2) ? params.text(2) : "common";
  if (method != "common" && method != "ceil" && method != "floor") fail("round: expected the method common, ceil or floor, found '{}'", method);
  if (!params[0].is_number()) fail("round: expected a number, found {}", describe(params[0]));
  const int64_t digits = params.integer(1, 0);
  if (method == "common") return params[0].is_integral() ? round_integer(params[0].integer(), digits) : Value(round_half_even(params[0].real(), digits));
  const double unit = std::pow(10.0, static_cast<double>(digits)), scaled = params[0].real() * unit;
  if (!std::isfinite(scaled) || unit == 0) fail("round: expected a finite number and precision, found {}", scaled);
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit;
}

Value sum(Runtime& rt, Args& args) {
  const Params params(args, "sum", {"iterable", "attribute", "start"}, 1);
  Value total = params.get(2, Value(int64_t{0}));
  if (total.is_string()) fail("sum: expected a start that is no string, found {}", describe(total));
  Cursor cursor(rt, params[0]);
  Value item;
  while (cursor.next(&item)) total = binary(rt, BinaryOp::kAdd, total, params.has(1) ? look_up_path(rt, item, params[1]) : item);
  return total;
}

Value file_size(Runtime& rt, Args& args) {
  const Params params(args, "filesizeformat", {"value", "binary"}, 1);
  Args number;
  number.positional = {params[0], Value()};
  const Value bytes = to_float(rt, number);
  if (!bytes.is(Kind::kFloat)) fail("filesizeformat: expected a number, found {}", describe(params[0]));
  const bool is_binary = params.truth(1, false);
  const double base = is_binary ? 1024 : 1000;
  if (bytes.real() == 1) return rt.string("1 Byte");
  if (bytes.real() < base) return rt.string(fmt::format("{:.0f} Bytes", std::trunc(bytes.real()) + 0.0));  // no -0
  double unit = base;
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  size_t i = 0;
  while (i + 1 < kPrefixes.size() && bytes.real() >= unit * base) {
    unit *= base;
    ++i;
  }
  const char prefix = is_binary && i == 0 ? 'K' : kPrefixes[i];
  return rt.string(fmt::format("{:.1f} {}{}B", bytes.real() / unit, prefix, is_binary ? "i" : ""));
}

constexpr std::pair<std::string_view, Builtin> kFilters[] = {
    {"int", to_int}, {"float", to_float}, {"abs", absolute}, {"round", round_filter}, {"sum", sum}, {"filesizeformat", file_size},
};

}  // namespace

Builtin find_number_filter(std::string_view name) {
  for (const auto& [known, filter] : kFilters)
    if (known == name) return filter;
  return nullptr;
}

}  // namespace cadre::jinja
