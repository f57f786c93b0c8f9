// One rendering's state beside its variables: memory, limits, the current line; and how functions take arguments.
#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/jinja/value.h"

namespace cadre::jinja {

class Runtime {
 public:
  Runtime(const ChatTemplateLimits& limits, int64_t now_unix_s)
      : heap(limits.max_memory_bytes, limits.max_steps), limits(limits), now_unix_s(now_unix_s) {}

  Value string(std::string text, bool is_markup = false) {
    heap.work(2 * text.size());  // to copy, and to count its characters
    return Value(heap.make<StringObject>(text.size(), std::move(text), is_markup));
  }
  Value string(std::string_view text) { return string(std::string(text)); }
  Value string(const char* text) { return string(std::string(text)); }
  Value list(std::vector<Value> items) { return Value(heap.make<ListObject>(items.size() * sizeof(Value), std::move(items))); }
  Value tuple(std::vector<Value> items) { return Value(heap.make<TupleObject>(items.size() * sizeof(Value), std::move(items))); }
  Value dict() { return Value(heap.make<DictObject>(0)); }
  // Prints as nothing; any other use fails with the message.
  Value undefined(std::string message) {
    const size_t bytes = message.size();
    return Value(heap.make<UndefinedObject>(bytes, std::move(message)));
  }
  Value view(const Value& dict, ViewObject::What what) { return Value(heap.make<ViewObject>(0, dict, what)); }

  Heap heap;
  const ChatTemplateLimits& limits;
  const int64_t now_unix_s;
  int line = 1;
  int depth = 0;
};

// Counts one level of nesting for as long as it lives.
class Nested {
 public:
  explicit Nested(Runtime& rt) : rt_(rt) {
    if (rt_.depth >= rt_.limits.max_depth)
      fail("expected at most {} levels of nesting, found more; the template or a value in it nests too deep", rt_.limits.max_depth);
    ++rt_.depth;
  }
  ~Nested() { --rt_.depth; }
  Nested(const Nested&) = delete;

 private:
  Runtime& rt_;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;

  // Takes the keyword argument out; nullopt when it was not given.
  std::optional<Value> take(std::string_view name);
};

struct FunctionObject : Object {
  FunctionObject() : Object(Kind::kFunction) {}
  virtual Value call(Runtime& rt, Args& args) = 0;
  virtual std::string repr() const = 0;
};

// A one-pass sequence that computes its items when they are asked for. What `next` calls may fail.
struct IteratorObject final : Object {
  IteratorObject(std::function<bool(Value*)> n) : Object(Kind::kIterator), next(std::move(n)) {}
  void clear() override { next = nullptr; }
  std::function<bool(Value*)> next;
};

// Goes through any iterable value. The runtime must outlive it.
class Cursor {
 public:
  // Throws Fault when the value cannot be iterated.
  Cursor(Runtime& rt, Value iterable);
  bool next(Value* item);

 private:
  Runtime& rt_;
  Value source_;
  size_t position_ = 0;  // of the next item; in bytes for a string
};

// The arguments of a built-in function by its parameters. Throws Fault when they do not fit.
class Params {
 public:
  static constexpr size_t kMaxParams = 6;
  enum class Keywords { kAllowed, kRefused };
  Params(const Args& args, std::string_view function, std::initializer_list<std::string_view> names, size_t num_required,
         Keywords keywords = Keywords::kAllowed);

  bool given(size_t i) const { return values_[i] != nullptr; }
  // Given and not None.
  bool has(size_t i) const { return values_[i] && !values_[i]->is_none(); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  const Value& get(size_t i, const Value& otherwise) const { return values_[i] ? *values_[i] : otherwise; }
  int64_t integer(size_t i, int64_t otherwise) const;
  int64_t integer(size_t i) const;
  std::string_view text(size_t i) const;
  bool truth(size_t i, bool otherwise) const;

 private:
  [[noreturn]] void wrong_type(size_t i, std::string_view expected) const;

  std::string_view function_;
  std::array<std::string_view, kMaxParams> names_{};
  std::array<const Value*, kMaxParams> values_{};
};

}  // namespace cadre::jinja
