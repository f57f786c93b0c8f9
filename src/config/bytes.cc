#include "config/bytes.h"

#include <algorithm>

#include "config/tensor_spec.h"

namespace cadre {

int64_t kv_values_per_token_layer(const ModelConfig& config) {
  const AttentionConfig& a = config.attention;
  if (a.kind == AttentionKind::kMla) return a.kv_lora_rank + a.qk_rope_head_dim;
  return 2 * a.num_kv_heads * a.head_dim;
}

int64_t kv_bytes_per_token(const ModelConfig& config, DType kv_dtype) {
  return kv_values_per_token_layer(config) * config.num_layers * static_cast<int64_t>(dtype_bytes(kv_dtype));
}

int64_t expert_bytes(const ModelConfig& config) {
  const auto sparse =
      std::find_if(config.layers.begin(), config.layers.end(), [](const LayerConfig& l) { return l.is_sparse; });
  if (sparse == config.layers.end() || config.moe.router.num_experts == 0) return 0;
  int64_t bytes = 0;
  for (const TensorSpec& spec : routed_expert_tensors(config, sparse - config.layers.begin())) bytes += spec.bytes();
  return bytes / config.moe.router.num_experts;
}

}  // namespace cadre
