// Grouped-query attention (Ainslie et al. 2023) over the paged cache: optional biases, QK norm, clipping, partial
// rotary, sliding window, sinks. Cache of a layer's block: per KV head keys [head_dim][16], values [16][head_dim].
#pragma once

#include <vector>

#include "attention/attention_step.h"
#include "attention/rope.h"
#include "config/model_config.h"
#include "kernels/linear.h"

namespace cadre {

struct GqaWeights {
  Linear q, k, v, o;
  std::vector<float> q_norm, k_norm;  // [head_dim] or [heads * head_dim], by AttentionConfig::qk_norm
  std::vector<float> sinks;           // [num_heads] or empty
  int64_t bytes() const;              // of memory
};

// Scratch of one step, shared by all layers.
struct GqaWorkspace {
  // hidden: of inputs to round to FP8; 0: none are.
  GqaWorkspace(const AttentionConfig& config, int64_t max_rows, int64_t hidden);
  std::vector<float> rounded;  // [max_rows, hidden]
  std::vector<float> q, k, v, o;
  std::vector<float> square_sums;  // [max_rows, 2] of q and of k, for norms over heads on several ranks
};

int64_t gqa_block_bytes(const AttentionConfig& config, DType kv_dtype);

class GqaAttention {
 public:
  // rope and config must outlive the object.
  GqaAttention(const AttentionConfig& config, const Rope& rope, double norm_eps, int64_t sliding_window, DType kv_dtype, GqaWeights weights);
  // x, out: [rows, hidden]. Appends the rows' keys and values to the cache, then attends.
  void forward(const AttentionStep& step, const float* x, float* out, GqaWorkspace& w) const;
  const GqaWeights& weights() const { return weights_; }

 private:
  void norm_over_parts(const AttentionStep& step, GqaWorkspace& w) const;
  void prepare_row(const AttentionStep& step, int64_t row, GqaWorkspace& w) const;
  void store_row(const AttentionStep& step, int64_t row, const GqaWorkspace& w) const;
  void attend_rows(const AttentionStep& step, int64_t row, int64_t kv_head, GqaWorkspace& w) const;

  const AttentionConfig& config_;
  const Rope& rope_;
  float norm_eps_;
  int64_t sliding_window_;
  DType kv_dtype_;
  GqaWeights weights_;
};

}  // namespace cadre
