#include "config/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "config/test_configs.h"
#include "tests/testing.h"

namespace cadre {
namespace {

using testing::kModelTypes;
using testing::small_config_with;

ModelConfig parse_with(std::string_view model_type, std::string_view changes) {
  return parse_model_config(small_config_with(model_type, changes));
}

ModelConfig parse_without(std::string_view model_type, std::initializer_list<std::string_view> keys) {
  json::object config = small_config_with(model_type, "{}");
  for (const std::string_view key : keys) config.erase(key);
  return parse_model_config(config);
}

std::string refusal(std::string_view model_type, std::string_view changes) {
  try {
    parse_with(model_type, changes);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_refused(std::string_view model_type, std::string_view changes, std::string_view part) {
  const std::string message = refusal(model_type, changes);
  EXPECT_NE(message.find(part), std::string::npos)
      << model_type << " with " << changes << ": '" << message << "' does not say '" << part << "'";
  EXPECT_NE(message.find("expected"), std::string::npos) << message;
  EXPECT_NE(message.find("found"), std::string::npos) << message;
}

TEST(ModelConfig, EveryFamilyParses) {
  for (const std::string_view type : kModelTypes) {
    const ModelConfig model = parse_with(type, "{}");
    EXPECT_EQ(family_name(model.family), type);
    EXPECT_EQ(model.hidden_size, 64);
    EXPECT_EQ(static_cast<int64_t>(model.layers.size()), model.num_layers);
  }
}

TEST(ModelConfig, UnknownArchitectureIsRefusedByNameWithTheKnownOnes) {
  for (const char* changes : {R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral"})",
                              R"({"architectures": ["Qwen3ForSequenceClassification"], "model_type": "qwen3"})"}) {
    const std::string message = refusal("qwen3", changes);
    EXPECT_NE(message.find("DeepseekV3ForCausalLM"), std::string::npos) << message;
    EXPECT_NE(message.find("LlamaForCausalLM"), std::string::npos) << message;
  }
  expect_refused("qwen3", R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral"})",
                 "MistralForCausalLM");
  expect_refused("qwen3", R"({"architectures": null, "model_type": "mistral"})", "mistral");
  expect_refused("qwen3", R"({"architectures": null, "model_type": null})", "model_type");
  expect_refused("qwen3", R"({"architectures": ["LlamaForCausalLM"]})", "LlamaForCausalLM");
  EXPECT_EQ(parse_with("deepseek_v3", R"({"model_type": "kimi_k2"})").family, Family::kDeepseekV3);
  EXPECT_EQ(parse_with("qwen3", R"({"architectures": null})").family, Family::kQwen3);
  EXPECT_EQ(parse_with("qwen3", R"({"model_type": null})").family, Family::kQwen3);
}

TEST(ModelConfig, SizesAreRequired) {
  const std::map<std::string_view, std::vector<std::string_view>> extra = {
      {"deepseek_v3", {"n_routed_experts", "moe_intermediate_size", "num_experts_per_tok", "intermediate_size"}},
      {"qwen3_moe", {"num_experts", "moe_intermediate_size", "num_experts_per_tok"}},
      {"mixtral", {"num_local_experts", "intermediate_size", "num_experts_per_tok"}},
      {"llama", {"intermediate_size"}}};
  for (const std::string_view type : kModelTypes) {
    std::vector<std::string_view> keys = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"};
    if (const auto it = extra.find(type); it != extra.end())
      keys.insert(keys.end(), it->second.begin(), it->second.end());
    for (const std::string_view key : keys) {
      try {
        parse_without(type, {key});
        ADD_FAILURE() << type << " without " << key << " parsed";
      } catch (const Error& e) {
        EXPECT_NE(std::string_view(e.what()).find(key), std::string_view::npos) << e.what();
      }
    }
  }
  // The dense width matters only where a layer is dense.
  EXPECT_NO_THROW(parse_without("qwen3_moe", {"intermediate_size"}));
}

TEST(ModelConfig, DefaultsAreThoseOfTheFamily) {
  EXPECT_EQ(parse_without("llama", {"rms_norm_eps"}).rms_norm_eps, 1e-6);
  EXPECT_EQ(parse_without("mixtral", {"rms_norm_eps"}).rms_norm_eps, 1e-5);
  EXPECT_EQ(parse_without("mixtral", {"rope_theta"}).attention.rope.theta, 1e6);
  EXPECT_EQ(parse_without("qwen3", {"rope_theta"}).attention.rope.theta, 1e4);
  EXPECT_EQ(parse_without("mixtral", {"max_position_embeddings"}).max_position, 131072);
  EXPECT_EQ(parse_without("qwen3", {"head_dim"}).attention.head_dim, 128);
  EXPECT_EQ(parse_without("qwen3_moe", {"head_dim"}).attention.head_dim, 8);
  EXPECT_EQ(parse_without("gpt_oss", {"head_dim"}).attention.head_dim, 64);
  EXPECT_EQ(parse_without("llama", {"num_key_value_heads"}).attention.num_kv_heads, 8);
  EXPECT_EQ(parse_without("qwen3_moe", {"num_key_value_heads"}).attention.num_kv_heads, 4);
  EXPECT_FALSE(parse_without("qwen3_moe", {"norm_topk_prob"}).moe.router.renormalize);
  EXPECT_TRUE(parse_without("deepseek_v3", {"norm_topk_prob"}).moe.router.renormalize);
  EXPECT_TRUE(parse_without("glm4_moe", {"norm_topk_prob"}).moe.router.renormalize);
  EXPECT_TRUE(parse_with("mixtral", "{}").moe.router.renormalize);
  EXPECT_FALSE(parse_with("olmoe", "{}").moe.router.renormalize);
  EXPECT_EQ(parse_without("glm4_moe", {"partial_rotary_factor"}).attention.rope.rotary_dim, 16);
  EXPECT_FALSE(parse_without("glm4_moe", {"attention_bias"}).attention.qkv_bias);
  EXPECT_TRUE(parse_without("gpt_oss", {"attention_bias"}).attention.o_bias);
  EXPECT_TRUE(parse_with("qwen2_moe", "{}").attention.qkv_bias);
  EXPECT_FALSE(parse_with("qwen2_moe", "{}").attention.o_bias);
  EXPECT_EQ(parse_without("deepseek_v2", {"n_shared_experts"}).moe.shared_intermediate, 64);
  EXPECT_EQ(parse_with("deepseek_v2", R"({"n_shared_experts": null})").moe.shared_intermediate, 0);
  EXPECT_EQ(parse_with("deepseek_v2", "{}").attention.q_lora_rank, 0);
  EXPECT_EQ(parse_without("deepseek_v3", {"q_lora_rank"}).attention.q_lora_rank, 1536);
  EXPECT_EQ(parse_without("deepseek_v3", {"routed_scaling_factor"}).moe.router.scaling_factor, 2.5);
  const ModelConfig sinks = parse_without("gpt_oss", {"rope_scaling", "layer_types", "sliding_window"});
  EXPECT_EQ(sinks.attention.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(sinks.attention.rope.original_max_position, 4096);
  EXPECT_FALSE(sinks.attention.rope.yarn_truncate);
  EXPECT_EQ(sinks.layers[0].sliding_window, 128);
  EXPECT_EQ(sinks.layers[1].sliding_window, 0);
}

TEST(ModelConfig, LatentNormsKeepTheirOwnEpsilon) {
  EXPECT_EQ(parse_with("deepseek_v3", R"({"rms_norm_eps": 1e-5})").attention.latent_norm_eps, 1e-6);
}

TEST(ModelConfig, BiasesByFamily) {
  for (const std::string_view type : {"llama", "qwen3", "qwen3_moe", "olmoe"}) {
    const ModelConfig model = parse_with(type, R"({"attention_bias": true})");
    EXPECT_TRUE(model.attention.qkv_bias && model.attention.o_bias) << type;
  }
  const ModelConfig glm = parse_with("glm4_moe", R"({"attention_bias": true, "use_qk_norm": true})");
  EXPECT_TRUE(glm.attention.qkv_bias);
  EXPECT_FALSE(glm.attention.o_bias);
  EXPECT_EQ(glm.attention.qk_norm, QkNorm::kPerHead);
  EXPECT_FALSE(parse_with("qwen2_moe", R"({"qkv_bias": false})").attention.qkv_bias);
  expect_refused("llama", R"({"mlp_bias": true})", "mlp_bias");
  expect_refused("deepseek_v3", R"({"attention_bias": true})", "attention_bias");
  expect_refused("qwen3_moe", R"({"qkv_bias": true})", "qkv_bias");
  expect_refused("qwen3_moe", R"({"use_qk_norm": false})", "use_qk_norm");
}

TEST(ModelConfig, YarnOfDeepseekScalesTheSoftmaxToo) {
  const ModelConfig v3 =
      parse_with("deepseek_v3", R"({"rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
      "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}})");
  const double m = 0.1 * std::log(40.0) + 1.0;
  EXPECT_DOUBLE_EQ(v3.attention.softmax_scale, m * m / std::sqrt(48.0));
  EXPECT_DOUBLE_EQ(v3.attention.rope.cos_sin_scale, 1.0);
  EXPECT_TRUE(v3.attention.rope.interleaved);
  EXPECT_EQ(v3.attention.rope.rotary_dim, 16);
  const ModelConfig v2 = parse_with(
      "deepseek_v2", R"({"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.5}})");
  EXPECT_DOUBLE_EQ(v2.attention.softmax_scale, std::pow(0.05 * std::log(40.0) + 1.0, 2) / std::sqrt(48.0));
  EXPECT_DOUBLE_EQ(v2.attention.rope.cos_sin_scale, m / (0.05 * std::log(40.0) + 1.0));
  EXPECT_EQ(v2.attention.rope.original_max_position, 2048);  // falls back to the context
  const ModelConfig plain = parse_with("deepseek_v3", R"({"rope_scaling": {"type": "yarn", "factor": 40}})");
  EXPECT_DOUBLE_EQ(plain.attention.softmax_scale, 1 / std::sqrt(48.0));
  EXPECT_DOUBLE_EQ(plain.attention.rope.cos_sin_scale, m);
  EXPECT_FALSE(parse_with("deepseek_v3", R"({"rope_interleave": false})").attention.rope.interleaved);
  expect_refused("deepseek_v2", R"({"rope_interleave": false})", "rope_interleave");
}

TEST(ModelConfig, YarnOfOtherFamilies) {
  const ModelConfig oss = parse_with("gpt_oss", "{}");
  EXPECT_DOUBLE_EQ(oss.attention.rope.cos_sin_scale, 0.1 * std::log(32.0) + 1.0);
  EXPECT_DOUBLE_EQ(oss.attention.softmax_scale, 1 / std::sqrt(32.0));
  EXPECT_FALSE(oss.attention.rope.yarn_truncate);
  const ModelConfig qwen = parse_with("qwen3", R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
      "original_max_position_embeddings": 512, "attention_factor": 0.8}})");
  EXPECT_EQ(qwen.attention.rope.cos_sin_scale, 0.8);
  EXPECT_TRUE(qwen.attention.rope.yarn_truncate);
  EXPECT_NEAR(parse_with("qwen3",
                         R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attn_factor": 0.8782488562869419}})")
                  .attention.rope.cos_sin_scale,
              1.0, 1e-9);
  const ModelConfig both = parse_with(
      "qwen3", R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 1.0}})");
  EXPECT_DOUBLE_EQ(both.attention.rope.cos_sin_scale, (0.2 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1));
  EXPECT_DOUBLE_EQ(both.attention.softmax_scale, 1 / std::sqrt(32.0));
}

