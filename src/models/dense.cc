// Dense decoders: Qwen3 and Llama.
#include "models/families.h"

namespace cadre {

LayerWeights load_dense_layer(WeightLoader& loader, int64_t layer) {
  const std::string prefix = layer_prefix(layer);
  LayerWeights w;
  w.attention = load_gqa(loader, prefix + "self_attn.");
  w.feed_forward = load_mlp(loader, prefix + "mlp.", loader.config().dense_intermediate, loader.shard().dense);
  return with_norms(loader, layer, std::move(w));
}

}  // namespace cadre
