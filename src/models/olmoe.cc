// OLMoE: every layer sparse, QK norm over all heads together.
#include "models/families.h"

namespace cadre {

LayerWeights load_olmoe_layer(WeightLoader& loader, int64_t layer) {
  const ModelConfig& c = loader.config();
  const std::string prefix = layer_prefix(layer), moe = prefix + "mlp.";
  LayerWeights w;
  w.attention = load_gqa(loader, prefix + "self_attn.");
  w.feed_forward = MoeWeights{loader.linear_as_stored(moe + "gate", c.moe.router.num_experts, c.hidden_size), {},
                              load_experts(loader, moe + "experts.", "gate_proj", "up_proj", "down_proj"), {}, {}};
  return with_norms(loader, layer, std::move(w));
}

}  // namespace cadre
