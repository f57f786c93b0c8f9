#include "attention/gqa.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/elementwise.h"

namespace cadre {
namespace {

// Rows of one sequence that one task attends with: they share the reading of each tile.
constexpr int64_t kRowsPerTask = 8;

void store_values(std::byte* dst, int64_t stride, const float* src, int64_t n, DType dtype) {
  if (dtype == DType::kBF16) {
    uint16_t* out = reinterpret_cast<uint16_t*>(dst);
    for (int64_t i = 0; i < n; ++i) out[i * stride] = float_to_bf16(src[i]);
  } else {
    float* out = reinterpret_cast<float*>(dst);
    for (int64_t i = 0; i < n; ++i) out[i * stride] = src[i];
  }
}

}  // namespace

GqaWorkspace::GqaWorkspace(const AttentionConfig& c, int64_t max_rows, int64_t hidden) {
  rounded.resize(static_cast<size_t>(max_rows * hidden));
  q.resize(static_cast<size_t>(max_rows * c.num_heads * c.head_dim));
  o.resize(q.size());
  k.resize(static_cast<size_t>(max_rows * c.num_kv_heads * c.head_dim));
  v.resize(k.size());
  if (c.qk_norm == QkNorm::kAllHeads) square_sums.resize(static_cast<size_t>(2 * max_rows));
}

int64_t GqaWeights::bytes() const {
  return q.bytes() + k.bytes() + v.bytes() + o.bytes() + static_cast<int64_t>((q_norm.size() + k_norm.size() + sinks.size()) * sizeof(float));
}

int64_t gqa_block_bytes(const AttentionConfig& c, DType kv_dtype) {
  return 2 * kTileTokens * c.num_kv_heads * c.head_dim * static_cast<int64_t>(dtype_bytes(kv_dtype));
}

GqaAttention::GqaAttention(const AttentionConfig& config, const Rope& rope, double norm_eps, int64_t sliding_window, DType kv_dtype, GqaWeights weights)
    : config_(config), rope_(rope), norm_eps_(static_cast<float>(norm_eps)), sliding_window_(sliding_window), kv_dtype_(kv_dtype), weights_(std::move(weights)) {}

void GqaAttention::forward(const AttentionStep& step, const float* x, float* out, GqaWorkspace& w) const {
  const int64_t rows = step.num_rows();
  const bool rounds = weights_.q.rounds_input || weights_.k.rounds_input || weights_.v.rounds_input;
  const SharedInput in = share_input(x, rows, weights_.q.in_features(), rounds, w.rounded, *step.pool);
  weights_.q.apply(in.of(weights_.q), rows, w.q.data(), *step.pool);
  weights_.k.apply(in.of(weights_.k), rows, w.k.data(), *step.pool);
  weights_.v.apply(in.of(weights_.v), rows, w.v.data(), *step.pool);
  if (config_.qk_norm == QkNorm::kAllHeads && step.sum_over_head_parts) norm_over_parts(step, w);
  step.clear_new_blocks();
  step.pool->parallel_for(rows, [&](int64_t row, int) {
    prepare_row(step, row, w);
    store_row(step, row, w);
  });
  // A task is up to kRowsPerTask rows of one sequence and one KV head; a row that does not open its part has none.
  step.pool->parallel_for(rows * config_.num_kv_heads, [&](int64_t task, int) { attend_rows(step, task / config_.num_kv_heads, task % config_.num_kv_heads, w); });
  weights_.o.round_and_apply(w.o.data(), rows, out, *step.pool);
}

// The norm over all heads' values of a row, of which this rank holds a part. KV heads that several ranks hold alike count as
// often in the sum as in the mean.
void GqaAttention::norm_over_parts(const AttentionStep& step, GqaWorkspace& w) const {
  const int64_t rows = step.num_rows(), q_width = config_.num_heads * config_.head_dim, k_width = config_.num_kv_heads * config_.head_dim;
  const auto square_sum = [](const float* x, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
    return sum;
  };
  const auto scale = [&](float* x, const std::vector<float>& norm, int64_t n, float sum) {
    const float factor = 1.0f / std::sqrt(sum / static_cast<float>(n * step.num_head_parts) + norm_eps_);
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] * factor * norm[static_cast<size_t>(i)];
  };
  float* sums = w.square_sums.data();
  step.pool->parallel_for(rows, [&](int64_t r, int) {
    sums[2 * r] = square_sum(w.q.data() + r * q_width, q_width);
    sums[2 * r + 1] = square_sum(w.k.data() + r * k_width, k_width);
  });
  (*step.sum_over_head_parts)(sums, 2 * rows);
  step.pool->parallel_for(rows, [&](int64_t r, int) {
    scale(w.q.data() + r * q_width, weights_.q_norm, q_width, sums[2 * r]);
    scale(w.k.data() + r * k_width, weights_.k_norm, k_width, sums[2 * r + 1]);
  });
}

