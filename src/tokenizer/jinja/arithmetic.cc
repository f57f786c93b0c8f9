// Python's binary operators, negation and slices.
#include <cmath>

#include "tokenizer/jinja/operations.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {
namespace {

std::string_view symbol(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd: return "+";
    case BinaryOp::kSub: return "-";
    case BinaryOp::kMul: return "*";
    case BinaryOp::kDiv: return "/";
    case BinaryOp::kFloorDiv: return "//";
    case BinaryOp::kMod: return "%";
    case BinaryOp::kPow: return "**";
  }
  return "?";
}

[[noreturn]] void overflow() { fail("expected integers of at most 64 bits, found a result that needs more"); }

void check_divisor(bool is_zero) {
  if (is_zero) fail("expected a divisor that is not zero, found 0");
}

int64_t floor_div(int64_t a, int64_t b) {
  check_divisor(b == 0);
  if (b == -1) {
    int64_t result;
    if (__builtin_sub_overflow(int64_t{0}, a, &result)) overflow();
    return result;
  }
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t floor_mod(int64_t a, int64_t b) {
  check_divisor(b == 0);
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_mod(double a, double b) {
  check_divisor(b == 0);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

double floor_div(double a, double b) {
  check_divisor(b == 0);
  const double rest = std::fmod(a, b);
  const bool rounds_down = rest != 0 && (rest < 0) != (b < 0);
  const double quotient = (a - rest) / b - (rounds_down ? 1.0 : 0.0);  // whole but for rounding
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double below = std::floor(quotient);
  return quotient - below > 0.5 ? below + 1 : below;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) {
      // 1, 0 and -1 never get here, so the result is too large whichever bits remain.
      overflow();
    }
  }
  return result;
}

Value integer_op(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) overflow();
      return result;
    case BinaryOp::kSub:
      if (__builtin_sub_overflow(a, b, &result)) overflow();
      return result;
    case BinaryOp::kMul:
      if (__builtin_mul_overflow(a, b, &result)) overflow();
      return result;
    case BinaryOp::kDiv:
      check_divisor(b == 0);
      return static_cast<double>(a) / static_cast<double>(b);
    case BinaryOp::kFloorDiv: return floor_div(a, b);
    case BinaryOp::kMod: return floor_mod(a, b);
    case BinaryOp::kPow:
      if (b >= 0) return integer_power(a, b);
      check_divisor(a == 0);
      return std::pow(static_cast<double>(a), static_cast<double>(b));
  }
  return result;
}

Value float_op(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd: return a + b;
    case BinaryOp::kSub: return a - b;
    case BinaryOp::kMul: return a * b;
    case BinaryOp::kDiv: check_divisor(b == 0); return a / b;
    case BinaryOp::kFloorDiv: return floor_div(a, b);
    case BinaryOp::kMod: return floor_mod(a, b);
    case BinaryOp::kPow: {
      check_divisor(a == 0 && b < 0);
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) fail("expected a real power, found {} ** {}", a, b);
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail("expected a finite power, found {} ** {}", a, b);
      return result;
    }
  }
  return a;
}

Value concatenated(Runtime& rt, const Value& a, const Value& b) {
  const bool is_markup = a.as<StringObject>().is_markup || b.as<StringObject>().is_markup;
  const Value left = is_markup ? escaped(rt, a) : a, right = is_markup ? escaped(rt, b) : b;
  rt.heap.check(left.text().size() + right.text().size());
  std::string text;
  text.reserve(left.text().size() + right.text().size());
  text.append(left.text()).append(right.text());
  return rt.string(std::move(text), is_markup);
}

Value joined(Runtime& rt, const Value& a, const Value& b) {
  const auto &x = a.items(), &y = b.items();
  rt.heap.check((x.size() + y.size()) * sizeof(Value));
  rt.heap.step(x.size() + y.size());
  std::vector<Value> items(x);
  items.insert(items.end(), y.begin(), y.end());
  return a.is(Kind::kList) ? rt.list(std::move(items)) : rt.tuple(std::move(items));
}

Value repeated(Runtime& rt, const Value& sequence, int64_t count) {
  const auto times = static_cast<uint64_t>(std::max<int64_t>(count, 0));
  const size_t unit = sequence.is_string() ? sequence.text().size() : sequence.items().size() * sizeof(Value);
  uint64_t bytes;
  if (__builtin_mul_overflow(times, uint64_t{unit}, &bytes)) bytes = UINT64_MAX / 2;
  rt.heap.check(bytes);
  rt.heap.work(bytes);
  if (!sequence.is_string()) rt.heap.step(bytes / sizeof(Value) / 4);
  if (sequence.is_string()) {
    std::string text;
    text.reserve(bytes);
    for (uint64_t i = 0; unit > 0 && i < times; ++i) text += sequence.text();
    return rt.string(std::move(text), sequence.as<StringObject>().is_markup);
  }
  std::vector<Value> items;
  items.reserve(bytes / sizeof(Value));
  for (uint64_t i = 0; unit > 0 && i < times; ++i) items.insert(items.end(), sequence.items().begin(), sequence.items().end());
  return sequence.is(Kind::kList) ? rt.list(std::move(items)) : rt.tuple(std::move(items));
}

