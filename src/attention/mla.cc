#include "attention/mla.h"

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/elementwise.h"

namespace cadre {
namespace {

// Rows whose latent queries are held at once: bounds the workspace, changes no result.
constexpr int64_t kChunkRows = 64;

}  // namespace

MlaWorkspace::MlaWorkspace(const AttentionConfig& c, int64_t max_rows, int num_threads) {
  const int64_t chunk = std::min(kChunkRows, max_rows);
  q_a.resize(static_cast<size_t>(max_rows * c.q_lora_rank));
  q.resize(static_cast<size_t>(max_rows * c.num_heads * c.head_dim));
  kv_a.resize(static_cast<size_t>(max_rows * (c.kv_lora_rank + c.qk_rope_head_dim)));
  attention_out.resize(static_cast<size_t>(max_rows * c.num_heads * c.v_head_dim));
  q_latent.resize(static_cast<size_t>(chunk * c.num_heads * c.kv_lora_rank));
  out_latent.resize(q_latent.size());
  per_thread_floats = (2 * c.kv_lora_rank + c.qk_rope_head_dim) * kMlaHeads;
  per_thread.resize(static_cast<size_t>(per_thread_floats * num_threads));
}

int64_t mla_block_bytes(const AttentionConfig& c, DType kv_dtype) {
  return kTileTokens * (c.kv_lora_rank + c.qk_rope_head_dim) * static_cast<int64_t>(dtype_bytes(kv_dtype));
}

MlaAttention::MlaAttention(const AttentionConfig& config, const Rope& rope, DType kv_dtype, MlaWeights weights)
    : config_(config), rope_(rope), kv_dtype_(kv_dtype), weights_(std::move(weights)) {}

void MlaAttention::forward(const AttentionStep& step, const float* x, float* out, MlaWorkspace& w) const {
  project(step, x, w);
  step.clear_new_blocks();
  step.pool->parallel_for(step.num_rows(), [&](int64_t row, int) { store_row(step, row, w); });
  for (int64_t first = 0; first < step.num_rows(); first += kChunkRows)
    attend_absorbed(step, first, std::min(kChunkRows, step.num_rows() - first), w);
  weights_.o.apply(w.attention_out.data(), step.num_rows(), out, *step.pool);
}

void MlaAttention::project(const AttentionStep& step, const float* x, MlaWorkspace& w) const {
  const int64_t rows = step.num_rows();
  if (config_.q_lora_rank > 0) {
    weights_.q_a.apply(x, rows, w.q_a.data(), *step.pool);
    for (int64_t row = 0; row < rows; ++row) {
      float* q_a = w.q_a.data() + row * config_.q_lora_rank;
      rms_norm(q_a, weights_.q_a_norm.data(), static_cast<float>(config_.latent_norm_eps), config_.q_lora_rank, q_a);
    }
    weights_.q_b.apply(w.q_a.data(), rows, w.q.data(), *step.pool);
  } else {
    weights_.q.apply(x, rows, w.q.data(), *step.pool);
  }
  weights_.kv_a.apply(x, rows, w.kv_a.data(), *step.pool);
}

void MlaAttention::store_row(const AttentionStep& step, int64_t row, MlaWorkspace& w) const {
  const float* cos = step.cos + row * rope_.half_dim();
  const float* sin = step.sin + row * rope_.half_dim();
  for (int64_t h = 0; h < config_.num_heads; ++h)
    rope_.rotate(cos, sin, w.q.data() + (row * config_.num_heads + h) * config_.head_dim + config_.qk_nope_head_dim);
  const int64_t width = config_.kv_lora_rank + config_.qk_rope_head_dim;
  float* latent = w.kv_a.data() + row * width;
  rms_norm(latent, weights_.kv_a_norm.data(), static_cast<float>(config_.latent_norm_eps), config_.kv_lora_rank, latent);
  rope_.rotate(cos, sin, latent + config_.kv_lora_rank);
  std::byte* block = step.kv->block(step.layer, step.block_of_row(row));
  const int64_t at = step.positions[static_cast<size_t>(row)] % kTileTokens * width;
  if (kv_dtype_ == DType::kBF16) {
    uint16_t* out = reinterpret_cast<uint16_t*>(block) + at;
    for (int64_t i = 0; i < width; ++i) out[i] = float_to_bf16(latent[i]);
  } else {
    std::copy(latent, latent + width, reinterpret_cast<float*>(block) + at);
  }
}

void MlaAttention::attend_absorbed(const AttentionStep& step, int64_t first_row, int64_t num_rows, MlaWorkspace& w) const {
  const int64_t heads = config_.num_heads, rank = config_.kv_lora_rank, v_dim = config_.v_head_dim;
  const int64_t latent_panels = weights_.w_uk_t[0].view().layout.num_panels(), value_panels = weights_.w_uv[0].view().layout.num_panels();
  step.pool->parallel_for(heads * latent_panels, [&](int64_t task, int) {
    const int64_t h = task / latent_panels;
    const RowsIn q{w.q.data() + (first_row * heads + h) * config_.head_dim, heads * config_.head_dim};
    gemm_panel(weights_.w_uk_t[static_cast<size_t>(h)].view(), task % latent_panels, nullptr, q, num_rows, {w.q_latent.data() + h * rank, heads * rank});
  });
  const int64_t head_groups = (heads + kMlaHeads - 1) / kMlaHeads;
  step.pool->parallel_for(num_rows * head_groups, [&](int64_t task, int thread) {
    const int64_t row = task / head_groups;
    attend_heads(step, first_row + row, row, task % head_groups, w.per_thread.data() + thread * w.per_thread_floats, w);
  });
  step.pool->parallel_for(heads * value_panels, [&](int64_t task, int) {
    const int64_t h = task / value_panels;
    const RowsOut out{w.attention_out.data() + (first_row * heads + h) * v_dim, heads * v_dim};
    gemm_panel(weights_.w_uv[static_cast<size_t>(h)].view(), task % value_panels, nullptr, {w.out_latent.data() + h * rank, heads * rank}, num_rows, out);
  });
}

void MlaAttention::attend_heads(const AttentionStep& step, int64_t row, int64_t row_in_chunk, int64_t head_group, float* scratch, MlaWorkspace& w) const {
  const int64_t rank = config_.kv_lora_rank, rope_dim = config_.qk_rope_head_dim;
  const int64_t h0 = head_group * kMlaHeads, count = std::min(kMlaHeads, config_.num_heads - h0);
  float* q_t = scratch;
  float* out_t = scratch + (rank + rope_dim) * kMlaHeads;
  std::fill(q_t, out_t, 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    const float* latent = w.q_latent.data() + (row_in_chunk * config_.num_heads + h0 + i) * rank;
    const float* rotated = w.q.data() + (row * config_.num_heads + h0 + i) * config_.head_dim + config_.qk_nope_head_dim;
    for (int64_t d = 0; d < rank; ++d) q_t[d * kMlaHeads + i] = latent[d];
    for (int64_t d = 0; d < rope_dim; ++d) q_t[(rank + d) * kMlaHeads + i] = rotated[d];
  }
  const RowGroup& group = step.groups[static_cast<size_t>(step.group_of_row[static_cast<size_t>(row)])];
  const LatentCache cache{.tiles = {step.kv->block(step.layer, 0), group.blocks.data(), step.kv->layout().block_bytes},
                          .latent_dim = rank, .rope_dim = rope_dim, .dtype = kv_dtype_};
  attend_latent(cache, static_cast<float>(config_.softmax_scale), step.positions[static_cast<size_t>(row)], q_t, out_t);
  for (int64_t i = 0; i < count; ++i) {
    float* latent = w.out_latent.data() + (row_in_chunk * config_.num_heads + h0 + i) * rank;
    for (int64_t d = 0; d < rank; ++d) latent[d] = out_t[d * kMlaHeads + i];
  }
}

}  // namespace cadre
