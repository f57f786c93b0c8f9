#include "tokenizer/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {
namespace {

// Nesting of values that are compared or hashed; deeper ones are refused.
constexpr int kMaxValueDepth = 200;

void check_depth(int depth) {
  if (depth > kMaxValueDepth) fail("expected a value at most {} levels deep, found a deeper one", kMaxValueDepth);
}

// Items that are numbers count no steps of their own.
constexpr size_t kNumbersPerStep = 8;

bool equal_items(const Value& list, const Value& other, int depth) {
  const auto &a = list.items(), &b = other.items();
  if (a.size() != b.size()) return false;
  if (list.object()->heap) list.object()->heap->step(a.size() / kNumbersPerStep);
  for (size_t i = 0; i < a.size(); ++i)
    if (!identical(a[i], b[i]) && !equal(a[i], b[i], depth)) return false;
  return true;
}

bool equal_dicts(const DictObject& a, const DictObject& b, int depth) {
  if (a.size() != b.size()) return false;
  if (a.heap) a.heap->step(a.size());
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.find(key);
    if (!other || (!identical(value, *other) && !equal(value, *other, depth))) return false;
  }
  return true;
}

bool equal_ranges(const RangeObject& a, const RangeObject& b) {
  return a.size == b.size && (a.size == 0 || (a.start == b.start && (a.size == 1 || a.step == b.step)));
}

// a and b are numbers. Integers are compared as such; an integer and a float as Python does, exactly enough for 2^53.
int compare_numbers(const Value& a, const Value& b, bool* unordered) {
  *unordered = false;
  if (a.is_integral() && b.is_integral()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  if (a.is(Kind::kBigInt) && b.is(Kind::kBigInt)) return a.big() < b.big() ? -1 : a.big() > b.big();
  if (a.is(Kind::kBigInt) && b.is_integral()) return 1;
  if (a.is_integral() && b.is(Kind::kBigInt)) return -1;
  const double x = a.real(), y = b.real();
  *unordered = std::isnan(x) || std::isnan(y);
  return x < y ? -1 : x > y;
}

[[noreturn]] void no_order(const Value& a, const Value& b) {
  refuse_undefined(a);
  refuse_undefined(b);
  fail("expected two values with an order (numbers, strings, lists), found {} and {}", describe(a), describe(b));
}

}  // namespace

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt:
    case Kind::kBigInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return value.as<StringObject>().is_markup ? "Markup" : "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kRange: return "range";
    case Kind::kView: return "dict view";
    case Kind::kIterator: return "generator";
    case Kind::kNamespace: return "Namespace";
    case Kind::kFunction: return "function";
    case Kind::kLoop: return "LoopContext";
    case Kind::kCycler: return "Cycler";
    case Kind::kScope: return "scope";
  }
  return "?";
}

std::string describe(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return fmt::format("undefined ({})", undefined_message(value));
    case Kind::kNone: return "None";
    case Kind::kBool: return value.boolean() ? "True" : "False";
    case Kind::kInt: return fmt::format("the number {}", value.integer());
    case Kind::kBigInt: return fmt::format("the number {}", value.big());
    case Kind::kFloat: return fmt::format("the number {}", float_repr(value.real()));
    case Kind::kString: return "the string " + quoted(value.text(), 40);
    case Kind::kList: return fmt::format("a list of {}", value.items().size());
    case Kind::kTuple: return fmt::format("a tuple of {}", value.items().size());
    case Kind::kDict: return fmt::format("a dict of {} keys", value.as<DictObject>().size());
    default: return fmt::format("a {}", type_name(value));
  }
}

std::string undefined_message(const Value& value) {
  return value.object() ? value.as<UndefinedObject>().message : "the value is undefined";
}

void refuse_undefined(const Value& value) {
  if (value.is_undefined()) throw Fault(undefined_message(value));
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool: return value.boolean();
    case Kind::kInt: return value.integer() != 0;
    case Kind::kFloat: return value.real() != 0;
    default: return length_of(value).value_or(1) != 0;
  }
}

bool identical(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kMissing: return a.object() == b.object();
    case Kind::kNone: return true;
    case Kind::kBool:
    case Kind::kInt: return a.integer() == b.integer();
    case Kind::kBigInt: return a.big() == b.big();
    case Kind::kFloat: return false;
    default: return a.object() == b.object();
  }
}

bool equal(const Value& a, const Value& b, int depth) {
  if (a.is_number() && b.is_number()) {
    bool unordered;
    return compare_numbers(a, b, &unordered) == 0 && !unordered;
  }
  if (a.kind() != b.kind()) return false;
  check_depth(depth);
  if (a.object() && a.object()->heap) a.object()->heap->step();
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString: {
      const std::string_view x = a.text(), y = b.text();
      if (x.size() == y.size() && a.object()->heap) a.object()->heap->work(x.size());
      return x == y;
    }
    case Kind::kList:
    case Kind::kTuple: return equal_items(a, b, depth + 1);
    case Kind::kDict: return equal_dicts(a.as<DictObject>(), b.as<DictObject>(), depth + 1);
    case Kind::kRange: return equal_ranges(a.as<RangeObject>(), b.as<RangeObject>());
    default: return identical(a, b);
  }
}

