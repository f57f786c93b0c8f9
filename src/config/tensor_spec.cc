#include "config/tensor_spec.h"

#include <fmt/format.h>

#include "base/check.h"
#include "config/module_names.h"

namespace cadre {
namespace {

constexpr int64_t kFp8Block = 128;   // rows and columns under one scale
constexpr int64_t kMxfp4Block = 32;  // values under one scale

class SpecBuilder {
 public:
  explicit SpecBuilder(const ModelConfig& config) : config_(config), unquantized_(config.unquantized_modules) {}

  void model();
  void routed_experts(int64_t layer_idx, const std::string& mlp);
  std::string mlp_name(int64_t layer_idx) const {
    return fmt::format("model.layers.{}.{}", layer_idx,
                       config_.family == Family::kMixtral ? "block_sparse_moe" : "mlp");
  }
  std::vector<TensorSpec> take() { return std::move(specs_); }

 private:
  void add(std::string name, TensorKind kind, Shape shape, int64_t fan_in, DType dtype) {
    if (next_token_) kind = TensorKind::kNextN;
    specs_.push_back({.name = std::move(name),
                      .kind = kind,
                      .dtype = dtype,
                      .shape = std::move(shape),
                      .fan_in = fan_in,
                      .required = !next_token_});
  }
  void plain(std::string name, TensorKind kind, Shape shape, int64_t fan_in = 0) {
    add(std::move(name), kind, std::move(shape), fan_in, config_.dtype);
  }
  // A projection `module` of a quantisable kind: weight [outputs, inputs], its scales, its bias.
  void linear(const std::string& module, TensorKind kind, int64_t outputs, int64_t inputs, bool bias = false);
  void norm(const std::string& module, int64_t size) { plain(module + ".weight", TensorKind::kNorm, {size}); }
  void mxfp4(const std::string& name, int64_t outputs, int64_t inputs);

  void decoder_layer(int64_t layer_idx, bool sparse);
  void gqa(const std::string& attention);
  void mla(const std::string& attention);
  void gated_mlp(const std::string& module, TensorKind kind, int64_t width);
  void sparse_mlp(int64_t layer_idx);
  void fused_experts(const std::string& mlp);
  void next_token_layer(int64_t layer_idx);

