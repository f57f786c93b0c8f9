#include "parallel/traffic_cost.h"

#include <algorithm>

#include "base/check.h"

namespace cadre {
namespace {

TrafficCount& of(TrafficCounts& counts, Traffic traffic) { return counts[static_cast<size_t>(traffic)]; }

// One all-gather and, when asked for, one reduce-scatter of rows over ranks with these rows.
TrafficCount gather_cost(std::span<const int64_t> rows, int rank, int64_t bytes_per_row) {
  const GatherMode mode = choose_gather_mode(rows);
  return {1, part_rows(mode, rows, rank) * (static_cast<int64_t>(rows.size()) - 1) * bytes_per_row};
}

TrafficCount reduce_cost(std::span<const int64_t> rows, int rank, int64_t bytes_per_row) {
  const GatherMode mode = choose_gather_mode(rows);
  int64_t sent = 0;
  if (mode == GatherMode::kMaxLen) sent = part_rows(mode, rows, rank) * (static_cast<int64_t>(rows.size()) - 1);
  else
    for (size_t d = 0; d < rows.size(); ++d) sent += d == static_cast<size_t>(rank) ? 0 : rows[d];
  return {1, sent * bytes_per_row};
}

std::vector<int64_t> rows_of(const std::vector<int>& members, const std::vector<int64_t>& world_rows) {
  std::vector<int64_t> out;
  for (const int m : members) out.push_back(world_rows[static_cast<size_t>(m)]);
  return out;
}

int index_in(const std::vector<int>& members, int rank) { return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin()); }

void add_all_gather_exchange(const ModelConfig& config, const Layout& layout, const std::vector<int64_t>& world_rows, const LayerTrafficInput& input, TrafficCounts* out) {
  const int64_t chunk = exchange_chunk_rows(layout.exchange, layout.world), longest = *std::max_element(world_rows.begin(), world_rows.end());
  const int64_t wire = row_bytes(config.hidden_size, input.is_fp8_dispatch, input.activation_bytes), top_k = config.moe.router.top_k, hidden_bytes = config.hidden_size * input.activation_bytes;
  for (int64_t first = 0; first < longest; first += chunk) {
    std::vector<int64_t> rows;
    for (const int64_t r : world_rows) rows.push_back(std::clamp<int64_t>(r - first, 0, chunk));
    of(*out, Traffic::kMoeGather) += gather_cost(rows, input.world_rank, wire);
    of(*out, Traffic::kDispatchCounts) +=
        {1, rows[static_cast<size_t>(input.world_rank)] * top_k * (kDispatchSlotBytes + kDispatchWeightBytes) * (layout.world - 1)};
    if (layout.combine == CombineOrder::kPerRank) of(*out, Traffic::kMoeReduce) += reduce_cost(rows, input.world_rank, hidden_bytes);
    else ++of(*out, Traffic::kCombine).calls;
  }
  if (layout.combine == CombineOrder::kExact) of(*out, Traffic::kCombine).bytes_sent += input.in.pairs_to_others * hidden_bytes;
}

void add_all_to_all(const ModelConfig& config, const Layout& layout, const std::vector<int64_t>& world_rows, const LayerTrafficInput& input, TrafficCounts* out) {
  const ExchangeKind kind = exchange_for_step(layout.exchange, world_rows);
  const int64_t chunk = exchange_chunk_rows(kind, layout.world), chunks = (*std::max_element(world_rows.begin(), world_rows.end()) + chunk - 1) / chunk;
  const int64_t wire = row_bytes(config.hidden_size, input.is_fp8_dispatch, input.activation_bytes), hidden_bytes = config.hidden_size * input.activation_bytes;
  const bool is_exact = layout.combine == CombineOrder::kExact;
  TrafficCount& dispatch = of(*out, Traffic::kDispatch);
  TrafficCount& combine = of(*out, Traffic::kCombine);
  dispatch.calls += chunks;
  combine.calls += chunks;
  if (input.counts_rows) of(*out, Traffic::kDispatchCounts) += {chunks, chunks * config.moe.router.num_experts * kRowCountBytes * (layout.world - 1)};
  if (kind == ExchangeKind::kAllToAllLowLatency) {
    const int64_t slots = (config.moe.router.num_experts + layout.redundant_experts + layout.ep - 1) / layout.ep;
    dispatch.bytes_sent += chunks * (layout.world - 1) * slots * kDispatchHeaderBytes / 2 + input.out.pairs_to_others * wire;
    combine.bytes_sent += input.in.pairs_to_others * hidden_bytes;
    return;
  }
  dispatch.bytes_sent += chunks * (layout.world - 1) * kDispatchHeaderBytes + input.out.rows_to_others * (wire + kDispatchRowBytes) +
                         input.out.pairs_to_others * (kDispatchSlotBytes + (is_exact ? 0 : kDispatchWeightBytes));
  combine.bytes_sent += (is_exact ? input.in.pairs_to_others : input.in.rows_to_others) * hidden_bytes;
}

}  // namespace

