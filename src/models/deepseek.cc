// DeepSeek-V2 and V3 (and R1, V3.1, Kimi-K2): latent attention, first layers dense, then routed and shared experts.
#include "models/families.h"

namespace cadre {
namespace {

MlaWeights load_mla(WeightLoader& loader, const std::string& prefix) {
  const AttentionConfig& a = loader.config().attention;
  const int64_t hidden = loader.config().hidden_size, q = a.num_heads * a.head_dim;
  const Slice heads = loader.shard().heads.of_total(a.num_heads);
  const Slice q_rows{heads.first * a.head_dim, heads.count * a.head_dim}, o_columns{heads.first * a.v_head_dim, heads.count * a.v_head_dim};
  MlaWeights w;
  if (a.q_lora_rank > 0) {
    w.q_a = loader.linear(prefix + "q_a_proj", a.q_lora_rank, hidden, a.qkv_bias);
    w.q_a_norm = loader.vector(prefix + "q_a_layernorm.weight", a.q_lora_rank);
    w.q_b = loader.linear_rows(prefix + "q_b_proj", q, a.q_lora_rank, q_rows);
  } else {
    w.q = loader.linear_rows(prefix + "q_proj", q, hidden, q_rows);
  }
  w.kv_a = loader.linear(prefix + "kv_a_proj_with_mqa", a.kv_lora_rank + a.qk_rope_head_dim, hidden, a.qkv_bias);
  w.kv_a_norm = loader.vector(prefix + "kv_a_layernorm.weight", a.kv_lora_rank);
  loader.latent_projections(prefix + "kv_b_proj", w);
  w.o = loader.linear_columns(prefix + "o_proj", hidden, a.num_heads * a.v_head_dim, o_columns, a.o_bias);
  return w;
}

MoeWeights load_moe(WeightLoader& loader, const std::string& prefix) {
  const ModelConfig& c = loader.config();
  MoeWeights w{loader.linear_as_stored(prefix + "gate", c.moe.router.num_experts, c.hidden_size), {},
               load_experts(loader, prefix + "experts.", "gate_proj", "up_proj", "down_proj"), {}, {}};
  if (c.moe.router.has_correction_bias) w.correction_bias = loader.vector(prefix + "gate.e_score_correction_bias", c.moe.router.num_experts);
  if (c.moe.shared_intermediate > 0) w.shared = load_mlp(loader, prefix + "shared_experts.", c.moe.shared_intermediate, loader.shard().shared);
  return w;
}

}  // namespace

LayerWeights load_deepseek_layer(WeightLoader& loader, int64_t layer) {
  const ModelConfig& c = loader.config();
  const std::string prefix = layer_prefix(layer);
  LayerWeights w;
  w.attention = load_mla(loader, prefix + "self_attn.");
  if (c.layers[static_cast<size_t>(layer)].is_sparse) w.feed_forward = load_moe(loader, prefix + "mlp.");
  else w.feed_forward = load_mlp(loader, prefix + "mlp.", c.dense_intermediate, loader.shard().dense);
  return with_norms(loader, layer, std::move(w));
}

}  // namespace cadre
