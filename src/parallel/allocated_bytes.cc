#include "parallel/allocated_bytes.h"

#include "parallel/expert_layout.h"

namespace cadre {
namespace {

constexpr int64_t kFloatBytes = 4;

int64_t packed_bytes(WeightFormat format, int64_t n, int64_t k) { return PackedLayout(format, n, k).total_bytes; }

// A slice that does not begin on the border of an FP8 block is held as float32.
WeightFormat slice_format(const TensorClass& c, const Slice& slice, std::optional<WeightFormat> quantization) {
  const WeightFormat format = packed_format(c.spec.dtype);
  const bool stays = c.spec.kind == TensorKind::kRouter || c.spec.kind == TensorKind::kEmbedding;
  return loaded_format(format == WeightFormat::kFp8Block && slice.first % kFp8BlockN != 0 ? WeightFormat::kF32 : format, stays ? std::nullopt : quantization);
}

// The latent projections of this rank's heads, in the three forms that attention takes; FP8 becomes float32.
int64_t latent_bytes(const TensorClass& c, const ModelConfig& config, const Slice& slice) {
  const AttentionConfig& a = config.attention;
  const int64_t nope = a.qk_nope_head_dim, v = a.v_head_dim, rank = a.kv_lora_rank, heads = slice.count / (nope + v);
  const WeightFormat format = c.spec.dtype == DType::kF8E4M3 ? WeightFormat::kF32 : packed_format(c.spec.dtype);
  return heads * (packed_bytes(format, rank, nope) + packed_bytes(format, nope, rank) + packed_bytes(format, v, rank));
}

int64_t slice_bytes(const TensorClass& c, const ModelConfig& config, const Layout& layout, int world_rank, const Slice& slice, std::optional<WeightFormat> quantization) {
  if (c.spec.is_scale) return 0;  // lies in the packed matrix
  Shape shape = c.spec.shape;
  shape[static_cast<size_t>(c.shard.dim)] = slice.count;
  if (c.module == "kv_b_proj") return latent_bytes(c, config, slice);
  // Outputs of parts add up: the part with the first inputs brings the bias.
  if (c.module == "o_proj" && c.part == "bias" && layout.coords(world_rank).attn_tp > 0) return 0;
  const bool is_vector = c.spec.shape.size() == 1 || c.module == "shared_expert_gate";
  if (is_vector) return num_elements(shape) * kFloatBytes;
  return packed_bytes(slice_format(c, slice, quantization), shape[0], shape[1]);
}

// One of an expert's tensors stands for the whole slot.
bool names_slot(const TensorClass& c) {
  const bool is_gate = c.module == "gate_proj" || c.module == "w1" || (c.module == "gate_up_proj" && c.part != "bias");
  const bool is_first = c.shard.expert == 0 || c.shard.expert == TensorShard::kEachExpert || c.shard.expert == TensorShard::kAllExperts;
  return is_gate && is_first && !c.spec.is_scale;
}

int64_t slot_bytes(const TensorClass& c, const ModelConfig& config, const Layout& layout, int world_rank, std::optional<WeightFormat> quantization) {
  const bool is_fused = c.shard.expert == TensorShard::kAllExperts;
  const WeightFormat format = c.spec.dtype == DType::kU8 ? WeightFormat::kMxfp4 : packed_format(c.spec.dtype);
  return rank_expert_layout(format, config.hidden_size, config.moe.expert_intermediate, shard_of(layout, world_rank).expert, is_fused, quantization).slot_bytes;
}

}  // namespace

RankBytes allocated_bytes(const std::vector<TensorClass>& classes, const ModelConfig& config, const Layout& layout, int64_t slots_per_rank, int world_rank, std::optional<WeightFormat> quantization) {
  RankBytes out;
  for (const TensorClass& c : classes) {
    if (c.spec.kind == TensorKind::kRoutedExpert) {
      if (names_slot(c)) out.routed += c.count * slots_per_rank * slot_bytes(c, config, layout, world_rank, quantization);
      continue;
    }
    const Slice slice = shard_slice(c.shard, c.spec, config, layout, world_rank);
    rank_bytes_of(out, c.spec.kind) += c.count * slice_bytes(c, config, layout, world_rank, slice, quantization);
  }
  return out;
}

}  // namespace cadre