int64_t exchange_chunk_rows(ExchangeKind kind, int world) {
  return kind == ExchangeKind::kAllToAllLowLatency ? std::max(16, 256 / world) : std::max(32, 1024 / world);
}

ExchangeKind exchange_for_step(ExchangeKind kind, std::span<const int64_t> world_rows) {
  if (kind != ExchangeKind::kAuto) return kind;
  const int64_t most = exchange_chunk_rows(ExchangeKind::kAllToAllLowLatency, static_cast<int>(world_rows.size()));
  return *std::max_element(world_rows.begin(), world_rows.end()) <= most ? ExchangeKind::kAllToAllLowLatency : ExchangeKind::kAllToAll;
}

DispatchRows count_dispatch(const Layout& layout, const ExpertPlacement& placement, int world_rank, std::span<const int32_t> ids, int64_t top_k) {
  const int own = layout.coords(world_rank).ep;
  DispatchRows out;
  for (size_t row = 0; row < ids.size(); row += static_cast<size_t>(top_k)) {
    std::vector<int> pairs_of_rank(static_cast<size_t>(layout.ep));
    for (size_t j = row; j < row + static_cast<size_t>(top_k); ++j) ++pairs_of_rank[static_cast<size_t>(placement.rank_of_slot(placement.expert_to_slots(ids[j])[0]))];
    for (int r = 0; r < layout.ep; ++r) {
      const int pairs = pairs_of_rank[static_cast<size_t>(r)], ranks = r == own ? layout.moe_tp - 1 : layout.moe_tp;
      if (pairs > 0) out += {ranks, pairs * ranks};
    }
  }
  return out;
}

ExpectedDispatch expected_dispatch(const Layout& layout, int64_t num_experts, int64_t top_k) {
  ExpectedDispatch out;
  for (int rank = 0; rank < layout.ep; ++rank) {
    const int64_t held = even_slice(num_experts, layout.ep, rank).count;
    double missed = 1;  // C(num_experts - held, top_k) / C(num_experts, top_k)
    for (int64_t i = 0; i < top_k; ++i) missed *= static_cast<double>(std::max<int64_t>(num_experts - held - i, 0)) / static_cast<double>(num_experts - i);
    const double hit = 1 - missed, pairs = static_cast<double>(held * top_k) / static_cast<double>(num_experts);
    // Of the world's rows, a share 1 / ep starts in this rank's own group, where one rank fewer is another's.
    const double other_ranks = layout.moe_tp - 1.0 / layout.ep;
    out.ranks_hit += hit;
    out.rows_to_others += hit * other_ranks;
    out.pairs_to_others += pairs * other_ranks;
  }
  return out;
}

TrafficCounts predict_layer_traffic(const ModelConfig& config, const Layout& layout, const LayerPlan& plan, const LayerTrafficInput& input) {
  TrafficCounts out{};
  std::vector<int64_t> world_rows(static_cast<size_t>(layout.world));
  scattered_rows(layout, input.dp_rows, world_rows);
  const int64_t hidden_bytes = config.hidden_size * input.activation_bytes;
  const auto add_half = [&](const HalfPlan& half, Traffic gather, Traffic reduce) {
    if (half.gather == GroupKind::kNone) return;
    std::vector<int> members = layout.attn_tp_members(input.world_rank);
    if (half.gather == GroupKind::kDenseTp) members = layout.dense_tp_members(input.world_rank);
    if (half.gather == GroupKind::kWorld) {
      members.clear();
      for (int r = 0; r < layout.world; ++r) members.push_back(r);
    }
    const auto rows = rows_of(members, world_rows);
    const int rank = index_in(members, input.world_rank);
    of(out, gather) += gather_cost(rows, rank, hidden_bytes);
    of(out, reduce) += reduce_cost(rows, rank, hidden_bytes);
  };
  add_half(plan.attention, Traffic::kAttentionGather, Traffic::kAttentionReduce);
  if (layout.attn_tp > 1 && config.attention.qk_norm == QkNorm::kAllHeads)
    of(out, Traffic::kRowNorm) += {1, input.dp_rows[static_cast<size_t>(layout.coords(input.world_rank).attn_dp)] * 2 * 4 * (layout.attn_tp - 1)};
  if (!plan.is_sparse) add_half(plan.feed_forward, Traffic::kDenseGather, Traffic::kDenseReduce);
  else if (plan.feed_forward.exchange == ExchangeKind::kNone) add_half(plan.feed_forward, Traffic::kMoeGather, Traffic::kMoeReduce);
  else if (plan.feed_forward.exchange == ExchangeKind::kAllGatherReduceScatter) add_all_gather_exchange(config, layout, world_rows, input, &out);
  else add_all_to_all(config, layout, world_rows, input, &out);
  return out;
}

}  // namespace cadre
