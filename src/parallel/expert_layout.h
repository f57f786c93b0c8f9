// Where the parts of one routed expert lie in its slot, and so how many bytes a slot takes.
#pragma once

#include <cstdint>

#include "parallel/shard.h"
#include "tensor/packed_layout.h"

namespace cadre {

// Where the parts of one expert lie in its slot.
struct ExpertLayout {
  ExpertLayout() = default;
  ExpertLayout(WeightFormat format, int64_t hidden, int64_t intermediate, bool has_bias);
  PackedLayout gate_up;  // of gate and of up: [F, H]
  PackedLayout down;     // [H, F]
  bool has_bias = false;
  // Inputs of all three are rounded to FP8: of gate and up before they come here, of down here.
  bool rounds_inputs = false;
  int64_t up_offset = 0, down_offset = 0, gate_bias_offset = 0, up_bias_offset = 0, down_bias_offset = 0;
  int64_t slot_bytes = 0;
};

// Of the part that a rank has of each expert. All experts of a layer are laid out alike, so FP8 ones whose parts do not all begin
// on a scale block's border are float32. quantization: what they become then.
ExpertLayout rank_expert_layout(WeightFormat format, int64_t hidden, int64_t intermediate, const Part& part, bool has_bias, std::optional<WeightFormat> quantization = {});

}  // namespace cadre