void GqaAttention::prepare_row(const AttentionStep& step, int64_t row, GqaWorkspace& w) const {
  const int64_t d = config_.head_dim;
  const auto prepare = [&](float* x, int64_t heads, const std::vector<float>& norm) {
    if (config_.qk_norm == QkNorm::kAllHeads && !step.sum_over_head_parts) rms_norm(x, norm.data(), norm_eps_, heads * d, x);
    if (config_.clip_qkv > 0)
      for (int64_t i = 0; i < heads * d; ++i) x[i] = std::clamp(x[i], -static_cast<float>(config_.clip_qkv), static_cast<float>(config_.clip_qkv));
    for (int64_t h = 0; h < heads; ++h) {
      if (config_.qk_norm == QkNorm::kPerHead) rms_norm(x + h * d, norm.data(), norm_eps_, d, x + h * d);
      rope_.rotate(step.cos + row * rope_.half_dim(), step.sin + row * rope_.half_dim(), x + h * d);
    }
  };
  prepare(w.q.data() + row * config_.num_heads * d, config_.num_heads, weights_.q_norm);
  prepare(w.k.data() + row * config_.num_kv_heads * d, config_.num_kv_heads, weights_.k_norm);
  if (config_.clip_qkv > 0) {
    float* v = w.v.data() + row * config_.num_kv_heads * d;
    for (int64_t i = 0; i < config_.num_kv_heads * d; ++i) v[i] = std::clamp(v[i], -static_cast<float>(config_.clip_qkv), static_cast<float>(config_.clip_qkv));
  }
}

void GqaAttention::store_row(const AttentionStep& step, int64_t row, const GqaWorkspace& w) const {
  const int64_t d = config_.head_dim, bytes = static_cast<int64_t>(dtype_bytes(kv_dtype_)), head_bytes = 2 * kTileTokens * d * bytes;
  const int64_t slot = step.positions[static_cast<size_t>(row)] % kTileTokens;
  std::byte* block = step.kv->block(step.layer, step.block_of_row(row));
  for (int64_t h = 0; h < config_.num_kv_heads; ++h) {
    const int64_t at = (row * config_.num_kv_heads + h) * d;
    store_values(block + h * head_bytes + slot * bytes, kTileTokens, w.k.data() + at, d, kv_dtype_);
    store_values(block + h * head_bytes + (kTileTokens + slot) * d * bytes, 1, w.v.data() + at, d, kv_dtype_);
  }
}

void GqaAttention::attend_rows(const AttentionStep& step, int64_t row, int64_t kv_head, GqaWorkspace& w) const {
  const RowGroup& group = step.groups[static_cast<size_t>(step.group_of_row[static_cast<size_t>(row)])];
  const int64_t offset = row - group.first_row;
  if (offset % kRowsPerTask != 0) return;
  const int64_t num_rows = std::min(kRowsPerTask, group.num_rows - offset), per_kv = config_.num_heads / config_.num_kv_heads;
  const int64_t d = config_.head_dim, bytes = static_cast<int64_t>(dtype_bytes(kv_dtype_));
  const HeadCache cache{.tiles = {step.kv->block(step.layer, 0), group.blocks.data(), step.kv->layout().block_bytes},
                        .key_offset = kv_head * 2 * kTileTokens * d * bytes,
                        .value_offset = (kv_head * 2 + 1) * kTileTokens * d * bytes,
                        .head_dim = d, .value_dim = d, .dtype = kv_dtype_};
  std::array<AttentionQuery, 64> queries;
  size_t count = 0;
  for (int64_t r = row; r < row + num_rows; ++r) {
    for (int64_t h = kv_head * per_kv; h < (kv_head + 1) * per_kv; ++h) {
      const int64_t at = (r * config_.num_heads + h) * d;
      AttentionQuery& query = queries[count++];
      query = {w.q.data() + at, w.o.data() + at, step.positions[static_cast<size_t>(r)]};
      if (!weights_.sinks.empty()) query.sink = weights_.sinks[static_cast<size_t>(h)];
      if (count == queries.size()) {
        attend(cache, static_cast<float>(config_.softmax_scale), sliding_window_, {queries.data(), count});
        count = 0;
      }
    }
  }
  attend(cache, static_cast<float>(config_.softmax_scale), sliding_window_, {queries.data(), count});
}

}  // namespace cadre
