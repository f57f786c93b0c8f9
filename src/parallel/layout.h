// Who does what in a deployment of several ranks: the effective layout, as one value, and each rank's place in it.
// Pure arithmetic; options.h makes one from flags and says what is wrong with them.
//
// world_rank = (attn_dp_rank * attn_cp + attn_cp_rank) * attn_tp + attn_tp_rank. The experts see the same world as
// ep x moe_tp, moe_tp fastest: world_rank = ep_rank * moe_tp + moe_tp_rank.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cadre {

// How rows reach the experts and their outputs come back.
enum class ExchangeKind : uint8_t {
  kNone,                     // experts split by tensor parallelism: all rows everywhere, one reduction
  kAllGatherReduceScatter,   // every row to every rank, which computes its own experts
  kAllToAll,                 // each row once to every rank that holds one of its experts (DeepEP's normal mode)
  kAllToAllLowLatency,       // each row once for every expert into fixed slots, bounded rows at a time (DeepEP's low-latency mode)
  kAuto,                     // the last two by the rows of the step
};
std::string_view exchange_name(ExchangeKind kind);

enum class PlacementStrategy : uint8_t { kLinear, kRoundRobin };

// In which order a row's expert outputs are added. kExact: one output row per (row, expert) comes back and the owner adds
// them in the row's top-k order, so that no layout changes a bit. kPerRank: each rank adds what it computed for a row and
// returns one row: fewer bytes, rounding depends on the placement.
enum class CombineOrder : uint8_t { kExact, kPerRank };

struct RankCoords {
  int world = 0, attn_dp = 0, attn_cp = 0, attn_tp = 0, ep = 0, moe_tp = 0, dense_tp = 0;
  bool operator==(const RankCoords&) const = default;
};

struct Layout {
  int world = 1;
  int attn_dp = 1, attn_cp = 1, attn_tp = 1;  // product: world
  int ep = 1, moe_tp = 1;                     // product: world
  int dense_tp = 1;                           // of dense feed-forwards: 1, attn_tp or world
  ExchangeKind exchange = ExchangeKind::kNone;
  PlacementStrategy placement = PlacementStrategy::kLinear;
  int64_t redundant_experts = 0;  // slots for second and further replicas, over all ranks
  CombineOrder combine = CombineOrder::kExact;
  bool operator==(const Layout&) const = default;

  RankCoords coords(int world_rank) const;
  // World ranks that split the heads of the sequences of world_rank, in attn_tp order.
  std::vector<int> attn_tp_members(int world_rank) const;
  // World ranks that split dense feed-forwards with world_rank.
  std::vector<int> dense_tp_members(int world_rank) const;
  // World rank of the data-parallel rank's leader: the one that schedules and samples.
  int leader_of(int attn_dp_rank) const { return attn_dp_rank * attn_cp * attn_tp; }
};

// A run of consecutive rows or heads.
struct Slice {
  int64_t first = 0, count = 0;
  bool operator==(const Slice&) const = default;
};

// Part `index` of `total` split over `parts` as evenly as can be: the first total % parts get one more.
Slice even_slice(int64_t total, int parts, int index);

// The part of num_kv_heads that a rank of attention TP `parts` holds: an even share, or, with more ranks than heads, one
// head that parts / num_kv_heads ranks hold alike. One must divide the other.
Slice kv_head_slice(int64_t num_kv_heads, int parts, int index);

// Rows that each world rank owns (its slice of its data-parallel rank's rows) from rows per data-parallel rank.
void scattered_rows(const Layout& layout, std::span<const int64_t> dp_rows, std::span<int64_t> world_rows);

}  // namespace cadre
