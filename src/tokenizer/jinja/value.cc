#include "tokenizer/jinja/value.h"

#include <bit>
#include <functional>

#include "tokenizer/jinja/operations.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {
namespace {

constexpr size_t kIndexFrom = 8;  // entries from which looking through all of them is slower than an index
constexpr size_t kBytesPerEntry = sizeof(std::pair<Value, Value>) + 48;  // with its hash and at most 8 slots of the index
constexpr size_t kNotFound = ~size_t{0};

}  // namespace

void Value::destroy() { bits_.o->heap->destroy(bits_.o); }

double Value::real() const {
  switch (kind_) {
    case Kind::kFloat: return bits_.d;
    case Kind::kBigInt: return static_cast<double>(bits_.u);
    default: return static_cast<double>(integer());
  }
}

StringObject::StringObject(std::string t, bool markup)
    : Object(Kind::kString), text(std::move(t)), num_chars(count_chars(text)), is_markup(markup) {}

RangeObject::RangeObject(int64_t first, int64_t end, int64_t by) : Object(Kind::kRange), start(first), stop(end), step(by), size(0) {
  // Unsigned differences: the ends may be further apart than an int64_t holds.
  if (step > 0 && start < stop) {
    size = static_cast<int64_t>((static_cast<uint64_t>(stop) - static_cast<uint64_t>(start) - 1) / static_cast<uint64_t>(step)) + 1;
  } else if (step < 0 && start > stop) {
    size = static_cast<int64_t>((static_cast<uint64_t>(start) - static_cast<uint64_t>(stop) - 1) / (-static_cast<uint64_t>(step))) + 1;
  }
}

void DictObject::clear() {
  std::vector<std::pair<Value, Value>>().swap(entries);
  std::vector<uint32_t>().swap(index_);
  std::vector<uint64_t>().swap(hashes_);
}

template <typename Equals>
size_t DictObject::find_idx(uint64_t hash, Equals equals) const {
  if (index_.empty()) {
    for (size_t i = 0; i < entries.size(); ++i)
      if (hashes_[i] == hash && equals(entries[i].first)) return i;
    return kNotFound;
  }
  const size_t mask = index_.size() - 1;
  for (size_t slot = hash & mask; index_[slot] != 0; slot = (slot + 1) & mask) {
    const size_t i = index_[slot] - 1;
    if (hashes_[i] == hash && equals(entries[i].first)) return i;
  }
  return kNotFound;
}

const Value* DictObject::find(const Value& key) const {
  const size_t idx = find_idx(hash_of(key), [&](const Value& other) { return equal(key, other); });
  return idx == kNotFound ? nullptr : &entries[idx].second;
}

const Value* DictObject::find(std::string_view key) const {
  const size_t idx = find_idx(hash_of(key), [&](const Value& other) { return other.is_string() && other.text() == key; });
  return idx == kNotFound ? nullptr : &entries[idx].second;
}

void DictObject::set(Value key, Value value) {
  const uint64_t hash = hash_of(key);
  const size_t idx = find_idx(hash, [&](const Value& other) { return equal(key, other); });
  if (idx != kNotFound) {
    entries[idx].second = std::move(value);
    return;
  }
  if (heap) heap->grow(*this, kBytesPerEntry);
  entries.emplace_back(std::move(key), std::move(value));
  hashes_.push_back(hash);
  if (entries.size() < kIndexFrom) return;
  if (entries.size() * 2 > index_.size()) {
    rebuild_index();
    return;
  }
  size_t slot = hash & (index_.size() - 1);
  while (index_[slot] != 0) slot = (slot + 1) & (index_.size() - 1);
  index_[slot] = static_cast<uint32_t>(entries.size());
}

void DictObject::rebuild_index() {
  index_.assign(entries.size() < kIndexFrom ? 0 : std::bit_ceil(entries.size() * 4), 0);
  if (index_.empty()) return;
  for (size_t i = 0; i < entries.size(); ++i) {
    size_t slot = hashes_[i] & (index_.size() - 1);
    while (index_[slot] != 0) slot = (slot + 1) & (index_.size() - 1);
    index_[slot] = static_cast<uint32_t>(i + 1);
  }
}

bool DictObject::erase(const Value& key) {
  const size_t idx = find_idx(hash_of(key), [&](const Value& other) { return equal(key, other); });
  if (idx == kNotFound) return false;
  entries.erase(entries.begin() + static_cast<ptrdiff_t>(idx));
  hashes_.erase(hashes_.begin() + static_cast<ptrdiff_t>(idx));
  rebuild_index();
  return true;
}

Heap::~Heap() {
  // Objects may refer to each other in circles (a namespace that holds itself). All are held, emptied, then freed.
  for (Object* object = first_; object; object = object->next) ++object->num_refs;
  for (Object* object = first_; object; object = object->next) object->clear();
  while (first_) {
    Object* object = first_;
    first_ = object->next;
    delete object;
  }
}

void Heap::check(size_t bytes) const {
  if (bytes > max_bytes_ - live_bytes_)
    fail("expected values of at most {} bytes together, found a wish for {} more; the template builds too much", max_bytes_, bytes);
}

void Heap::out_of_steps() const {
  fail("expected at most {} steps, found no end after them; the template loops for too long", max_steps_);
}

void Heap::adopt(Object* object) {
  object->heap = this;
  object->next = first_;
  if (first_) first_->previous = object;
  first_ = object;
}

void Heap::unlink(Object* object) {
  (object->previous ? object->previous->next : first_) = object->next;
  if (object->next) object->next->previous = object->previous;
}

void Heap::destroy(Object* object) {
  dying_.push_back(object);
  if (is_destroying_) return;
  is_destroying_ = true;
  while (!dying_.empty()) {
    Object* next = dying_.back();
    dying_.pop_back();
    next->clear();
    unlink(next);
    uncharge(next->charged_bytes);
    delete next;
  }
  is_destroying_ = false;
}

Value ConstantPool::string(std::string text) {
  strings_.push_back(std::make_unique<StringObject>(std::move(text), false));
  return Value(strings_.back().get());
}

}  // namespace cadre::jinja