bool less(const Value& a, const Value& b, int depth) {
  if (a.is_number() && b.is_number()) {
    bool unordered;
    return compare_numbers(a, b, &unordered) < 0 && !unordered;
  }
  if (a.is_string() && b.is_string()) {
    if (a.object()->heap) a.object()->heap->work(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();  // the order of UTF-8 bytes is that of code points
  }
  if (a.kind() != b.kind() || !a.is_sequence()) no_order(a, b);
  check_depth(depth);
  const auto &x = a.items(), &y = b.items();
  const size_t num_common = std::min(x.size(), y.size());
  if (a.object()->heap) a.object()->heap->step(num_common / kNumbersPerStep);
  for (size_t i = 0; i < num_common; ++i)
    if (!identical(x[i], y[i]) && !equal(x[i], y[i], depth + 1)) return less(x[i], y[i], depth + 1);
  return x.size() < y.size();
}

uint64_t hash_of(std::string_view text) { return std::hash<std::string_view>()(text); }

uint64_t hash_of(const Value& value, int depth) {
  switch (value.kind()) {
    case Kind::kString:
      if (value.object()->heap) value.object()->heap->work(4 * value.text().size());
      return hash_of(value.text());
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBigInt:
    case Kind::kFloat: return std::hash<double>()(value.real());  // 1, 1.0 and true are one key
    case Kind::kTuple: {
      check_depth(depth);
      uint64_t hash = 0x9E3779B97F4A7C15;
      if (value.object()->heap) value.object()->heap->step(value.items().size() + 1);
      for (const Value& item : value.items()) hash = (hash ^ hash_of(item, depth + 1)) * 0x100000001B3;
      return hash;
    }
    case Kind::kList:
    case Kind::kDict: fail("expected a value that can be a key (a string, a number, a tuple of such), found {}", describe(value));
    case Kind::kUndefined: return 1;  // all undefined values are equal
    default: return std::hash<const void*>()(value.object());
  }
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kView:
    case Kind::kIterator: return true;
    default: return false;
  }
}

std::optional<int64_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return 0;
    case Kind::kString: return static_cast<int64_t>(value.as<StringObject>().num_chars);
    case Kind::kList:
    case Kind::kTuple: return static_cast<int64_t>(value.items().size());
    case Kind::kDict: return static_cast<int64_t>(value.as<DictObject>().size());
    case Kind::kRange: return value.as<RangeObject>().size;
    case Kind::kView: return static_cast<int64_t>(value.as<ViewObject>().dict.as<DictObject>().size());
    default: return std::nullopt;
  }
}

bool contains(Runtime& rt, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) fail("expected a string on the left of 'in' a string, found {}", describe(item));
      rt.heap.scan(container.text().size() / 4);
      return find_first(container.text(), item.text()) != std::string_view::npos;
    case Kind::kDict: return container.as<DictObject>().find(item) != nullptr;
    case Kind::kRange: {
      if (!item.is_number()) return false;
      const auto& range = container.as<RangeObject>();
      const double real = item.real();
      if (item.is(Kind::kBigInt) || real != std::floor(real) || std::abs(real) > 9e18) return false;
      const int64_t i = item.is_integral() ? item.integer() : static_cast<int64_t>(real);
      if (range.size == 0 || (range.step > 0 ? i < range.start || i >= range.stop : i > range.start || i <= range.stop)) return false;
      return (static_cast<uint64_t>(i) - static_cast<uint64_t>(range.start)) % static_cast<uint64_t>(range.step) == 0 ||
             (range.step < 0 && (static_cast<uint64_t>(range.start) - static_cast<uint64_t>(i)) % (-static_cast<uint64_t>(range.step)) == 0);
    }
    default: break;
  }
  if (container.is(Kind::kView) && container.as<ViewObject>().what == ViewObject::What::kKeys)
    return container.as<ViewObject>().dict.as<DictObject>().find(item) != nullptr;
  if (!is_iterable(container)) fail("expected something to look in on the right of 'in', found {}", describe(container));
  Cursor cursor(rt, container);
  Value candidate;
  while (cursor.next(&candidate))
    if (identical(candidate, item) || equal(candidate, item)) return true;
  return false;
}

void charge_strip(Runtime& rt, size_t dropped_bytes, std::optional<std::string_view> chars) {
  rt.heap.scan(2 * dropped_bytes + (chars ? 4 * chars->size() : 0));
}

void charge_replace(Runtime& rt, std::string_view text, std::string_view old, std::string_view fresh) {
  const size_t count = count_occurrences(text, old);
  rt.heap.scan(text.size() / 4);
  rt.heap.step(count);
  rt.heap.check(text.size() + count * fresh.size());
}

std::vector<Value> collect(Runtime& rt, const Value& iterable) {
  Cursor cursor(rt, iterable);
  std::vector<Value> items;
  Value item;
  while (cursor.next(&item)) {
    if (items.size() % 1024 == 0) rt.heap.check(items.size() * 2 * sizeof(Value));
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace cadre::jinja
