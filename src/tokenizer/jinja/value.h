// Values of a template while it renders: a counted reference to an object, or a scalar. They behave as Python's do.
// Objects belong to one Heap (one rendering, one thread) which bounds their bytes, or to a ConstantPool, which any
// number of renderings share: those are never counted and never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cadre::jinja {

// What stops a rendering. The interpreter adds the line and makes it a cadre::Error.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Fault(fmt::format(format, std::forward<Args>(args)...));
}

enum class Kind : uint8_t {
  kMissing,    // a parameter that has no value yet; never seen by templates
  kUndefined,  // object: why, or none
  kNone,
  kBool,
  kInt,
  kBigInt,  // an integer of the input in (INT64_MAX, UINT64_MAX]: printed as it came, computed with as a float
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,      // d.keys(), d.values(), d.items()
  kIterator,  // what map, select, items ... return: once through
  kNamespace,
  kFunction,  // macros, global functions, bound methods
  kLoop,      // the variable `loop`
  kCycler,
  kScope,  // variables; never seen by templates
};

class Heap;

struct Object {
  explicit Object(Kind k) : kind(k) {}
  virtual ~Object() = default;
  Object(const Object&) = delete;
  // Lets go of every value it holds.
  virtual void clear() {}

  const Kind kind;
  uint32_t num_refs = 0;
  size_t charged_bytes = 0;
  Heap* heap = nullptr;  // null for constants
  Object *previous = nullptr, *next = nullptr;
};

class Value {
 public:
  Value() : kind_(Kind::kNone), bits_{} {}
  Value(bool b) : kind_(Kind::kBool) { bits_.b = b; }  // NOLINT(google-explicit-constructor): literals read as values
  Value(int64_t i) : kind_(Kind::kInt) { bits_.i = i; }  // NOLINT(google-explicit-constructor)
  Value(double d) : kind_(Kind::kFloat) { bits_.d = d; }  // NOLINT(google-explicit-constructor)
  explicit Value(Object* object) : kind_(object->kind) {
    bits_.o = object;
    retain();
  }
  Value(const void*) = delete;
  Value(const char*) = delete;
  Value(const Value& other) : kind_(other.kind_), bits_(other.bits_) { retain(); }
  Value(Value&& other) noexcept : kind_(std::exchange(other.kind_, Kind::kNone)), bits_(other.bits_) {}
  Value& operator=(const Value& other) {
    if (this != &other) *this = Value(other);
    return *this;
  }
  Value& operator=(Value&& other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(bits_, other.bits_);
    return *this;
  }
  ~Value() { release(); }

  static Value missing() { return tagged(Kind::kMissing); }
  static Value undefined() { return tagged(Kind::kUndefined); }
  static Value big_int(uint64_t u) {
    Value v = tagged(Kind::kBigInt);
    v.bits_.u = u;
    return v;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  // bool counts as an integer, as in Python.
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat || kind_ == Kind::kBigInt; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  bool boolean() const { return bits_.b; }
  int64_t integer() const { return kind_ == Kind::kBool ? bits_.b : bits_.i; }
  uint64_t big() const { return bits_.u; }
  double real() const;  // of any number
  Object* object() const { return has_object() ? bits_.o : nullptr; }
  template <typename T>
  T& as() const {
    return *static_cast<T*>(bits_.o);
  }
  std::string_view text() const;               // of a string
  const std::vector<Value>& items() const;     // of a list or tuple

 private:
  static Value tagged(Kind kind) {
    Value v;
    v.kind_ = kind;
    v.bits_.o = nullptr;
    return v;
  }
  bool has_object() const { return (kind_ >= Kind::kString || kind_ == Kind::kUndefined) && bits_.o; }
  void retain() {
    if (has_object() && bits_.o->heap) ++bits_.o->num_refs;
  }
  void release() {
    if (has_object() && bits_.o->heap && --bits_.o->num_refs == 0) destroy();
  }
  void destroy();

  Kind kind_;
  union {
    bool b;
    int64_t i;
    uint64_t u;
    double d;
    Object* o;
  } bits_;
};

struct UndefinedObject final : Object {
  explicit UndefinedObject(std::string why) : Object(Kind::kUndefined), message(std::move(why)) {}
  std::string message;  // what using it says
};

struct StringObject final : Object {
  StringObject(std::string t, bool markup);
  std::string text;
  size_t num_chars;
  bool is_markup;  // went through `safe` or `escape`: what is added to it gets escaped
  bool is_ascii() const { return num_chars == text.size(); }
};

struct ListObject final : Object {
  explicit ListObject(std::vector<Value> v) : Object(Kind::kList), items(std::move(v)) {}
  void clear() override { std::vector<Value>().swap(items); }
  std::vector<Value> items;
};

struct TupleObject final : Object {
  explicit TupleObject(std::vector<Value> v) : Object(Kind::kTuple), items(std::move(v)) {}
  void clear() override { std::vector<Value>().swap(items); }
  std::vector<Value> items;
  bool is_group = false;  // from groupby: .grouper and .list name its items
};

struct RangeObject final : Object {
  RangeObject(int64_t first, int64_t end, int64_t by);
  // Item idx < size. Unsigned on the way: a product may pass int64_t where the sum does not.
  int64_t at(int64_t idx) const {
    return static_cast<int64_t>(static_cast<uint64_t>(start) + static_cast<uint64_t>(idx) * static_cast<uint64_t>(step));
  }
  int64_t start, stop, step, size;
};

// A table in order of insertion, with an index by hash once it is worth one.
struct DictObject final : Object {
  DictObject() : Object(Kind::kDict) {}
  void clear() override;
  // Throws Fault when the key cannot be hashed (a list, a dict).
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
  bool erase(const Value& key);
  size_t size() const { return entries.size(); }

