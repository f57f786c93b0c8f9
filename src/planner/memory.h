// What a rank's memory is for, and how many tokens fit: the budget of a plan and of the check at start. Never negative: what
// does not fit is told as what is missing.
#pragma once

#include <cstdint>

#include "planner/hardware.h"
#include "planner/planned_model.h"
#include "planner/saturate.h"

namespace cadre::planner {

struct MemoryOptions {
  int64_t kv_bytes_per_token = 0;  // on one rank; 0: kv_value_bytes for each value
  double kv_value_bytes = 2;
  int64_t max_rows = 512;  // of a step on a data-parallel rank
  int64_t max_sequences = 64;
  int64_t activation_bytes = 2;
  bool is_fp8_dispatch = false;
  int ranks_weighed = 64;  // of which the fullest is meant; they differ by an expert or a block of scales at most
};

struct MemoryBudget {
  int64_t memory = 0;  // of the device
  int64_t reserve = 0;
  RankBytes weights;      // of the fullest rank, replicas included
  int64_t replicas = 0;   // bytes of second and further replicas among them
  int64_t exchange = 0;   // buffers of dispatch and combine
  int64_t workspace = 0;  // rows of a step
  int64_t kv_pool = 0;    // what is left
  int64_t missing = 0;    // bytes that weights, buffers and reserve exceed the memory by
  int64_t kv_bytes_per_token = 0;
  int64_t tokens = 0;          // of one rank
  int64_t cluster_tokens = 0;  // distinct ones
  int64_t fixed() const { return add_counts(add_counts(reserve, weights.total()), add_counts(exchange, workspace)); }
};
MemoryBudget plan_memory(const PlannedModel& model, const Layout& layout, const HardwareSpec& hardware, const MemoryOptions& options);

// Buffers of the exchange that a layout runs with, and rows of activations, after the engine's shapes (moe/, models/decoder.cc).
int64_t exchange_bytes(const ModelConfig& config, const Layout& layout, int64_t activation_bytes, bool is_fp8_dispatch);
int64_t workspace_bytes(const ModelConfig& config, const Layout& layout, int64_t max_rows, int64_t max_sequences, int64_t activation_bytes);

// Whole tokens in a pool; 0 where either is not positive.
int64_t tokens_in(int64_t pool_bytes, int64_t bytes_per_token);

// The two ways to hold attention's weights on `ranks` ranks that share everything else evenly, each with its own KV pool: each
// rank a part (tensor parallelism: every pool then holds the same latents) or all of them (data parallelism). The arithmetic of
// the decision between them, before embeddings, norms and rounding.
struct AttentionChoice {
  double weights_bytes = 0, pool_bytes = 0;  // of one rank
  double cluster_pool_bytes = 0;             // distinct
};
struct AttentionComparison {
  AttentionChoice split, replicated;
  double more_weights() const { return replicated.weights_bytes - split.weights_bytes; }
  double pool_loss() const { return split.pool_bytes > 0 ? 1 - replicated.pool_bytes / split.pool_bytes : 0; }
  double more_tokens() const { return split.cluster_pool_bytes > 0 ? replicated.cluster_pool_bytes / split.cluster_pool_bytes : 0; }
};
// is_cache_split: whether a split attention splits the cache too (KV heads), as latent attention does not.
AttentionComparison compare_attention(double weights_bytes, double attention_bytes, int ranks, double budget_bytes, bool is_cache_split);

}  // namespace cadre::planner
