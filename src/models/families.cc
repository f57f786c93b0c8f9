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
  const Part& part = loader.shard().heads;
  const int64_t hidden = loader.config().hidden_size, d = a.head_dim, q = a.num_heads * d, kv = a.num_kv_heads * d;
  const auto times_d = [&](Slice heads) { return Slice{heads.first * d, heads.count * d}; };
  const Slice heads = part.of_total(a.num_heads), q_rows = times_d(heads), kv_rows = times_d(kv_head_slice(a.num_kv_heads, part.of, part.index));
  GqaWeights w{loader.linear_rows(prefix + "q_proj", q, hidden, q_rows, a.qkv_bias), loader.linear_rows(prefix + "k_proj", kv, hidden, kv_rows, a.qkv_bias),
               loader.linear_rows(prefix + "v_proj", kv, hidden, kv_rows, a.qkv_bias), loader.linear_columns(prefix + "o_proj", hidden, q, q_rows, a.o_bias), {}, {}, {}};
  const auto slice_of = [](const std::vector<float>& all, Slice s) { return std::vector<float>(all.begin() + s.first, all.begin() + s.first + s.count); };
  if (a.qk_norm == QkNorm::kPerHead) {
    w.q_norm = loader.vector(prefix + "q_norm.weight", d);
    w.k_norm = loader.vector(prefix + "k_norm.weight", d);
  } else if (a.qk_norm == QkNorm::kAllHeads) {
    w.q_norm = slice_of(loader.vector(prefix + "q_norm.weight", q), q_rows);
    w.k_norm = slice_of(loader.vector(prefix + "k_norm.weight", kv), kv_rows);
  }
  if (a.has_sinks) w.sinks = slice_of(loader.vector(prefix + "sinks", a.num_heads), heads);
  return w;
}

GatedMlp load_mlp(WeightLoader& loader, const std::string& prefix, int64_t intermediate, const Part& part) {
  return loader.gated_mlp(prefix + "gate_proj", prefix + "up_proj", prefix + "down_proj", intermediate, part);
}

Experts load_experts(WeightLoader& loader, const std::string& prefix, const char* gate, const char* up, const char* down) {
  const Shard& shard = loader.shard();
  const int64_t hidden = loader.config().hidden_size, width = loader.config().moe.expert_intermediate;
  const Slice all{0, hidden}, part = shard.expert.of_total(width);
  const auto mine = loader.experts();
  const ExpertLayout layout = loader.expert_layout(prefix + "0." + gate, false);
  Experts experts(layout, static_cast<int64_t>(mine.size()), loader.activation());
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i] == kEmptySlot) continue;
    const std::string expert = fmt::format("{}{}.", prefix, mine[i]);
    std::byte* slot = experts.slot(static_cast<int64_t>(i));
    loader.pack_into(expert + gate, width, hidden, part, all, layout.gate_up, slot);
    loader.pack_into(expert + up, width, hidden, part, all, layout.gate_up, slot + layout.up_offset);
    loader.pack_into(expert + down, hidden, width, all, part, layout.down, slot + layout.down_offset);
  }
  return experts;
}

LayerWeights with_norms(WeightLoader& loader, int64_t layer, LayerWeights weights) {
  weights.attention_norm = loader.vector(layer_prefix(layer) + "input_layernorm.weight", loader.config().hidden_size);
  weights.feed_forward_norm = loader.vector(layer_prefix(layer) + "post_attention_layernorm.weight", loader.config().hidden_size);
  return weights;
}

}  // namespace cadre
