#include "attention/mla.h"

#include <algorithm>
#include <array>

#include "kernels/attention.h"
#include "kernels/elementwise.h"

namespace cadre {
namespace {

// Rows whose latent queries are held at once: bounds the workspace, changes no result.
constexpr int64_t kChunkRows = 64;
// Prompts shorter than this gain nothing from the expanded form. Positions from kMaxExpanded on run absorbed: expanding
// costs context x kv_lora_rank for each step a prompt is cut into, and that bounds it (and the scratch).
constexpr int64_t kMinExpandedPrompt = 32;
constexpr int64_t kMaxExpanded = 4096;

}  // namespace

bool mla_row_is_expanded(int64_t position, int64_t num_prompt_tokens) {
  return num_prompt_tokens >= kMinExpandedPrompt && position < std::min(num_prompt_tokens, kMaxExpanded);
}

MlaWorkspace::MlaWorkspace(const AttentionConfig& c, int64_t max_rows, int num_threads, int64_t max_position, int64_t hidden) {
  const int64_t chunk = std::min(kChunkRows, max_rows);
  rounded.resize(static_cast<size_t>(max_rows * hidden));
  q_a.resize(static_cast<size_t>(max_rows * c.q_lora_rank));
  q.resize(static_cast<size_t>(max_rows * c.num_heads * c.head_dim));
  kv_a.resize(static_cast<size_t>(max_rows * (c.kv_lora_rank + c.qk_rope_head_dim)));
  attention_out.resize(static_cast<size_t>(max_rows * c.num_heads * c.v_head_dim));
  q_latent.resize(static_cast<size_t>(chunk * c.num_heads * c.kv_lora_rank));
  out_latent.resize(q_latent.size());
  per_thread_floats = (2 * c.kv_lora_rank + c.qk_rope_head_dim) * kMlaHeads;
  per_thread.resize(static_cast<size_t>(per_thread_floats * num_threads));
  const int64_t context = (std::min(max_position, kMaxExpanded) + kTileTokens - 1) / kTileTokens * kTileTokens;
  latents.resize(static_cast<size_t>(context * c.kv_lora_rank));
  expanded_floats = context * (c.head_dim + c.v_head_dim) + kChunkRows * c.qk_nope_head_dim;
  expanded.resize(static_cast<size_t>(expanded_floats * num_threads));
}

int64_t MlaWeights::bytes() const {
  int64_t sum = q.bytes() + q_a.bytes() + q_b.bytes() + kv_a.bytes() + o.bytes() + static_cast<int64_t>((q_a_norm.size() + kv_a_norm.size()) * sizeof(float));
  for (const auto* projections : {&w_uk_t, &w_uv, &w_uk})
    for (const PackedMatrix& m : *projections) sum += m.bytes();
  return sum;
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
  // Rows of consecutive groups that run absorbed are taken together, whatever sequence they are of.
  int64_t absorbed_from = 0;
  const auto absorb_until = [&](int64_t row) {
    for (; absorbed_from < row; absorbed_from = std::min(row, absorbed_from + kChunkRows))
      attend_absorbed(step, absorbed_from, std::min(kChunkRows, row - absorbed_from), w);
  };
  for (const RowGroup& group : step.groups) {
    int64_t expanded = 0;
    while (expanded < group.num_rows && mla_row_is_expanded(group.start_position + expanded, group.num_prompt_tokens)) ++expanded;
    if (expanded == 0) continue;
    absorb_until(group.first_row);
    attend_expanded(step, group, expanded, w);
    absorbed_from = group.first_row + expanded;
  }
  absorb_until(step.num_rows());
  weights_.o.round_and_apply(w.attention_out.data(), step.num_rows(), out, *step.pool);
}

void MlaAttention::project(const AttentionStep& step, const float* x, MlaWorkspace& w) const {
  const int64_t rows = step.num_rows();
  const Linear& first = config_.q_lora_rank > 0 ? weights_.q_a : weights_.q;
  const SharedInput in = share_input(x, rows, weights_.kv_a.in_features(), first.rounds_input || weights_.kv_a.rounds_input, w.rounded, *step.pool);
  if (config_.q_lora_rank > 0) {
    weights_.q_a.apply(in.of(weights_.q_a), rows, w.q_a.data(), *step.pool);
    for (int64_t row = 0; row < rows; ++row) {
      float* q_a = w.q_a.data() + row * config_.q_lora_rank;
      rms_norm(q_a, weights_.q_a_norm.data(), static_cast<float>(config_.latent_norm_eps), config_.q_lora_rank, q_a);
    }
    weights_.q_b.round_and_apply(w.q_a.data(), rows, w.q.data(), *step.pool);
  } else {
    weights_.q.apply(in.of(weights_.q), rows, w.q.data(), *step.pool);
  }
  weights_.kv_a.apply(in.of(weights_.kv_a), rows, w.kv_a.data(), *step.pool);
}

void MlaAttention::store_row(const AttentionStep& step, int64_t row, MlaWorkspace& w) const {
  const float* cos = step.cos + row * rope_.half_dim();
  const float* sin = step.sin + row * rope_.half_dim();
  for (int64_t h = 0; h < config_.num_heads; ++h)
    rope_.rotate(cos, sin, w.q.data() + (row * config_.num_heads + h) * config_.head_dim + config_.qk_nope_head_dim);
  const int64_t width = config_.kv_lora_rank + config_.qk_rope_head_dim;
  float* latent = w.kv_a.data() + row * width;
  rms_norm(latent, weights_.kv_a_norm.data(), static_cast<float>(config_.latent_norm_eps), config_.kv_lora_rank, latent);
  if (weights_.rounds_latents) round_to_fp8(latent, config_.kv_lora_rank, latent);
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

void MlaAttention::attend_expanded(const AttentionStep& step, const RowGroup& group, int64_t num_rows, MlaWorkspace& w) const {
  const int64_t rank = config_.kv_lora_rank, width = rank + config_.qk_rope_head_dim, context = group.start_position + num_rows;
  step.pool->parallel_for((context + kTileTokens - 1) / kTileTokens, [&](int64_t tile, int) {
    const std::byte* block = step.kv->block(step.layer, group.blocks[static_cast<size_t>(tile)]);
    for (int64_t t = 0; t < std::min(kTileTokens, context - tile * kTileTokens); ++t) {
      float* out = w.latents.data() + (tile * kTileTokens + t) * rank;
      if (kv_dtype_ == DType::kBF16) std::transform(reinterpret_cast<const uint16_t*>(block) + t * width, reinterpret_cast<const uint16_t*>(block) + t * width + rank, out, bf16_to_float);
      else std::copy_n(reinterpret_cast<const float*>(block) + t * width, rank, out);
    }
  });
  step.pool->parallel_for(config_.num_heads, [&](int64_t head, int thread) {
    attend_expanded_head(step, group, num_rows, head, w.expanded.data() + thread * w.expanded_floats, w);
  });
}

void MlaAttention::attend_expanded_head(const AttentionStep& step, const RowGroup& group, int64_t num_rows, int64_t head, float* scratch, MlaWorkspace& w) const {
  const int64_t rank = config_.kv_lora_rank, width = rank + config_.qk_rope_head_dim, context = group.start_position + num_rows;
  const int64_t nope = config_.qk_nope_head_dim, d = config_.head_dim, v = config_.v_head_dim, tile_floats = kTileTokens * (d + v);
  float* keys = scratch + (context + kTileTokens - 1) / kTileTokens * tile_floats;  // [kChunkRows, nope], before they go into tiles
  const PackedView &w_uk = weights_.w_uk[static_cast<size_t>(head)].view(), &w_uv = weights_.w_uv[static_cast<size_t>(head)].view();
  for (int64_t first = 0; first < context; first += kChunkRows) {
    const int64_t count = std::min(kChunkRows, context - first);
    const RowsIn latents{w.latents.data() + first * rank, rank};
    for (int64_t p = 0; p < w_uk.layout.num_panels(); ++p) gemm_panel(w_uk, p, nullptr, latents, count, {keys, nope});
    for (int64_t at = first; at < first + count; at += kTileTokens) {
      float* tile = scratch + at / kTileTokens * tile_floats;
      const int64_t tokens = std::min(kTileTokens, first + count - at);
      if (tokens < kTileTokens) std::fill_n(tile, tile_floats, 0.0f);  // what no query sees must be finite
      for (int64_t p = 0; p < w_uv.layout.num_panels(); ++p)
        gemm_panel(w_uv, p, nullptr, {w.latents.data() + at * rank, rank}, tokens, {tile + kTileTokens * d, v});
      const std::byte* block = step.kv->block(step.layer, group.blocks[static_cast<size_t>(at / kTileTokens)]);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < nope; ++i) tile[i * kTileTokens + t] = keys[(at - first + t) * nope + i];
        for (int64_t i = nope; i < d; ++i) {
          const int64_t source = t * width + rank + i - nope;
          tile[i * kTileTokens + t] = kv_dtype_ == DType::kBF16 ? bf16_to_float(reinterpret_cast<const uint16_t*>(block)[source]) : reinterpret_cast<const float*>(block)[source];
        }
      }
    }
  }
  const HeadCache cache{.tiles = {reinterpret_cast<const std::byte*>(scratch), nullptr, tile_floats * 4}, .key_offset = 0,
                        .value_offset = kTileTokens * d * 4, .head_dim = d, .value_dim = v, .dtype = DType::kF32};
  std::array<AttentionQuery, 16> queries;
  for (int64_t first = 0; first < num_rows; first += static_cast<int64_t>(queries.size())) {
    const int64_t count = std::min(static_cast<int64_t>(queries.size()), num_rows - first);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (group.first_row + first + i) * config_.num_heads + head;
      queries[static_cast<size_t>(i)] = {w.q.data() + at * d, w.attention_out.data() + at * v, group.start_position + first + i};
    }
    attend(cache, static_cast<float>(config_.softmax_scale), 0, {queries.data(), static_cast<size_t>(count)});
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
