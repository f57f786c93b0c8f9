#include "kv/prefix_cache.h"

#include <algorithm>

#include "base/check.h"

namespace cadre {

PrefixCache::PrefixCache(BlockPool& pool, int64_t blocks_per_entry) : pool_(pool), blocks_per_entry_(blocks_per_entry) {
  CADRE_CHECK(blocks_per_entry > 0, "entries of {} blocks", blocks_per_entry);
}

int64_t PrefixCache::acquire(std::span<const uint64_t> keys, int64_t max_entries, std::vector<int32_t>* held, std::vector<BlockId>* blocks) {
  int64_t found = 0;
  for (const uint64_t key : keys) {
    if (found == max_entries) break;
    const auto it = entry_of_key_.find(key);
    if (it == entry_of_key_.end()) break;
    hold(it->second, held);
    for (int64_t b = 0; b < blocks_per_entry_; ++b) {
      const BlockId id = blocks_[static_cast<size_t>(it->second * blocks_per_entry_ + b)];
      pool_.add_ref(id);
      blocks->push_back(id);
    }
    ++found;
  }
  return found;
}

void PrefixCache::insert(uint64_t key, std::span<const BlockId> blocks, std::vector<int32_t>* held) {
  CADRE_CHECK(static_cast<int64_t>(blocks.size()) == blocks_per_entry_, "{} blocks for an entry of {}", blocks.size(), blocks_per_entry_);
  const auto [it, is_new] = entry_of_key_.try_emplace(key, kNone);
  if (is_new) {
    int32_t entry = static_cast<int32_t>(entries_.size());
    if (free_entries_.empty()) {
      entries_.emplace_back();
      blocks_.resize(blocks_.size() + static_cast<size_t>(blocks_per_entry_));
    } else {
      entry = free_entries_.back();
      free_entries_.pop_back();
    }
    entries_[static_cast<size_t>(entry)] = {.key = key};
    std::copy(blocks.begin(), blocks.end(), blocks_.begin() + entry * blocks_per_entry_);
    for (const BlockId id : blocks) pool_.add_ref(id);
    it->second = entry;
    append(entry);
  }
  hold(it->second, held);
}

void PrefixCache::release(std::vector<int32_t>* held) {
  for (; !held->empty(); held->pop_back())
    if (--entries_[static_cast<size_t>(held->back())].users == 0) append(held->back());
}

void PrefixCache::evict() {
  CADRE_CHECK(first_idle_ != kNone, "no entry of {} is idle", entries_.size());
  const int32_t entry = first_idle_;
  unlink(entry);
  for (int64_t b = 0; b < blocks_per_entry_; ++b) pool_.release(blocks_[static_cast<size_t>(entry * blocks_per_entry_ + b)]);
  entry_of_key_.erase(entries_[static_cast<size_t>(entry)].key);
  free_entries_.push_back(entry);
}

void PrefixCache::hold(int32_t entry, std::vector<int32_t>* held) {
  if (entries_[static_cast<size_t>(entry)].users++ == 0) unlink(entry);
  held->push_back(entry);
}

void PrefixCache::append(int32_t entry) {
  Entry& e = entries_[static_cast<size_t>(entry)];
  e.previous = last_idle_;
  e.next = kNone;
  (last_idle_ == kNone ? first_idle_ : entries_[static_cast<size_t>(last_idle_)].next) = entry;
  last_idle_ = entry;
  ++num_idle_;
}

void PrefixCache::unlink(int32_t entry) {
  const Entry& e = entries_[static_cast<size_t>(entry)];
  (e.previous == kNone ? first_idle_ : entries_[static_cast<size_t>(e.previous)].next) = e.next;
  (e.next == kNone ? last_idle_ : entries_[static_cast<size_t>(e.next)].previous) = e.previous;
  --num_idle_;
}

}  // namespace cadre