TEST(ModelConfig, NewerRopeKeysMeanTheSame) {
  const ModelConfig older = parse_with("llama", "{}");
  const ModelConfig newer =
      parse_with("llama", R"({"rope_theta": null, "rope_scaling": null, "rope_parameters": {"rope_theta": 500000.0,
      "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}})");
  EXPECT_EQ(older, newer);
  const ModelConfig nested = parse_with("qwen3", R"({"rope_theta": null, "rope_parameters": {
      "full_attention": {"rope_theta": 5000.0, "rope_type": "default"}, "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}})");
  EXPECT_EQ(nested.attention.rope.theta, 5000.0);
  expect_refused(
      "qwen3",
      R"({"rope_parameters": {"full_attention": {"rope_theta": 5000.0}, "sliding_attention": {"rope_theta": 1e4}}})",
      "sliding_attention");
  EXPECT_EQ(
      parse_with("glm4_moe", R"({"partial_rotary_factor": null, "rope_parameters": {"partial_rotary_factor": 0.25}})")
          .attention.rope.rotary_dim,
      8);
  EXPECT_EQ(parse_with("llama", R"({"torch_dtype": null, "dtype": "float16"})").dtype, DType::kF16);
}

TEST(ModelConfig, RopeRefusals) {
  for (const char* type : {"dynamic", "longrope", "su", "ntk", "mrope", "proportional"})
    expect_refused("llama", fmt::format(R"({{"rope_scaling": {{"type": "{}", "factor": 2.0}}}})", type), type);
  expect_refused("llama", R"({"rope_scaling": {"rope_type": "default", "mrope_section": [16, 24, 24]}})",
                 "mrope_section");
  expect_refused("llama", R"({"rope_scaling": {"rope_type": "yarn", "type": "linear", "factor": 2}})", "linear");
  expect_refused("llama", R"({"rope_scaling": {"rope_type": "yarn"}})", "factor");
  expect_refused("llama", R"({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}})", "factor");
  expect_refused(
      "llama", R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})",
      "high_freq_factor");
  expect_refused("llama", R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})", "low_freq_factor");
  expect_refused("llama", R"({"rope_theta": -1})", "rope_theta");
  expect_refused("llama", R"({"rope_theta": 0})", "rope_theta");
  expect_refused("llama", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor");
  expect_refused("glm4_moe", R"({"partial_rotary_factor": 0.1})", "rotating");
  expect_refused("qwen3", R"({"head_dim": 31})", "even");
  expect_refused("gpt_oss", R"({"rope_scaling": null})", "rope_scaling");
}

