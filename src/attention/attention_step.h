// What both attention kinds need to know of a step: which rows belong to which sequence, where they stand, their angles.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kv/kv_store.h"

namespace cadre {

// Consecutive rows of one sequence. blocks covers all positions up to the last row.
struct RowGroup {
  int64_t first_row = 0, num_rows = 0;
  int64_t start_position = 0;
  std::span<const BlockId> blocks;
  int64_t num_prompt_tokens = 0;  // 0: all rows as in decoding
};

struct AttentionStep {
  std::span<const RowGroup> groups;
  std::span<const int32_t> group_of_row;
  std::span<const int64_t> positions;  // of each row
  const float* cos = nullptr;          // [rows, half_dim]
  const float* sin = nullptr;
  KvStore* kv = nullptr;
  int64_t layer = 0;
  ThreadPool* pool = nullptr;
  // When heads are split over ranks: adds up `count` values over them (norms over all heads need sums of all).
  using SumOverHeadParts = FunctionRef<void(float* values, int64_t count)>;
  const SumOverHeadParts* sum_over_head_parts = nullptr;
  int num_head_parts = 1;

  int64_t num_rows() const { return static_cast<int64_t>(positions.size()); }
  BlockId block_of_row(int64_t row) const {
    return groups[static_cast<size_t>(group_of_row[static_cast<size_t>(row)])].blocks[static_cast<size_t>(positions[static_cast<size_t>(row)] / 16)];
  }
  // A block's first row clears it, so that what an earlier owner left (a NaN, say) cannot reach a later one's sums.
  void clear_new_blocks() const;
};

}  // namespace cadre
