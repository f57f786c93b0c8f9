#include "tokenizer/jinja/loop.h"

#include "tokenizer/jinja/operations.h"

namespace cadre::jinja {

void LoopObject::clear() {
  next_ = nullptr;
  recurse = nullptr;
  ahead_.clear();
  before_ = current_ = Value();
  last_values_.reset();
}

bool LoopObject::advance(Value* item) {
  if (!ahead_.empty()) {
    *item = std::move(ahead_.front());
    ahead_.pop_front();
  } else if (!pull(item)) {
    return false;
  }
  ++index0;
  before_ = std::move(current_);
  current_ = *item;
  return true;
}

bool LoopObject::peek() {
  Value item;
  if (ahead_.empty() && pull(&item)) ahead_.push_back(std::move(item));
  return !ahead_.empty();
}

int64_t LoopObject::length(Runtime& rt) {
  if (length_) return *length_;
  Value item;
  while (pull(&item)) {
    rt.heap.grow(*this, sizeof(Value));
    ahead_.push_back(std::move(item));
  }
  length_ = index0 + 1 + static_cast<int64_t>(ahead_.size());
  return *length_;
}

bool LoopObject::changed(const std::vector<Value>& values) {
  const bool same = last_values_ && last_values_->size() == values.size() &&
                    std::equal(values.begin(), values.end(), last_values_->begin(), [](const Value& a, const Value& b) { return equal(a, b); });
  if (!same) last_values_ = values;
  return !same;
}

Value LoopObject::attribute(Runtime& rt, std::string_view name) {
  if (name == "index") return index0 + 1;
  if (name == "index0") return index0;
  if (name == "first") return index0 == 0;
  if (name == "last") return !peek();
  if (name == "length") return length(rt);
  if (name == "revindex") return length(rt) - index0;
  if (name == "revindex0") return length(rt) - index0 - 1;
  if (name == "depth") return depth0 + 1;
  if (name == "depth0") return depth0;
  if (name == "previtem") return index0 == 0 ? rt.undefined("there is no previous item") : before_;
  if (name == "nextitem") return peek() ? ahead_.front() : rt.undefined("there is no next item");
  return rt.undefined(fmt::format("the loop has no attribute '{}'", name));
}

}  // namespace cadre::jinja
