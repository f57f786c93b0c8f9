// One small valid configuration of each family, as published files write it, for tests to vary.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace cadre::testing {

inline std::string_view small_config(std::string_view model_type) {
  if (model_type == "deepseek_v3")
    return R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 320, "hidden_size": 64,
      "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
      "num_key_value_heads": 4, "n_shared_experts": 1, "n_routed_experts": 16, "routed_scaling_factor": 2.5,
      "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "v_head_dim": 32, "qk_nope_head_dim": 32, "n_group": 4,
      "topk_group": 2, "num_experts_per_tok": 4, "first_k_dense_replace": 1, "norm_topk_prob": true,
      "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu", "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": false, "tie_word_embeddings": false,
      "moe_layer_freq": 1, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16"})";
  if (model_type == "deepseek_v2")
    return R"({"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": 320, "hidden_size": 64,
      "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
      "num_key_value_heads": 4, "n_shared_experts": 2, "n_routed_experts": 16, "routed_scaling_factor": 1.0,
      "kv_lora_rank": 48, "q_lora_rank": null, "qk_rope_head_dim": 16, "v_head_dim": 32, "qk_nope_head_dim": 32,
      "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3,
      "first_k_dense_replace": 1, "norm_topk_prob": false, "scoring_func": "softmax", "hidden_act": "silu",
      "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": false,
      "eos_token_id": 1, "torch_dtype": "bfloat16"})";
  if (model_type == "qwen3_moe")
    return R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 320, "hidden_size": 64,
      "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 8,
      "num_key_value_heads": 2, "head_dim": 32, "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": true,
      "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu", "max_position_embeddings": 2048,
      "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_scaling": null, "attention_bias": false,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";
  if (model_type == "qwen2_moe")
    return R"({"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "vocab_size": 320, "hidden_size": 64,
      "intermediate_size": 96, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 12, "num_experts_per_tok": 3,
      "norm_topk_prob": false, "hidden_act": "silu", "max_position_embeddings": 2048, "rope_theta": 1000000.0,
      "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 21})";
  if (model_type == "mixtral")
    return R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 320, "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
      "num_local_experts": 8, "num_experts_per_tok": 2, "hidden_act": "silu", "max_position_embeddings": 2048,
      "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": null, "torch_dtype": "bfloat16"})";
  if (model_type == "olmoe")
    return R"({"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "vocab_size": 320, "hidden_size": 64,
      "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
      "num_experts": 16, "num_experts_per_tok": 4, "hidden_act": "silu", "clip_qkv": null})";
  if (model_type == "glm4_moe")
    return R"({"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "vocab_size": 320, "hidden_size": 64,
      "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 8,
      "num_key_value_heads": 2, "head_dim": 32, "partial_rotary_factor": 0.5, "n_routed_experts": 16,
      "n_shared_experts": 1, "num_experts_per_tok": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
      "norm_topk_prob": true, "routed_scaling_factor": 1.0, "use_qk_norm": false, "attention_bias": true,
      "hidden_act": "silu", "max_position_embeddings": 2048, "rope_theta": 1000000.0})";
  if (model_type == "gpt_oss")
    return R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 320, "hidden_size": 64,
      "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32,
      "num_local_experts": 8, "num_experts_per_tok": 4, "sliding_window": 16, "layer_types": ["sliding_attention",
      "full_attention", "sliding_attention", "full_attention"], "hidden_act": "silu", "swiglu_limit": 7.0,
      "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "attention_bias": true,
      "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
      "original_max_position_embeddings": 64, "truncate": false}})";
  if (model_type == "qwen3")
    return R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 320, "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
      "hidden_act": "silu", "max_position_embeddings": 2048, "rope_theta": 1000000.0, "tie_word_embeddings": true})";
  return R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320, "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
      "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
      "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 64}})";
}

// The small configuration with the keys of the JSON object `changes` set.
inline json::object small_config_with(std::string_view model_type, std::string_view changes) {
  json::object config = parse_json(small_config(model_type), "config.json").as_object();
  const json::object change = parse_json(changes, "changes").as_object();
  for (const auto& [key, value] : change) config[key] = value;
  return config;
}

inline constexpr std::string_view kModelTypes[] = {"deepseek_v2", "deepseek_v3", "qwen3_moe", "qwen2_moe", "mixtral",
                                                   "olmoe",       "glm4_moe",    "gpt_oss",   "qwen3",     "llama"};

}  // namespace cadre::testing