TEST(ModelConfig, SlidingWindows) {
  EXPECT_EQ(parse_with("mixtral", R"({"sliding_window": 8})").layers[2].sliding_window, 8);
  EXPECT_EQ(parse_with("mixtral", "{}").layers[2].sliding_window, 0);
  const ModelConfig qwen3 =
      parse_with("qwen3", R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2})");
  EXPECT_EQ(qwen3.layers[1].sliding_window, 0);
  EXPECT_EQ(qwen3.layers[2].sliding_window, 8);
  EXPECT_EQ(parse_with("qwen3", R"({"use_sliding_window": false, "sliding_window": 8, "max_window_layers": 0})")
                .layers[2]
                .sliding_window,
            0);
  const ModelConfig typed = parse_with("qwen3", R"({"use_sliding_window": true, "sliding_window": 8, "layer_types":
      ["sliding_attention", "full_attention", "full_attention"]})");
  EXPECT_EQ(typed.layers[0].sliding_window, 8);
  EXPECT_EQ(typed.layers[2].sliding_window, 0);
  EXPECT_EQ(parse_with("qwen3_moe", R"({"use_sliding_window": true, "sliding_window": 8})").layers[0].sliding_window,
            8);
  expect_refused("qwen3_moe", R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2})",
                 "max_window_layers");
  expect_refused("qwen2_moe", R"({"use_sliding_window": true})", "layer_types");
  expect_refused("qwen3", R"({"layer_types": ["sliding_attention", "full_attention", "full_attention"]})",
                 "sliding_window");
  expect_refused("qwen3", R"({"layer_types": ["full_attention"]})", "layer_types");
  expect_refused("qwen3", R"({"layer_types": ["full_attention", "linear_attention", "full_attention"]})",
                 "linear_attention");
  expect_refused("gpt_oss", R"({"sliding_window": null})", "sliding_window");
  expect_refused("mixtral",
                 R"({"sliding_window": 8, "layer_types": ["full_attention", "full_attention", "full_attention"]})",
                 "layer_types");
  expect_refused("llama", R"({"sliding_window": 4096})", "sliding_window");
}

