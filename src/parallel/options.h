// From the flags a user wrote, in either engine's spelling, to the effective layout. What cannot run is refused with the
// reason before anything is loaded; what is legal but not literally what was written comes back as a note. The rules are
// one table (layout_rules.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"
#include "parallel/layout.h"

namespace cadre {

inline constexpr int kMaxRanks = 4096;

// As written; unset means not written.
struct ParallelOptions {
  // SGLang's: --tp-size is the world, which data-parallel attention divides.
  std::optional<int> tp_size, dp_size, ep_size, attn_cp_size, moe_dense_tp_size;
  bool enable_dp_attention = false;
  std::optional<std::string> moe_a2a_backend;
  // vLLM's: the world is the product of these, and expert parallelism is all of it or none.
  std::optional<int> tensor_parallel_size, data_parallel_size, prefill_context_parallel_size;
  bool enable_expert_parallel = false;
  std::optional<std::string> all2all_backend;
  // Of both, or Cadre's own.
  std::optional<std::string> expert_placement_strategy;  // linear, round_robin
  bool enable_eplb = false;
  int64_t num_redundant_experts = 0;          // slots beyond one for each expert, over all ranks
  std::optional<std::string> dispatch_dtype;  // auto, fp8
  std::optional<std::string> combine_order;   // exact, per_rank
};

struct ResolvedLayout {
  Layout layout;
  bool is_fp8_dispatch = false;
  bool is_eplb_enabled = false;
  std::vector<std::string> notes;  // sentences
};

// kv_dtype: of the cache, for the notes that price it. Throws Error naming the option and the reason.
ResolvedLayout resolve_layout(const ParallelOptions& options, const ModelConfig& config, DType kv_dtype = DType::kF32);

// Throws Error (kUnsupported) for layouts whose arithmetic is here and whose running is not.
void refuse_unrunnable(const ResolvedLayout& resolved);

// A name of --all2all-backend and --moe-a2a-backend: ours, other engines' for the same, and ones they removed.
struct ExchangeName {
  std::string_view name;
  ExchangeKind kind;
  bool is_removed = false;
};
const ExchangeName* find_exchange(std::string_view name);  // null: unknown
std::string exchange_names();                              // those that are not removed, for messages

}  // namespace cadre
