#include "parallel/expert_layout.h"

namespace cadre {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

ExpertLayout::ExpertLayout(WeightFormat format, int64_t hidden, int64_t intermediate, bool bias)
    : gate_up(format, intermediate, hidden), down(format, hidden, intermediate), has_bias(bias) {
  up_offset = gate_up.total_bytes;
  down_offset = up_offset + gate_up.total_bytes;
  gate_bias_offset = down_offset + down.total_bytes;
  up_bias_offset = gate_bias_offset + (bias ? aligned(intermediate * 4) : 0);
  down_bias_offset = up_bias_offset + (bias ? aligned(intermediate * 4) : 0);
  slot_bytes = down_bias_offset + (bias ? aligned(hidden * 4) : 0);
}

ExpertLayout rank_expert_layout(WeightFormat format, int64_t hidden, int64_t intermediate, const Part& part, bool has_bias, std::optional<WeightFormat> quantization) {
  const bool is_whole = part.of == 1 || intermediate % (kFp8BlockN * part.of) == 0;
  return ExpertLayout(loaded_format(format == WeightFormat::kFp8Block && !is_whole ? WeightFormat::kF32 : format, quantization), hidden, part.of_total(intermediate).count, has_bias);
}

}  // namespace cadre