TEST(ModelConfig, SparseLayers) {
  const auto sparse = [](const ModelConfig& m) {
    std::string s;
    for (const auto& l : m.layers) s += l.is_sparse ? 's' : 'd';
    return s;
  };
  EXPECT_EQ(sparse(parse_with("deepseek_v3", R"({"first_k_dense_replace": 2})")), "dds");
  EXPECT_EQ(sparse(parse_with("qwen3_moe", R"({"decoder_sparse_step": 2})")), "dsds");
  EXPECT_EQ(sparse(parse_with("qwen3_moe", R"({"mlp_only_layers": [0, 3]})")), "dssd");
  EXPECT_EQ(sparse(parse_with("mixtral", "{}")), "sss");
  EXPECT_EQ(sparse(parse_with("llama", "{}")), "ddd");
  expect_refused("qwen3_moe", R"({"mlp_only_layers": [4]})", "mlp_only_layers");
  expect_refused("qwen3_moe", R"({"mlp_only_layers": [-1]})", "mlp_only_layers");
  expect_refused("qwen3_moe", R"({"decoder_sparse_step": 0})", "decoder_sparse_step");
  expect_refused("deepseek_v3", R"({"first_k_dense_replace": 4})", "first_k_dense_replace");
  expect_refused("deepseek_v3", R"({"moe_layer_freq": 2})", "moe_layer_freq");
  expect_refused("deepseek_v3", R"({"moe_layer_freq": [0, 1, 1]})", "moe_layer_freq");
  expect_refused("deepseek_v3", R"({"mlp_layer_types": ["dense", "dense", "sparse"]})", "mlp_layer_types");
}

