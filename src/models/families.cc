#include "models/families.h"

#include "base/check.h"

namespace cadre {

LayerWeights load_layer(WeightLoader& loader, int64_t layer) {
  switch (loader.config().family) {
    case Family::kDeepseekV2: case Family::kDeepseekV3: return load_deepseek_layer(loader, layer);
    case Family::kQwen2Moe: case Family::kQwen3Moe: return load_qwen_moe_layer(loader, layer);
    case Family::kMixtral: return load_mixtral_layer(loader, layer);
    case Family::kOlmoe: return load_olmoe_layer(loader, layer);
    case Family::kGlm4Moe: return load_glm4_moe_layer(loader, layer);
    case Family::kGptOss: return load_gpt_oss_layer(loader, layer);
    case Family::kQwen3: case Family::kLlama: return load_dense_layer(loader, layer);
  }
  CADRE_CHECK(false, "family {}", static_cast<int>(loader.config().family));
}

std::string layer_prefix(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

GqaWeights load_gqa(WeightLoader& loader, const std::string& prefix) {
  const AttentionConfig& a = loader.config().attention;
  const int64_t hidden = loader.config().hidden_size, q = a.num_heads * a.head_dim, kv = a.num_kv_heads * a.head_dim;
  GqaWeights w{loader.linear(prefix + "q_proj", q, hidden, a.qkv_bias), loader.linear(prefix + "k_proj", kv, hidden, a.qkv_bias),
               loader.linear(prefix + "v_proj", kv, hidden, a.qkv_bias), loader.linear(prefix + "o_proj", hidden, q, a.o_bias), {}, {}, {}};
  if (a.qk_norm != QkNorm::kNone) {
    const bool per_head = a.qk_norm == QkNorm::kPerHead;
    w.q_norm = loader.vector(prefix + "q_norm.weight", per_head ? a.head_dim : q);
    w.k_norm = loader.vector(prefix + "k_norm.weight", per_head ? a.head_dim : kv);
  }
  if (a.has_sinks) w.sinks = loader.vector(prefix + "sinks", a.num_heads);
  return w;
}

GatedMlp load_mlp(WeightLoader& loader, const std::string& prefix, int64_t intermediate) {
  return loader.gated_mlp(prefix + "gate_proj", prefix + "up_proj", prefix + "down_proj", intermediate);
}

Experts load_experts(WeightLoader& loader, const std::string& prefix, const char* gate, const char* up, const char* down) {
  const MoeConfig& moe = loader.config().moe;
  const ExpertLayout layout(loader.format_of(prefix + "0." + gate), loader.config().hidden_size, moe.expert_intermediate, false);
  Experts experts(layout, moe.router.num_experts, loader.activation());
  for (int64_t e = 0; e < moe.router.num_experts; ++e) {
    const std::string expert = fmt::format("{}{}.", prefix, e);
    loader.pack_into(expert + gate, layout.gate_up, experts.slot(e));
    loader.pack_into(expert + up, layout.gate_up, experts.slot(e) + layout.up_offset);
    loader.pack_into(expert + down, layout.down, experts.slot(e) + layout.down_offset);
  }
  return experts;
}

LayerWeights with_norms(WeightLoader& loader, int64_t layer, LayerWeights weights) {
  weights.attention_norm = loader.vector(layer_prefix(layer) + "input_layernorm.weight", loader.config().hidden_size);
  weights.feed_forward_norm = loader.vector(layer_prefix(layer) + "post_attention_layernorm.weight", loader.config().hidden_size);
  return weights;
}

}  // namespace cadre
