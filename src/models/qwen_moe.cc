// Qwen2-MoE (QKV biases, a shared expert behind a sigmoid gate) and Qwen3-MoE (QK norm, no shared expert); some layers
// may be dense (decoder_sparse_step, mlp_only_layers).
#include "models/families.h"

namespace cadre {
namespace {

MoeWeights load_moe(WeightLoader& loader, const std::string& prefix) {
  const ModelConfig& c = loader.config();
  MoeWeights w{loader.linear_as_stored(prefix + "gate", c.moe.router.num_experts, c.hidden_size), {},
               load_experts(loader, prefix + "experts.", "gate_proj", "up_proj", "down_proj"), {}, {}};
  if (c.moe.shared_intermediate > 0) w.shared = load_mlp(loader, prefix + "shared_expert.", c.moe.shared_intermediate, loader.shard().shared);
  if (c.moe.shared_has_gate) w.shared_gate = loader.vector(prefix + "shared_expert_gate.weight", c.hidden_size);
  return w;
}

}  // namespace

LayerWeights load_qwen_moe_layer(WeightLoader& loader, int64_t layer) {
  const ModelConfig& c = loader.config();
  const std::string prefix = layer_prefix(layer);
  LayerWeights w;
  w.attention = load_gqa(loader, prefix + "self_attn.");
  if (c.layers[static_cast<size_t>(layer)].is_sparse) w.feed_forward = load_moe(loader, prefix + "mlp.");
  else w.feed_forward = load_mlp(loader, prefix + "mlp.", c.dense_intermediate, loader.shard().dense);
  return with_norms(loader, layer, std::move(w));
}

}  // namespace cadre
