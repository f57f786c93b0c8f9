// GLM-4.5 and later MoE: grouped-query attention with partial rotary, DeepSeek-V3's router, a shared expert, first
// layers dense.
#include "models/families.h"

namespace cadre {

LayerWeights load_glm4_moe_layer(WeightLoader& loader, int64_t layer) {
  const ModelConfig& c = loader.config();
  const std::string prefix = layer_prefix(layer), mlp = prefix + "mlp.";
  LayerWeights w;
  w.attention = load_gqa(loader, prefix + "self_attn.");
  if (c.layers[static_cast<size_t>(layer)].is_sparse) {
    MoeWeights moe{loader.linear_as_stored(mlp + "gate", c.moe.router.num_experts, c.hidden_size), {},
                   load_experts(loader, mlp + "experts.", "gate_proj", "up_proj", "down_proj"), {}, {}};
    moe.correction_bias = loader.vector(mlp + "gate.e_score_correction_bias", c.moe.router.num_experts);
    if (c.moe.shared_intermediate > 0) moe.shared = load_mlp(loader, mlp + "shared_experts.", c.moe.shared_intermediate, loader.shard().shared);
    w.feed_forward = std::move(moe);
  } else {
    w.feed_forward = load_mlp(loader, mlp, c.dense_intermediate, loader.shard().dense);
  }
  return with_norms(loader, layer, std::move(w));
}

}  // namespace cadre