// slice(...).indices(length) of Python.
struct Slice {
  int64_t start, stop, step, count;
};
Slice resolve(const SliceBounds& bounds, int64_t length) {
  const int64_t step = bounds.step.value_or(1);
  if (step == 0) fail("expected a slice step that is not zero, found 0");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? length : length - 1;
  const auto clamp = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound) return otherwise;
    const int64_t idx = *bound < 0 ? *bound + length : *bound;
    return std::min(std::max(idx, low), high);
  };
  const int64_t start = clamp(bounds.start, step > 0 ? low : high), stop = clamp(bounds.stop, step > 0 ? high : low);
  return {start, stop, step, RangeObject(start, stop, step).size};
}

// Bytes to go through to find the ends of a slice of text that is not ASCII, at most.
size_t byte_count(const Slice& slice, const StringObject& string) {
  return std::min(string.text.size(), static_cast<size_t>(slice.stop) * 4);
}

Value sliced_text(Runtime& rt, const StringObject& string, const Slice& slice) {
  const std::string_view text = string.text;
  if (slice.count == 0) return rt.string(std::string(), string.is_markup);
  if (slice.step == 1) {
    if (!string.is_ascii()) rt.heap.scan(byte_count(slice, string) / 2);
    const size_t from = string.is_ascii() ? static_cast<size_t>(slice.start) : byte_offset(text, static_cast<size_t>(slice.start));
    const std::string_view rest = text.substr(from);
    const auto count = static_cast<size_t>(slice.count);
    const size_t bytes = string.is_ascii() ? count : byte_offset(rest, count);
    return rt.string(std::string(rest.substr(0, bytes)), string.is_markup);
  }
  rt.heap.scan(2 * text.size());
  std::vector<std::string_view> chars;
  rt.heap.check(string.num_chars * sizeof(std::string_view));
  for (size_t pos = 0; pos < text.size();) {
    const size_t length = byte_offset(text.substr(pos), 1);
    chars.push_back(text.substr(pos, length));
    pos += length;
  }
  std::string out;
  for (int64_t i = 0; i < slice.count; ++i) out += chars[static_cast<size_t>(slice.start + i * slice.step)];
  return rt.string(std::move(out), string.is_markup);
}

}  // namespace

Value binary(Runtime& rt, BinaryOp op, const Value& a, const Value& b) {
  refuse_undefined(a);
  if (op == BinaryOp::kMod && a.is_string()) return percent_format(rt, a, b);
  refuse_undefined(b);
  if (a.is_integral() && b.is_integral()) return integer_op(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return float_op(op, a.real(), b.real());
  if (op == BinaryOp::kAdd && a.is_string() && b.is_string()) return concatenated(rt, a, b);
  if (op == BinaryOp::kAdd && a.is_sequence() && a.kind() == b.kind()) return joined(rt, a, b);
  if (op == BinaryOp::kMul) {
    if ((a.is_string() || a.is_sequence()) && b.is_integral()) return repeated(rt, a, b.integer());
    if ((b.is_string() || b.is_sequence()) && a.is_integral()) return repeated(rt, b, a.integer());
  }
  fail("expected operands that '{}' has a meaning for, found {} and {}", symbol(op), describe(a), describe(b));
}

Value negated(const Value& value) {
  refuse_undefined(value);
  if (value.is_integral()) return integer_op(BinaryOp::kSub, 0, value.integer());
  if (value.is_number()) return -value.real();
  fail("expected a number after '-', found {}", describe(value));
}

Value sliced(Runtime& rt, const Value& value, const SliceBounds& bounds) {
  refuse_undefined(value);
  if (value.is_string()) {
    const auto& string = value.as<StringObject>();
    return sliced_text(rt, string, resolve(bounds, static_cast<int64_t>(string.num_chars)));
  }
  if (value.is(Kind::kRange)) {
    const auto& range = value.as<RangeObject>();
    const Slice slice = resolve(bounds, range.size);
    int64_t step = 0;
    if (__builtin_mul_overflow(range.step, slice.step, &step)) overflow();
    return Value(rt.heap.make<RangeObject>(0, range.at(slice.start), range.at(slice.stop), step));
  }
  if (!value.is_sequence()) fail("expected a string or a list before a slice, found {}", describe(value));
  const auto& all = value.items();
  const Slice slice = resolve(bounds, static_cast<int64_t>(all.size()));
  rt.heap.step(static_cast<uint64_t>(slice.count));
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(slice.count));
  for (int64_t i = 0; i < slice.count; ++i) items.push_back(all[static_cast<size_t>(slice.start + i * slice.step)]);
  return value.is(Kind::kList) ? rt.list(std::move(items)) : rt.tuple(std::move(items));
}

}  // namespace cadre::jinja
