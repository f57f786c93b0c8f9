// The tests: what may stand after 'is'.
#include <utility>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {
namespace {

template <bool (*kHolds)(const Value&)>
Value simple(Runtime&, Args& args) {
  return kHolds(Params(args, "test", {"value"}, 1)[0]);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.is_bool(); }
bool is_true(const Value& v) { return v.is_bool() && v.boolean(); }
bool is_false(const Value& v) { return v.is_bool() && !v.boolean(); }
bool is_integer(const Value& v) { return v.is(Kind::kInt) || v.is(Kind::kBigInt); }
bool is_float(const Value& v) { return v.is(Kind::kFloat); }
bool is_number(const Value& v) { return v.is_number(); }
bool is_string(const Value& v) { return v.is_string(); }
bool is_mapping(const Value& v) { return v.is(Kind::kDict); }
bool can_iterate(const Value& v) { return is_iterable(v) || v.is(Kind::kLoop); }
// Undefined values have a length, items and a call, if only to fail; Python's probes do not see the difference.
bool is_sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is(Kind::kDict) || v.is(Kind::kRange);
}
bool is_callable(const Value& v) { return v.is(Kind::kFunction) || v.is_undefined() || v.is(Kind::kLoop); }
bool is_escaped(const Value& v) { return v.is_string() && v.as<StringObject>().is_markup; }

template <bool (*kHolds)(std::string_view)>
Value of_text(Runtime& rt, Args& args) {
  const std::string text = to_text(rt, Params(args, "test", {"value"}, 1)[0]);
  rt.heap.scan(text.size());
  return kHolds(text);
}

bool leaves(Runtime& rt, const Value& value, const Value& divisor, int64_t rest) {
  return equal(binary(rt, BinaryOp::kMod, value, divisor), Value(rest));
}

template <int64_t kRest>
Value parity(Runtime& rt, Args& args) {
  return leaves(rt, Params(args, "test", {"value"}, 1)[0], Value(int64_t{2}), kRest);
}

Value divisible(Runtime& rt, Args& args) {
  const Params params(args, "divisibleby", {"value", "num"}, 2);
  return leaves(rt, params[0], params[1], 0);
}

enum class Order { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };
template <Order kOrder>
Value ordered(Runtime&, Args& args) {
  const Params params(args, "test", {"value", "other"}, 2);
  const Value &a = params[0], &b = params[1];
  switch (kOrder) {
    case Order::kEqual: return equal(a, b);
    case Order::kNotEqual: return !equal(a, b);
    case Order::kLess: return less(a, b);
    case Order::kLessEqual: return less(a, b) || equal(a, b);
    case Order::kGreater: return less(b, a);
    case Order::kGreaterEqual: return less(b, a) || equal(a, b);
  }
  return false;
}

Value is_in(Runtime& rt, Args& args) {
  const Params params(args, "in", {"value", "seq"}, 2);
  return contains(rt, params[1], params[0]);
}

Value same_as(Runtime&, Args& args) {
  const Params params(args, "sameas", {"value", "other"}, 2);
  return identical(params[0], params[1]);
}

Value is_filter(Runtime&, Args& args) {
  const Params params(args, "filter", {"value"}, 1);
  hash_of(params[0]);  // fails for what cannot be a key, as the look-up in Python does
  return params[0].is_string() && find_filter(params[0].text()) != nullptr;
}

Value is_test(Runtime&, Args& args) {
  const Params params(args, "test", {"value"}, 1);
  hash_of(params[0]);
  return params[0].is_string() && find_test(params[0].text()) != nullptr;
}

constexpr std::pair<std::string_view, Builtin> kTests[] = {
    {"defined", simple<is_defined>}, {"undefined", simple<is_undefined>}, {"none", simple<is_none>}, {"boolean", simple<is_boolean>},
    {"true", simple<is_true>}, {"false", simple<is_false>}, {"integer", simple<is_integer>}, {"float", simple<is_float>},
    {"number", simple<is_number>}, {"string", simple<is_string>}, {"mapping", simple<is_mapping>}, {"iterable", simple<can_iterate>},
    {"sequence", simple<is_sequence>}, {"callable", simple<is_callable>}, {"escaped", simple<is_escaped>},
    {"lower", of_text<is_lower>}, {"upper", of_text<is_upper>}, {"odd", parity<1>}, {"even", parity<0>}, {"divisibleby", divisible},
    {"in", is_in}, {"sameas", same_as}, {"filter", is_filter}, {"test", is_test},
    {"==", ordered<Order::kEqual>}, {"eq", ordered<Order::kEqual>}, {"equalto", ordered<Order::kEqual>},
    {"!=", ordered<Order::kNotEqual>}, {"ne", ordered<Order::kNotEqual>},
    {"<", ordered<Order::kLess>}, {"lt", ordered<Order::kLess>}, {"lessthan", ordered<Order::kLess>},
    {"<=", ordered<Order::kLessEqual>}, {"le", ordered<Order::kLessEqual>},
    {">", ordered<Order::kGreater>}, {"gt", ordered<Order::kGreater>}, {"greaterthan", ordered<Order::kGreater>},
    {">=", ordered<Order::kGreaterEqual>}, {"ge", ordered<Order::kGreaterEqual>},
};

}  // namespace

Builtin find_test(std::string_view name) {
  for (const auto& [known, test] : kTests)
    if (known == name) return test;
  return nullptr;
}

}  // namespace cadre::jinja
