// gpt-oss: attention sinks, sliding windows in alternating layers, experts with biases in fused tensors (bf16 or MXFP4).
#include "models/families.h"

namespace cadre {

LayerWeights load_gpt_oss_layer(WeightLoader& loader, int64_t layer) {
  const ModelConfig& c = loader.config();
  const std::string prefix = layer_prefix(layer);
  LayerWeights w;
  w.attention = load_gqa(loader, prefix + "self_attn.");
  w.feed_forward = MoeWeights{loader.linear_as_stored(prefix + "mlp.router", c.moe.router.num_experts, c.hidden_size, true), {},
                              loader.gpt_oss_experts(prefix + "mlp.experts"), {}, {}};
  return with_norms(loader, layer, std::move(w));
}

}  // namespace cadre
