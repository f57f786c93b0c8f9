// Which part of a model's weights a rank holds: its heads, its slices of feed-forwards, its experts.
#pragma once

#include <cstdint>

#include "config/model_config.h"
#include "parallel/expert_placement.h"
#include "parallel/layout.h"

namespace cadre {

// One rank's part of a split.
struct Part {
  int index = 0, of = 1;
  Slice of_total(int64_t total) const { return even_slice(total, of, index); }
};

struct Shard {
  Part heads;   // of attention: q, k, v and the latent projections by output, o by input
  Part dense;   // of dense feed-forwards' width
  Part expert;  // of each routed expert's width
  Part shared;  // of the shared experts' width
  int ep_rank = 0;
  ExpertPlacement placement;  // of every sparse layer; empty for dense models
};

Shard shard_of(const ModelConfig& config, const Layout& layout, int world_rank);

// The attention as this rank sees it: its heads only.
AttentionConfig attention_part(const AttentionConfig& attention, const Part& heads);

// Bytes of KV cache for one token over all layers on a rank that holds this part of the heads.
int64_t kv_bytes_per_token(const ModelConfig& config, const Part& heads, DType kv_dtype);

}  // namespace cadre
