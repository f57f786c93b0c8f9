// Which blocks hold the beginning of which prompts, so that a sequence that begins like another need not compute it again.
// Ids and counts only: it knows neither tokens nor KV. A key names an entry of blocks_per_entry full blocks and everything
// before it: whoever makes keys sees to it that equal keys mean equal tokens up to there (a chained hash that is checked, or the
// ids of a trace).
//
// An entry holds a reference on each of its blocks. One that no sequence holds is idle: it stays until its blocks are wanted,
// the one idle longest first, and of one sequence the deepest first. Same calls, same choices.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/block_pool.h"

namespace cadre {

class PrefixCache {
 public:
  // The pool must outlive the cache.
  explicit PrefixCache(BlockPool& pool, int64_t blocks_per_entry = 1);

  int64_t blocks_per_entry() const { return blocks_per_entry_; }

  // The longest run of leading keys that are there, max_entries at most. Each entry found is held until release(), appended to
  // *held, and its blocks to *blocks with a reference of the caller's own.
  int64_t acquire(std::span<const uint64_t> keys, int64_t max_entries, std::vector<int32_t>* held, std::vector<BlockId>* blocks);
  // A sequence computed the entry that follows those it holds; from now on others find it. Where another sequence was sooner,
  // this one's blocks stay its own.
  void insert(uint64_t key, std::span<const BlockId> blocks, std::vector<int32_t>* held);
  // The sequence gives up its hold; its own references on blocks are the caller's to return.
  void release(std::vector<int32_t>* held);

  // Blocks that evict() can free.
  int64_t num_idle_blocks() const { return num_idle_ * blocks_per_entry_; }
  // Frees the blocks of the entry that has been idle longest. A bug when none is idle.
  void evict();
  int64_t num_entries() const { return static_cast<int64_t>(entry_of_key_.size()); }

 private:
  static constexpr int32_t kNone = -1;
  struct Entry {
    uint64_t key = 0;
    int32_t users = 0, previous = kNone, next = kNone;  // the list of idle ones, longest first
  };
  void unlink(int32_t entry);
  void append(int32_t entry);
  void hold(int32_t entry, std::vector<int32_t>* held);

  BlockPool& pool_;
  const int64_t blocks_per_entry_;
  std::unordered_map<uint64_t, int32_t> entry_of_key_;
  std::vector<Entry> entries_;
  std::vector<BlockId> blocks_;  // [entries, blocks_per_entry]
  std::vector<int32_t> free_entries_;
  int32_t first_idle_ = kNone, last_idle_ = kNone;
  int64_t num_idle_ = 0;
};

}  // namespace cadre
