// How many KV blocks a rank gets from the memory of its machine: the one rule of start-up, doctor and planner.
#pragma once

#include <cstdint>

namespace cadre {

// Unless told, the cache takes this share of the memory that is free before weights are loaded, and never more than all
// sequences at full length can fill.
inline constexpr double kKvShareOfFreeMemory = 0.4;
// Where that and the weights do not go together, it takes this of what the weights leave.
inline constexpr double kKvShareOfTheRest = 0.9;
// Bytes for the caches of all ranks, unless told. fixed: what else is going to be allocated.
int64_t kv_bytes_unless_told(int64_t free_bytes, int64_t fixed_bytes);

struct KvBudget {
  int64_t bytes = 0;           // for all ranks of the machine together
  int num_ranks = 1;           // of them
  int64_t token_bytes = 0;     // rank_kv_bytes_per_token()
  int64_t max_num_seqs = 1, max_model_len = 1;
};
// Of each rank; 0 when not one fits.
int64_t kv_blocks_in(const KvBudget& budget);

}  // namespace cadre
