// What Python's operators and built-in functions do with values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/jinja/runtime.h"

namespace cadre::jinja {

// "the string 'abc'", "a list", "undefined ('x' is undefined)": a value in a message.
std::string describe(const Value& value);
// Python's name of the type: str, int, NoneType.
std::string_view type_name(const Value& value);
// Fails when the value is undefined, saying why it is.
void refuse_undefined(const Value& value);
std::string undefined_message(const Value& value);

bool truth(const Value& value);
bool equal(const Value& a, const Value& b, int depth = 0);
bool identical(const Value& a, const Value& b);
// a < b; fails for types without an order among them.
bool less(const Value& a, const Value& b, int depth = 0);
// Fails when the value cannot be a key.
uint64_t hash_of(const Value& value, int depth = 0);
uint64_t hash_of(std::string_view text);

bool is_iterable(const Value& value);
// Python's len(); nullopt when the value has none.
std::optional<int64_t> length_of(const Value& value);
bool contains(Runtime& rt, const Value& container, const Value& item);
std::vector<Value> collect(Runtime& rt, const Value& iterable);

// str() and repr().
std::string to_text(Runtime& rt, const Value& value);
void append_text(Runtime& rt, std::string& out, const Value& value);
void append_repr(Runtime& rt, std::string& out, const Value& value);
std::string float_repr(double value);
// str(value) as a value: strings stay what they are.
Value soft_text(Runtime& rt, const Value& value);

enum class BinaryOp { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
Value binary(Runtime& rt, BinaryOp op, const Value& a, const Value& b);
Value negated(const Value& value);
// Characters or items [start, stop) by step; absent bounds are nullopt.
struct SliceBounds {
  std::optional<int64_t> start, stop, step;
};
Value sliced(Runtime& rt, const Value& value, const SliceBounds& bounds);

// The work of strip() that dropped so many bytes.
void charge_strip(Runtime& rt, size_t dropped_bytes, std::optional<std::string_view> chars);
// The work and memory of text.replace(old, fresh), before it is done.
void charge_replace(Runtime& rt, std::string_view text, std::string_view old, std::string_view fresh);

// text % values.
Value percent_format(Runtime& rt, const Value& text, const Value& values);
// text.format(...).
Value brace_format(Runtime& rt, const Value& text, const Args& args);
// format(value, spec).
std::string format_value(Runtime& rt, const Value& value, std::string_view spec);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // one level's
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};
std::string to_json(Runtime& rt, const Value& value, const JsonStyle& style);

// Markup(value): what is not markup is escaped first.
Value escaped(Runtime& rt, const Value& value);

// value.name and value[key] as templates look them up: attributes first, or items first.
Value get_attribute(Runtime& rt, const Value& value, std::string_view name);
Value get_item(Runtime& rt, const Value& value, const Value& key);

Value call(Runtime& rt, const Value& callee, Args& args);

}  // namespace cadre::jinja