  const ModelConfig& config_;
  ModuleNames unquantized_;
  std::vector<TensorSpec> specs_;
  bool next_token_ = false;
};

void SpecBuilder::linear(const std::string& module, TensorKind kind, int64_t outputs, int64_t inputs, bool bias) {
  const bool fp8 = config_.quant == WeightQuant::kFp8Block && !unquantized_.contains(module);
  add(module + ".weight", kind, {outputs, inputs}, inputs, fp8 ? DType::kF8E4M3 : config_.dtype);
  if (fp8) {
    add(module + ".weight_scale_inv", kind,
        {(outputs + kFp8Block - 1) / kFp8Block, (inputs + kFp8Block - 1) / kFp8Block}, 0, DType::kF32);
    specs_.back().is_scale = true;
  }
  if (bias) plain(module + ".bias", kind, {outputs});
}

void SpecBuilder::gqa(const std::string& attention) {
  const AttentionConfig& a = config_.attention;
  const int64_t hidden = config_.hidden_size, q = a.num_heads * a.head_dim, kv = a.num_kv_heads * a.head_dim;
  linear(attention + ".q_proj", TensorKind::kAttention, q, hidden, a.qkv_bias);
  linear(attention + ".k_proj", TensorKind::kAttention, kv, hidden, a.qkv_bias);
  linear(attention + ".v_proj", TensorKind::kAttention, kv, hidden, a.qkv_bias);
  linear(attention + ".o_proj", TensorKind::kAttention, hidden, q, a.o_bias);
  if (a.qk_norm != QkNorm::kNone) {
    norm(attention + ".q_norm", a.qk_norm == QkNorm::kPerHead ? a.head_dim : q);
    norm(attention + ".k_norm", a.qk_norm == QkNorm::kPerHead ? a.head_dim : kv);
  }
  if (a.has_sinks) plain(attention + ".sinks", TensorKind::kAttention, {a.num_heads});
}

void SpecBuilder::mla(const std::string& attention) {
  const AttentionConfig& a = config_.attention;
  const int64_t hidden = config_.hidden_size, q = a.num_heads * a.head_dim;
  if (a.q_lora_rank == 0) {
    linear(attention + ".q_proj", TensorKind::kAttention, q, hidden);
  } else {
    linear(attention + ".q_a_proj", TensorKind::kAttention, a.q_lora_rank, hidden);
    norm(attention + ".q_a_layernorm", a.q_lora_rank);
    linear(attention + ".q_b_proj", TensorKind::kAttention, q, a.q_lora_rank);
  }
  linear(attention + ".kv_a_proj_with_mqa", TensorKind::kAttention, a.kv_lora_rank + a.qk_rope_head_dim, hidden);
  norm(attention + ".kv_a_layernorm", a.kv_lora_rank);
  linear(attention + ".kv_b_proj", TensorKind::kAttention, a.num_heads * (a.qk_nope_head_dim + a.v_head_dim),
         a.kv_lora_rank);
  linear(attention + ".o_proj", TensorKind::kAttention, hidden, a.num_heads * a.v_head_dim);
}

void SpecBuilder::gated_mlp(const std::string& module, TensorKind kind, int64_t width) {
  const int64_t hidden = config_.hidden_size;
  linear(module + ".gate_proj", kind, width, hidden);
  linear(module + ".up_proj", kind, width, hidden);
  linear(module + ".down_proj", kind, hidden, width);
}

void SpecBuilder::mxfp4(const std::string& name, int64_t outputs, int64_t inputs) {
  const int64_t experts = config_.moe.router.num_experts, blocks = inputs / kMxfp4Block;
  add(name + "_blocks", TensorKind::kRoutedExpert, {experts, outputs, blocks, kMxfp4Block / 2}, inputs, DType::kU8);
  add(name + "_scales", TensorKind::kRoutedExpert, {experts, outputs, blocks}, 0, DType::kU8);
  specs_.back().is_scale = true;
}

// gpt-oss: all experts of a layer in one tensor, inputs before outputs; in MXFP4 outputs before inputs.
void SpecBuilder::fused_experts(const std::string& mlp) {
  const std::string experts = mlp + ".experts";
  const int64_t count = config_.moe.router.num_experts, hidden = config_.hidden_size,
                width = config_.moe.expert_intermediate;
  const bool quantized = config_.quant == WeightQuant::kMxfp4 && !unquantized_.contains(experts);
  const std::string gate_up = experts + ".gate_up_proj", down = experts + ".down_proj";
  if (quantized)
    mxfp4(gate_up, 2 * width, hidden);
  else
    plain(gate_up, TensorKind::kRoutedExpert, {count, hidden, 2 * width}, hidden);
  plain(gate_up + "_bias", TensorKind::kRoutedExpert, {count, 2 * width});
  if (quantized)
    mxfp4(down, hidden, width);
  else
    plain(down, TensorKind::kRoutedExpert, {count, width, hidden}, width);
  plain(down + "_bias", TensorKind::kRoutedExpert, {count, hidden});
}

void SpecBuilder::routed_experts(int64_t layer_idx, const std::string& mlp) {
  CADRE_CHECK(layer_idx >= 0);
  if (config_.family == Family::kGptOss) return fused_experts(mlp);
  const int64_t hidden = config_.hidden_size, width = config_.moe.expert_intermediate;
  for (int64_t e = 0; e < config_.moe.router.num_experts; ++e) {
    const std::string expert = fmt::format("{}.experts.{}", mlp, e);
    if (config_.family != Family::kMixtral) {
      gated_mlp(expert, TensorKind::kRoutedExpert, width);
      continue;
    }
    linear(expert + ".w1", TensorKind::kRoutedExpert, width, hidden);
    linear(expert + ".w2", TensorKind::kRoutedExpert, hidden, width);
    linear(expert + ".w3", TensorKind::kRoutedExpert, width, hidden);
  }
}

void SpecBuilder::sparse_mlp(int64_t layer_idx) {
  const MoeConfig& moe = config_.moe;
  const int64_t experts = moe.router.num_experts, hidden = config_.hidden_size;
  const std::string mlp = mlp_name(layer_idx);
  const std::string router = mlp + (config_.family == Family::kGptOss ? ".router" : ".gate");
  plain(router + ".weight", TensorKind::kRouter, {experts, hidden}, hidden);
  if (moe.router.has_bias) plain(router + ".bias", TensorKind::kRouter, {experts});
  if (moe.router.has_correction_bias)
    add(router + ".e_score_correction_bias", TensorKind::kRouter, {experts}, 0, DType::kF32);
  routed_experts(layer_idx, mlp);
  if (moe.shared_intermediate == 0) return;
  gated_mlp(mlp + (moe.shared_has_gate ? ".shared_expert" : ".shared_experts"), TensorKind::kSharedExpert,
            moe.shared_intermediate);
  if (moe.shared_has_gate) plain(mlp + ".shared_expert_gate.weight", TensorKind::kSharedExpert, {1, hidden}, hidden);
}

void SpecBuilder::decoder_layer(int64_t layer_idx, bool sparse) {
  const std::string layer = fmt::format("model.layers.{}", layer_idx);
  norm(layer + ".input_layernorm", config_.hidden_size);
  if (config_.attention.kind == AttentionKind::kMla)
    mla(layer + ".self_attn");
  else
    gqa(layer + ".self_attn");
  norm(layer + ".post_attention_layernorm", config_.hidden_size);
  if (sparse)
    sparse_mlp(layer_idx);
  else
    gated_mlp(layer + ".mlp", TensorKind::kDenseMlp, config_.dense_intermediate);
}

// DeepSeek-V3, section 2.2 (multi-token prediction): a decoder layer behind a projection of two normed inputs.
void SpecBuilder::next_token_layer(int64_t layer_idx) {
  const std::string layer = fmt::format("model.layers.{}", layer_idx);
  const int64_t hidden = config_.hidden_size, vocab = config_.vocab_size;
  next_token_ = true;
  plain(layer + ".embed_tokens.weight", TensorKind::kEmbedding, {vocab, hidden}, hidden);
  norm(layer + ".enorm", hidden);
  norm(layer + ".hnorm", hidden);
  plain(layer + ".eh_proj.weight", TensorKind::kDenseMlp, {hidden, 2 * hidden}, 2 * hidden);
  decoder_layer(layer_idx, true);
  norm(layer + ".shared_head.norm", hidden);
  plain(layer + ".shared_head.head.weight", TensorKind::kHead, {vocab, hidden}, hidden);
  next_token_ = false;
}

void SpecBuilder::model() {
  const int64_t hidden = config_.hidden_size, vocab = config_.vocab_size;
  // A lookup sums one value; as the head of a tied model the matrix sums `hidden` of them.
  plain("model.embed_tokens.weight", TensorKind::kEmbedding, {vocab, hidden}, config_.tie_word_embeddings ? hidden : 1);
  for (int64_t i = 0; i < config_.num_layers; ++i) decoder_layer(i, config_.layers[static_cast<size_t>(i)].is_sparse);
  norm("model.norm", hidden);
  if (!config_.tie_word_embeddings) plain("lm_head.weight", TensorKind::kHead, {vocab, hidden}, hidden);
  for (int64_t i = 0; i < config_.num_nextn_layers; ++i) next_token_layer(config_.num_layers + i);
}

}  // namespace

int64_t TensorSpec::parameters() const {
  if (is_scale) return 0;
  return num_elements(shape) * (dtype == DType::kU8 ? 2 : 1);
}

int64_t TensorSpec::bytes() const { return num_elements(shape) * static_cast<int64_t>(dtype_bytes(dtype)); }

std::vector<TensorSpec> checkpoint_tensors(const ModelConfig& config) {
  SpecBuilder builder(config);
  builder.model();
  return builder.take();
}

std::vector<TensorSpec> routed_expert_tensors(const ModelConfig& config, int64_t layer_idx) {
  SpecBuilder builder(config);
  builder.routed_experts(layer_idx, builder.mlp_name(layer_idx));
  return builder.take();
}

std::string_view tensor_kind_name(TensorKind kind) {
  switch (kind) {
    case TensorKind::kEmbedding: return "embedding";
    case TensorKind::kAttention: return "attention";
    case TensorKind::kDenseMlp: return "dense MLP";
    case TensorKind::kRouter: return "router";
    case TensorKind::kRoutedExpert: return "routed experts";
    case TensorKind::kSharedExpert: return "shared experts";
    case TensorKind::kNorm: return "norms";
    case TensorKind::kHead: return "head";
    case TensorKind::kNextN: return "next-token layers";
  }
  return "?";
}

}  // namespace cadre
