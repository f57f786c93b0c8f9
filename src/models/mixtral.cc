// Mixtral: every layer sparse; experts named w1 (gate), w3 (up), w2 (down).
#include "models/families.h"

namespace cadre {

LayerWeights load_mixtral_layer(WeightLoader& loader, int64_t layer) {
  const ModelConfig& c = loader.config();
  const std::string prefix = layer_prefix(layer), moe = prefix + "block_sparse_moe.";
  LayerWeights w;
  w.attention = load_gqa(loader, prefix + "self_attn.");
  w.feed_forward = MoeWeights{loader.linear_as_stored(moe + "gate", c.moe.router.num_experts, c.hidden_size), {}, load_experts(loader, moe + "experts.", "w1", "w3", "w2"), {}, {}};
  return with_norms(loader, layer, std::move(w));
}

}  // namespace cadre