TEST(ModelConfig, Routers) {
  const RouterConfig v3 = parse_with("deepseek_v3", "{}").moe.router;
  EXPECT_EQ(v3.score, RouterScore::kSigmoid);
  EXPECT_EQ(v3.group_score, GroupScore::kSumOfTopTwo);
  EXPECT_TRUE(v3.has_correction_bias);
  const RouterConfig v2 = parse_with("deepseek_v2", "{}").moe.router;
  EXPECT_EQ(v2.score, RouterScore::kSoftmax);
  EXPECT_EQ(v2.group_score, GroupScore::kMax);
  const RouterConfig greedy = parse_with("deepseek_v2", R"({"topk_method": "greedy"})").moe.router;
  EXPECT_EQ(greedy.group_score, GroupScore::kNone);
  EXPECT_EQ(greedy.num_groups, 1);
  EXPECT_EQ(parse_with("gpt_oss", "{}").moe.router.score, RouterScore::kSoftmaxOfTopK);
  EXPECT_TRUE(parse_with("gpt_oss", "{}").moe.router.has_bias);
  EXPECT_EQ(parse_with("qwen3_moe", R"({"num_experts": null, "num_local_experts": 24})").moe.router.num_experts, 24);
  expect_refused("qwen3_moe", R"({"num_local_experts": 24})", "num_local_experts");
  expect_refused("deepseek_v3", R"({"scoring_func": "softmax"})", "scoring_func");
  expect_refused("deepseek_v3", R"({"topk_method": "greedy"})", "topk_method");
  expect_refused("deepseek_v2", R"({"topk_method": "noaux_tc"})", "topk_method");
  expect_refused("deepseek_v2", R"({"norm_topk_prob": true})", "norm_topk_prob");
}