  std::vector<std::pair<Value, Value>> entries;

 private:
  template <typename Equals>
  size_t find_idx(uint64_t hash, Equals equals) const;
  void rebuild_index();
  std::vector<uint32_t> index_;  // open addressing, entry number plus one; empty while entries are few
  std::vector<uint64_t> hashes_;
};

struct ViewObject final : Object {
  enum class What { kKeys, kValues, kItems };
  ViewObject(Value d, What w) : Object(Kind::kView), dict(std::move(d)), what(w) {}
  void clear() override { dict = Value(); }
  Value dict;
  What what;
};

struct NamespaceObject final : Object {
  explicit NamespaceObject(Value d) : Object(Kind::kNamespace), attributes(std::move(d)) {}
  void clear() override { attributes = Value(); }
  Value attributes;  // a dict
};

struct CyclerObject final : Object {
  explicit CyclerObject(std::vector<Value> v) : Object(Kind::kCycler), items(std::move(v)) {}
  void clear() override { std::vector<Value>().swap(items); }
  std::vector<Value> items;
  size_t position = 0;
};

// Owns the objects of one rendering, and bounds its memory and its work.
class Heap {
 public:
  Heap(size_t max_bytes, uint64_t max_steps) : max_bytes_(max_bytes), max_steps_(max_steps) {}
  ~Heap();
  Heap(const Heap&) = delete;

  // bytes: what the object holds beside its own size.
  template <typename T, typename... Args>
  T* make(size_t bytes, Args&&... args) {
    charge(bytes + sizeof(T));
    std::unique_ptr<T> object;
    try {
      object = std::make_unique<T>(std::forward<Args>(args)...);
    } catch (...) {
      uncharge(bytes + sizeof(T));
      throw;
    }
    object->charged_bytes = bytes + sizeof(T);
    adopt(object.get());
    return object.release();
  }
  // Throws Fault when so many more bytes would pass the limit.
  void check(size_t bytes) const;
  void charge(size_t bytes) {
    check(bytes);
    live_bytes_ += bytes;
  }
  void uncharge(size_t bytes) { live_bytes_ -= bytes; }
  // Accounts for growth of an object.
  void grow(Object& object, size_t bytes) {
    charge(bytes);
    object.charged_bytes += bytes;
  }
  size_t live_bytes() const { return live_bytes_; }

  // One step is one evaluated node, one item visited, or kBytesPerStep bytes copied or compared: some 50 ns.
  static constexpr size_t kBytesPerStep = 256;
  void step(uint64_t num_steps = 1) {
    if (num_steps > max_steps_ - num_steps_) out_of_steps();
    num_steps_ += num_steps;
  }
  void work(size_t bytes) { step(bytes / kBytesPerStep); }
  // Bytes that are looked at one character after the other.
  static constexpr size_t kCharsPerStep = 8;
  void scan(size_t bytes) { step(bytes / kCharsPerStep); }

 private:
  friend class Value;
  void adopt(Object* object);
  void destroy(Object* object);
  void unlink(Object* object);

  [[noreturn]] void out_of_steps() const;

  const size_t max_bytes_;
  const uint64_t max_steps_;
  size_t live_bytes_ = 0;
  uint64_t num_steps_ = 0;
  Object* first_ = nullptr;
  // Objects die one after the other, not one inside the other: a long chain of them must not use up the stack.
  std::vector<Object*> dying_;
  bool is_destroying_ = false;
};

// Strings of the parsed template.
class ConstantPool {
 public:
  Value string(std::string text);

 private:
  std::vector<std::unique_ptr<StringObject>> strings_;
};

inline std::string_view Value::text() const { return as<StringObject>().text; }
inline const std::vector<Value>& Value::items() const {
  return kind_ == Kind::kList ? as<ListObject>().items : as<TupleObject>().items;
}

}  // namespace cadre::jinja
