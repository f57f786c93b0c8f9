// The variable `loop` of a for statement: position, neighbours, length. It looks ahead only when asked to.
#pragma once

#include <deque>
#include <functional>
#include <optional>

#include "tokenizer/jinja/runtime.h"

namespace cadre::jinja {

struct LoopObject final : Object {
  // length: of the iterated value; nullopt when it has none and must be read to its end to be known.
  LoopObject(std::function<bool(Value*)> next, std::optional<int64_t> length, int64_t depth)
      : Object(Kind::kLoop), depth0(depth), next_(std::move(next)), length_(length) {}
  void clear() override;

  // Moves to the next item; false at the end.
  bool advance(Value* item);
  // No more items are read: what next() refers to goes away.
  void close() { next_ = nullptr; }
  Value attribute(Runtime& rt, std::string_view name);
  bool changed(const std::vector<Value>& values);

  int64_t index0 = -1;
  const int64_t depth0;
  // Renders the body for other items; empty unless the statement is recursive.
  std::function<Value(const Value& iterable)> recurse;

 private:
  bool peek();
  bool pull(Value* item) { return next_ && next_(item); }
  int64_t length(Runtime& rt);

  std::function<bool(Value*)> next_;
  std::optional<int64_t> length_;
  std::deque<Value> ahead_;
  Value before_ = Value::undefined(), current_ = Value::undefined();
  std::optional<std::vector<Value>> last_values_;
};

}  // namespace cadre::jinja