TEST(ModelConfig, ImpossibleValuesAreRefused) {
  expect_refused("deepseek_v3", R"({"num_experts_per_tok": 17})", "num_experts_per_tok");
  expect_refused("deepseek_v3", R"({"num_experts_per_tok": 9})", "topk_group");
  expect_refused("deepseek_v3", R"({"n_group": 3})", "n_group");
  expect_refused("deepseek_v3", R"({"topk_group": 5})", "topk_group");
  expect_refused("deepseek_v3", R"({"n_group": 16, "topk_group": 4})", "n_group");
  expect_refused("deepseek_v3", R"({"num_key_value_heads": 2})", "num_key_value_heads");
  expect_refused("mixtral", R"({"num_experts_per_tok": 9})", "num_experts_per_tok");
  expect_refused("mixtral", R"({"num_experts_per_tok": 0})", "num_experts_per_tok");
  expect_refused("llama", R"({"num_key_value_heads": 3})", "num_key_value_heads");
  expect_refused("llama", R"({"num_attention_heads": 7})", "num_attention_heads");
  expect_refused("llama", R"({"num_attention_heads": 24, "num_key_value_heads": 8})", "head_dim");
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                          "max_position_embeddings"})
    for (const char* value : {"0", "-1", "1e30", "9223372036854775807", "18446744073709551615", "\"64\"", "1.5", "[64]",
                              "true", "-9223372036854775808"})
      expect_refused("llama", fmt::format(R"({{"{}": {}}})", key, value), key);
  for (const char* value : {"0", "-1e-6", "1", "\"x\""})
    expect_refused("llama", fmt::format(R"({{"rms_norm_eps": {}}})", value), "rms_norm_eps");
  expect_refused("olmoe", R"({"head_dim": 32})", "head_dim");
  expect_refused("olmoe", R"({"clip_qkv": 0})", "clip_qkv");
  expect_refused("olmoe", R"({"clip_qkv": -1.0})", "clip_qkv");
  expect_refused("gpt_oss", R"({"swiglu_limit": -7})", "swiglu_limit");
  expect_refused("gpt_oss", R"({"swiglu_alpha": 1.0})", "swiglu_alpha");
  expect_refused(
      "qwen3_moe",
      R"({"hidden_size": 1048576, "moe_intermediate_size": 1048576, "num_experts": 16384, "num_hidden_layers": 16})",
      "1e15");
  expect_refused("qwen3_moe", R"({"num_experts": 16384, "num_hidden_layers": 4096})", "experts over all layers");
  expect_refused("llama", R"({"eos_token_id": "x"})", "eos_token_id");
  expect_refused("llama", R"({"eos_token_id": [-1]})", "eos_token_id");
  expect_refused("llama", R"({"dtype": "float8"})", "dtype");
}

