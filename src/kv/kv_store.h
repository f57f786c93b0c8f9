// The KV cache memory of one rank: for each layer, num_blocks blocks of 16 tokens. What lies inside a block is the
// attention implementation's business; the store only knows sizes. Ids of blocks are given out by BlockPool.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "tensor/tensor.h"

namespace cadre {

using BlockId = int32_t;

struct KvLayout {
  int64_t num_layers = 0;
  int64_t block_bytes = 0;  // one block of one layer
  int64_t bytes_per_block_all_layers() const { return num_layers * block_bytes; }
};

class KvStore {
 public:
  KvStore(KvLayout layout, int64_t num_blocks)
      : layout_(layout), num_blocks_(num_blocks), memory_(static_cast<size_t>(layout.bytes_per_block_all_layers() * num_blocks)) {}

  const KvLayout& layout() const { return layout_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }

  // Start of a block of a layer, layout().block_bytes bytes.
  std::byte* block(int64_t layer, BlockId id) {
    CADRE_CHECK(id >= 0 && id < num_blocks_, "block {} of {}", id, num_blocks_);
    return memory_.data() + (layer * num_blocks_ + id) * layout_.block_bytes;
  }

 private:
  KvLayout layout_;
  int64_t num_blocks_;
  Buffer memory_;
};

}  // namespace cadre
