// A step's input as bytes, for the ranks that split the heads of its sequences: they run the same step without a scheduler
// of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/model.h"

namespace cadre {

class StepMessage {
 public:
  // Longest message for this many rows over this many data-parallel ranks, with blocks for `max_blocks` in all.
  static int64_t max_bytes(int64_t max_rows, int64_t max_blocks, int num_dp_ranks);

  // The bytes stay valid until the next call.
  std::span<const std::byte> write(const StepInput& input);
  static constexpr int64_t kStop = -1;  // as num_sequences: no more steps
  std::span<const std::byte> write_stop();

  // False when it says stop. input() views this object.
  bool read(std::span<const std::byte> bytes);
  StepInput input() const { return {sequences_, dp_rows_, order_}; }

 private:
  std::vector<std::byte> bytes_;
  std::vector<int32_t> values_;
  std::vector<int64_t> dp_rows_;
  int64_t order_ = 0;
  std::vector<SequenceRows> sequences_;
};

}  // namespace cadre