TEST(ModelConfig, KeysThatChangeTheResultAreNeverIgnored) {
  for (const char* changes : {R"({"hidden_act": "gelu"})",
                              R"({"attn_logit_softcapping": 50.0})",
                              R"({"final_logit_softcapping": 30.0})",
                              R"({"query_pre_attn_scalar": 256})",
                              R"({"residual_multiplier": 0.22})",
                              R"({"embedding_multiplier": 12})",
                              R"({"logits_scaling": 8})",
                              R"({"index_topk": 2048})",
                              R"({"index_n_heads": 64})",
                              R"({"use_parallel_residual": true})",
                              R"({"no_rope_layers": [1, 0]})",
                              R"({"attention_chunk_size": 8192})",
                              R"({"text_config": {"hidden_size": 4}})",
                              R"({"quantization": {"group_size": 64, "bits": 4}})",
                              R"({"compression_config": {"format": "x"}})",
                              R"({"is_causal": false})",
                              R"({"kv_cache_dtype": "fp8", "kv_cache_scheme": {"num_bits": 8}})",
                              R"({"scale_emb": 12})",
                              R"({"use_dual_chunk_attention": true})",
                              R"({"dual_chunk_attention_config": {"chunk_size": 1}})",
                              R"({"layer_scale": 0.1})"})
    EXPECT_NE(refusal("llama", changes), "") << changes;
  EXPECT_EQ(
      refusal("llama",
              R"({"transformers_version": "4.51.0", "use_cache": true, "_name_or_path": "x", "initializer_range": 0.02,
      "attention_dropout": 0.1, "router_aux_loss_coef": 0.001, "output_router_logits": true, "unsloth_fixed": true, "pretraining_tp": 8,
      "attn_logit_softcapping": null, "use_parallel_residual": false, "temperature": 0.6, "task_specific_params": {"a": 1},
      "license": "MIT", "rope_interleaved": false, "is_llama_config": true, "transformers.js_config": {"dtype": "q4"}, "pad_token_id": -1})"),
      "");
}

TEST(ModelConfig, Quantization) {
  const char* fp8 =
      R"({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
      "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"], "ignored_layers": ["model.layers.1"]}})";
  const ModelConfig model = parse_with("qwen3_moe", fp8);
  EXPECT_EQ(model.quant, WeightQuant::kFp8Block);
  EXPECT_EQ(model.unquantized_modules.size(), 3u);
  EXPECT_EQ(parse_with("gpt_oss", R"({"quantization_config": {"quant_method": "mxfp4"}})").quant, WeightQuant::kMxfp4);
  EXPECT_EQ(parse_with("qwen3_moe", R"({"quantization_config": null})").quant, WeightQuant::kNone);
  for (const char* method : {"awq", "gptq", "bitsandbytes", "compressed-tensors", "modelopt", "fbgemm_fp8", "quark"})
    expect_refused("qwen3_moe", fmt::format(R"({{"quantization_config": {{"quant_method": "{}"}}}})", method), method);
  expect_refused("qwen3", R"({"quantization_config": {"quant_algo": "NVFP4"}})", "NVFP4");
  for (const char* bad :
       {R"("weight_block_size": [64, 128])", R"("weight_block_size": null)", R"("weight_block_size": [128])",
        R"("activation_scheme": "static")", R"("fmt": "e5m2")", R"("expert_dtype": "fp4")",
        R"("kv_cache_scheme": {"num_bits": 8})", R"("modules_to_not_convert": [1])"}) {
    json::object quant =
        parse_json(
            R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})",
            "q")
            .as_object();
    const json::object change = parse_json(fmt::format("{{{}}}", bad), "bad").as_object();
    for (const auto& [key, value] : change) quant[key] = value;
    EXPECT_NE(refusal("qwen3_moe", json::serialize(json::object{{"quantization_config", quant}})), "") << bad;
  }
  expect_refused("qwen3_moe", R"({"quantization_config": {"quant_method": "mxfp4"}})", "gpt_oss");
  expect_refused("gpt_oss", R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})",
                 "gpt_oss");
}

TEST(ModelConfig, FolderHoldsGenerationIdsAndSidecars) {
  testing::TempDir dir;
  std::ofstream(dir.path() / "config.json") << json::serialize(small_config_with("deepseek_v3", "{}"));
  EXPECT_EQ(load_model_config(dir.path()).eos_ids, std::vector<int32_t>{1});
  std::ofstream(dir.path() / "generation_config.json") << R"({"eos_token_id": [7, 1], "temperature": 0.6})";
  EXPECT_EQ(load_model_config(dir.path()).eos_ids, (std::vector<int32_t>{1, 7}));
  EXPECT_EQ(load_model_config(dir.path() / "config.json").eos_ids, (std::vector<int32_t>{1, 7}));
  std::ofstream(dir.path() / "hf_quant_config.json")
      << R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}})";
  EXPECT_THROW(load_model_config(dir.path()), Error);
  EXPECT_THROW(load_model_config(dir.path() / "missing"), Error);
}

