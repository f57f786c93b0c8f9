// What a rank sends in a layer, predicted from rows and routing; equal to what its groups count, to the byte.
#pragma once

#include <cstdint>
#include <span>

#include "parallel/expert_placement.h"
#include "parallel/layer_plan.h"

namespace cadre {

// Rows of one rank that an exchange handles at a time: about 1024 of all ranks together, 256 in low-latency mode. That
// bounds the memory for what may arrive; more rows go in chunks.
inline constexpr int64_t kLocalExchangeRows = 512;  // whose expert outputs are held at once where nothing moves
int64_t exchange_chunk_rows(ExchangeKind kind, int world);
// kAuto becomes one of the two: low latency while no rank has more rows than one of its chunks.
ExchangeKind exchange_for_step(ExchangeKind kind, std::span<const int64_t> world_rows);

// What a dispatch message holds beside rows. One header a message; per row how many of its experts follow; per expert its
// slot, and its weight where the destination adds up.
inline constexpr int64_t kDispatchHeaderBytes = 8, kDispatchRowBytes = 4, kDispatchSlotBytes = 4, kDispatchWeightBytes = 4;
// Of each expert, to every other rank, where the choice of replicas needs the rows of all (kDispatchCounts).
inline constexpr int64_t kRowCountBytes = 2;

// What the routing of one rank's rows makes it send, over all its chunks.
struct DispatchRows {
  int64_t rows_to_others = 0;    // (row, destination rank) without this rank
  int64_t pairs_to_others = 0;   // (row, expert) by destination rank: an expert split by moe_tp counts on each of its ranks
  DispatchRows& operator+=(const DispatchRows& o) {
    rows_to_others += o.rows_to_others;
    pairs_to_others += o.pairs_to_others;
    return *this;
  }
};
// ids: [rows, top_k] of a rank's rows. slot_of(row, j) would choose replicas; here each expert's first slot is meant.
DispatchRows count_dispatch(const Layout& layout, const ExpertPlacement& placement, int world_rank, std::span<const int32_t> ids, int64_t top_k);

// The mean of count_dispatch over all ranks, per row, when every set of top_k experts is as likely as any other (a
// hypergeometric draw) and each expert has one slot, as ExpertPlacement::initial gives them.
struct ExpectedDispatch {
  double ranks_hit = 0;        // EP ranks that hold at least one of a row's experts, the row's own among them
  double rows_to_others = 0;
  double pairs_to_others = 0;
};
ExpectedDispatch expected_dispatch(const Layout& layout, int64_t num_experts, int64_t top_k);

struct LayerTrafficInput {
  std::span<const int64_t> dp_rows;  // rows of each data-parallel rank
  int world_rank = 0;
  // Sparse layers with expert parallelism: what this rank's rows send to others, and what others' rows send to it.
  DispatchRows out, in;
  bool is_fp8_dispatch = false;
  bool counts_rows = false;  // ReplicaSplit::needs_counts() of the layer: all-to-all exchanges tell each other row counts first
  int64_t activation_bytes = kActivationBytes;
};
TrafficCounts predict_layer_traffic(const ModelConfig& config, const Layout& layout, const LayerPlan& plan, const LayerTrafficInput& input);

}  // namespace cadre
