// Which part of a model a rank holds: its heads, its slices of feed-forwards, its experts. The one answer for the loader, the
// bytes of a rank (rank_bytes.h) and the planner.
#pragma once

#include <cstdint>

#include "config/model_config.h"
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
  int ep_rank = 0;  // whose slots of the expert placement
};

Shard shard_of(const Layout& layout, int world_rank);

// The attention as this rank sees it: its heads only.
AttentionConfig attention_part(const AttentionConfig& attention, const Part& heads);

}  // namespace cadre