TEST(ModelConfig, ReferenceConfigsMeanTheSameInOlderAndNewerKeys) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(testing::source_dir() / "tests/reference")) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    ModelConfig older = load_model_config(entry.path());
    const json::value reference = parse_json_file(entry.path() / "reference.json");
    ModelConfig newer = parse_model_config(reference.at("saved_config").as_object());
    // Not in the saved form, which is of the unquantised model and names the default of the next-token layers.
    newer.quant = older.quant;
    newer.unquantized_modules = older.unquantized_modules;
    newer.num_nextn_layers = older.num_nextn_layers;
    EXPECT_EQ(older, newer);
    ++count;
  }
  EXPECT_EQ(count, 13);
}

TEST(ModelConfig, PublishedConfigsLoadOrSayWhyNot) {
  CADRE_DATA_OR_SKIP(data);
  const std::set<std::string> served = {"deepseek_v2", "deepseek_v3", "kimi_k2", "qwen3_moe", "qwen2_moe", "mixtral",
                                        "olmoe",       "glm4_moe",    "gpt_oss", "qwen3",     "llama"};
  int parsed = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(data / "configs/hf")) {
    SCOPED_TRACE(entry.path().filename().string());
    json::value config;
    try {
      config = parse_json_file(entry.path());
    } catch (const Error&) {  // one of them holds Infinity, which JSON does not know
      ++refused;
      continue;
    }
    const json::value* type = config.as_object().if_contains("model_type");
    const std::string model_type = type && type->is_string() ? std::string(std::string_view(type->get_string())) : "";
    const bool per_tensor = entry.path().filename().string().find("Static-PerTensor") != std::string::npos;
    const bool expected = served.count(model_type) && !per_tensor;
    try {
      parse_model_config(config.as_object());
      EXPECT_TRUE(expected);
      ++parsed;
    } catch (const Error& e) {
      EXPECT_FALSE(expected) << e.what();
      if (!served.count(model_type)) {
        EXPECT_NE(std::string_view(e.what()).find("Glm4MoeForCausalLM"), std::string_view::npos) << e.what();
      }
      ++refused;
    }
  }
  EXPECT_EQ(parsed, 41);
  EXPECT_EQ(parsed + refused, 141);
}

// Whatever is written over whichever key, the answer is a model or an Error.
TEST(ModelConfig, RandomChangesNeverDoMore) {
  Rng rng(testing::seed());
  SCOPED_TRACE(testing::seed());
  const char* values[] = {"null",
                          "true",
                          "false",
                          "0",
                          "1",
                          "-1",
                          "2",
                          "3",
                          "1e308",
                          "-0.5",
                          "9223372036854775807",
                          "\"x\"",
                          "\"yarn\"",
                          "[]",
                          "[1, 2, 3]",
                          "{}",
                          "{\"rope_type\": \"yarn\", \"factor\": 2}",
                          "[\"full_attention\"]",
                          "4096",
                          "65536",
                          "1048576",
                          "0.5"};
  for (int i = 0; i < 3000; ++i) {
    json::object config = small_config_with(kModelTypes[rng.below(std::size(kModelTypes))], "{}");
    for (uint32_t n = 1 + rng.below(3); n > 0; --n) {
      auto it = config.begin();
      std::advance(it, rng.below(static_cast<uint32_t>(config.size())));
      it->value() = json::parse(values[rng.below(std::size(values))]);
    }
    try {
      const ModelConfig model = parse_model_config(config);
      ASSERT_GT(model.attention.softmax_scale, 0) << json::serialize(config);
      ASSERT_EQ(model.attention.rope.rotary_dim % 2, 0) << json::serialize(config);
      ASSERT_LE(model.moe.router.top_k, model.moe.router.num_experts) << json::serialize(config);
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace cadre
