#include "kv/block_pool.h"

#include <limits>

#include "base/check.h"

namespace cadre {

BlockPool::BlockPool(int64_t num_blocks) {
  CADRE_CHECK(num_blocks >= 0 && num_blocks <= std::numeric_limits<BlockId>::max(), "{} blocks", num_blocks);
  ref_counts_.resize(static_cast<size_t>(num_blocks), 0);
  free_.reserve(static_cast<size_t>(num_blocks));
  for (int64_t id = num_blocks - 1; id >= 0; --id) free_.push_back(static_cast<BlockId>(id));
}

int32_t BlockPool::ref_count(BlockId id) const {
  CADRE_CHECK(id >= 0 && id < num_blocks(), "block {} of {}", id, num_blocks());
  return ref_counts_[static_cast<size_t>(id)];
}

BlockId BlockPool::allocate() {
  CADRE_CHECK(!free_.empty(), "all {} blocks are taken", num_blocks());
  const BlockId id = free_.back();
  free_.pop_back();
  ref_counts_[static_cast<size_t>(id)] = 1;
  return id;
}

void BlockPool::add_ref(BlockId id) {
  CADRE_CHECK(ref_count(id) > 0, "block {} is free", id);
  ++ref_counts_[static_cast<size_t>(id)];
}

void BlockPool::release(BlockId id) {
  CADRE_CHECK(ref_count(id) > 0, "block {} is free", id);
  if (--ref_counts_[static_cast<size_t>(id)] == 0) free_.push_back(id);
}

}  // namespace cadre
