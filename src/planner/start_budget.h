// What a run of this engine allocates on this machine, before it does: the check at start (`cadre serve`) and `cadre plan --check`.
// Weights and KV pools are exact, to the byte; buffers and workspaces are the sum of their large parts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "parallel/rank_bytes.h"
#include "planner/saturate.h"
#include "tensor/packed_layout.h"

namespace cadre::planner {

struct StartRequest {
  const ModelConfig* config = nullptr;
  Layout layout;
  DType kv_dtype = DType::kF32;
  std::optional<WeightFormat> quantization;  // of weights when they are loaded
  int64_t max_rows = 0, max_sequences = 0, num_threads = 1;  // threads of a rank
  bool is_fp8_dispatch = false;
  std::vector<int> ranks;  // world ranks of this machine
  int64_t memory = 0;      // bytes that may be taken
};

struct RankBudget {
  int rank = 0;
  RankBytes weights;
  int64_t exchange = 0, workspace = 0, kv_pool = 0;
  int64_t fixed() const { return add_counts(weights.total(), add_counts(exchange, workspace)); }
  int64_t total() const { return add_counts(fixed(), kv_pool); }
};

struct StartBudget {
  std::vector<RankBudget> ranks;
  int64_t memory = 0, kv_block_bytes = 0, num_kv_blocks = 0, attn_dp = 1;
  int64_t fixed() const;
  int64_t total() const;
  int64_t missing() const { return total() > memory ? total() - memory : 0; }
  // Blocks a rank that the memory has room for; 0 where weights and buffers leave none.
  int64_t most_kv_blocks() const;
  void set_kv_blocks(int64_t blocks);  // of each rank
};
// Without KV blocks yet.
StartBudget start_budget(const StartRequest& request);

// A table of several lines.
std::string budget_text(const StartBudget& budget);
json::object budget_json(const StartBudget& budget);

// Throws Error when the budget exceeds the memory: what is missing and what would do.
void refuse_what_does_not_fit(const StartBudget& budget);

}  // namespace cadre::planner
