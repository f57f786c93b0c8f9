// Ids of KV blocks and who holds them: a free list with reference counts. allocate, add_ref and release take constant
// time, never allocate memory, and give the same ids for the same calls. Knows nothing of what the blocks hold.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_store.h"

namespace cadre {

class BlockPool {
 public:
  explicit BlockPool(int64_t num_blocks);

  int64_t num_blocks() const { return static_cast<int64_t>(ref_counts_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int32_t ref_count(BlockId id) const;

  // A block with one reference. Asking when num_free() is 0 is a bug.
  BlockId allocate();
  // One more holder of an allocated block.
  void add_ref(BlockId id);
  // One holder less; the last one's release makes the block free.
  void release(BlockId id);

 private:
  std::vector<BlockId> free_;  // a stack: the block released last is the warmest
  std::vector<int32_t> ref_counts_;
};

}  // namespace cadre
