#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/read_parts.h"

namespace cadre {
namespace {

void read_mla(const JsonObject& config, AttentionConfig& attention) {
  attention.kind = AttentionKind::kMla;
  // Every head reads the one latent; a different number of key-value heads would describe something else.
  const auto kv_heads = config.maybe_integer("num_key_value_heads", 1, kMaxHeads);
  if (kv_heads && *kv_heads != attention.num_heads)
    throw invalid_input(
        "config.json: expected 'num_key_value_heads' equal to 'num_attention_heads' ({}) with latent attention, found "
        "{}; correct it",
        attention.num_heads, *kv_heads);
  attention.num_kv_heads = attention.num_heads;
  expect_boolean(config, "attention_bias", false, "latent attention is served without biases");
  expect_boolean(config, "mlp_bias", false, "its dense layers are served without biases");
  // An explicit null is V2-Lite's way to say that queries have no latent; an absent key means the default.
  if (config.raw().contains("q_lora_rank"))
    attention.q_lora_rank = config.maybe_integer("q_lora_rank", 1, kMaxWidth).value_or(0);
  else
    attention.q_lora_rank = 1536;
  attention.kv_lora_rank = config.maybe_integer("kv_lora_rank", 1, kMaxWidth).value_or(512);
  attention.qk_nope_head_dim = config.maybe_integer("qk_nope_head_dim", 1, kMaxWidth).value_or(128);
  attention.qk_rope_head_dim = config.maybe_integer("qk_rope_head_dim", 1, kMaxWidth).value_or(64);
  attention.v_head_dim = config.maybe_integer("v_head_dim", 1, kMaxWidth).value_or(128);
  attention.head_dim = attention.qk_nope_head_dim + attention.qk_rope_head_dim;
}

int64_t read_head_dim(const JsonObject& config, const FamilyTraits& traits, const ModelConfig& model) {
  if (const auto given = config.maybe_integer("head_dim", 1, kMaxWidth)) return *given;
  if (traits.head_dim != 0 && !config.raw().contains("head_dim")) return traits.head_dim;
  if (model.hidden_size % model.attention.num_heads != 0)
    throw invalid_input(
        "config.json: expected 'head_dim', or 'hidden_size' to be a multiple of 'num_attention_heads', found {} and "
        "{}; add 'head_dim'",
        model.hidden_size, model.attention.num_heads);
  return model.hidden_size / model.attention.num_heads;
}

void read_gqa(const JsonObject& config, const FamilyTraits& traits, ModelConfig& model) {
  AttentionConfig& attention = model.attention;
  attention.kind = AttentionKind::kGqa;
  const int64_t absent = traits.num_kv_heads != 0 && !config.raw().contains("num_key_value_heads")
                             ? traits.num_kv_heads
                             : attention.num_heads;
  attention.num_kv_heads = config.maybe_integer("num_key_value_heads", 1, kMaxHeads).value_or(absent);
  if (attention.num_heads % attention.num_kv_heads != 0)
    throw invalid_input(
        "config.json: expected 'num_attention_heads' to be a multiple of 'num_key_value_heads', found {} and {}; "
        "correct them",
        attention.num_heads, attention.num_kv_heads);
  attention.head_dim = read_head_dim(config, traits, model);
  attention.v_head_dim = attention.head_dim;
}

// Biases and norms around the projections, by family.
void read_projections(const JsonObject& config, const FamilyTraits& traits, AttentionConfig& attention) {
  const auto attention_bias = [&](bool absent) { return config.maybe_boolean("attention_bias").value_or(absent); };
  switch (traits.family) {
    case Family::kQwen3Moe:
    case Family::kQwen3:
      attention.qk_norm = QkNorm::kPerHead;
      attention.qkv_bias = attention.o_bias = attention_bias(false);
      expect_boolean(config, "qkv_bias", false, "biases are switched by 'attention_bias'");
      expect_boolean(config, "use_qk_norm", true, "the family always norms q and k");
      break;
    case Family::kQwen2Moe: attention.qkv_bias = config.maybe_boolean("qkv_bias").value_or(true); break;
    case Family::kOlmoe:
      attention.qk_norm = QkNorm::kAllHeads;
      attention.qkv_bias = attention.o_bias = attention_bias(false);
      attention.clip_qkv = config.maybe_number("clip_qkv").value_or(0.0);
      if (attention.clip_qkv < 0 || (config.has("clip_qkv") && attention.clip_qkv == 0))
        throw invalid_input("config.json: expected 'clip_qkv' null or above 0, found {}; correct it",
                            attention.clip_qkv);
      break;
    case Family::kGlm4Moe:
      attention.qkv_bias = attention_bias(false);
      if (config.maybe_boolean("use_qk_norm").value_or(false)) attention.qk_norm = QkNorm::kPerHead;
      break;
    case Family::kGptOss:
      attention.qkv_bias = attention.o_bias = attention_bias(true);
      attention.has_sinks = true;
      break;
    case Family::kLlama:
      attention.qkv_bias = attention.o_bias = attention_bias(false);
      expect_boolean(config, "mlp_bias", false, "MLPs are served without biases");
      break;
    case Family::kMixtral:
    case Family::kDeepseekV2:
    case Family::kDeepseekV3: break;
  }
}

}  // namespace

void read_attention(const JsonObject& config, const FamilyTraits& traits, ModelConfig& model) {
  AttentionConfig& attention = model.attention;
  attention.num_heads = config.integer("num_attention_heads", 1, kMaxHeads);
  const bool mla = traits.family == Family::kDeepseekV2 || traits.family == Family::kDeepseekV3;
  if (mla)
    read_mla(config, attention);
  else
    read_gqa(config, traits, model);
  read_projections(config, traits, attention);
  if (attention.num_heads * std::max(attention.head_dim, attention.v_head_dim) > (int64_t{1} << 24))
    throw invalid_input(
        "config.json: expected at most {} values in all heads together, found {} heads of {}; correct "
        "'num_attention_heads' or the head size",
        int64_t{1} << 24, attention.num_heads, attention.head_dim);
  if (attention.qk_norm == QkNorm::kAllHeads && attention.num_heads * attention.head_dim != model.hidden_size)
    throw invalid_input(
        "config.json: expected the heads of {} to make up 'hidden_size' {}, found {} heads of {}; correct 'head_dim'",
        traits.architecture, model.hidden_size, attention.num_heads, attention.head_dim);
  attention.softmax_scale = 1.0 / std::sqrt(static_cast<double>(attention.head_dim));
}

}  // namespace cadre
