// The byte arithmetic of the engine: planner, start-up check, allocator and metrics all call these and nothing else.
#pragma once

#include "config/model_config.h"
#include "tensor/dtype.h"

namespace cadre {

// Tokens of one KV block.
inline constexpr int64_t kKvBlockTokens = 16;

// Values cached for one token in one layer: MLA kv_lora_rank + qk_rope_head_dim; GQA 2 * num_kv_heads * head_dim.
int64_t kv_values_per_token_layer(const ModelConfig& config);

// Bytes of KV cache for one token over all layers on one rank.
int64_t kv_bytes_per_token(const ModelConfig& config, DType kv_dtype);

// Bytes of one routed expert's weights as the checkpoint stores them, scales and biases included.
int64_t expert_bytes(const ModelConfig& config);

}  // namespace cadre
