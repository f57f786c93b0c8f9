#include "parallel/layout.h"

#include <algorithm>

#include "base/check.h"

namespace cadre {

std::string_view exchange_name(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::kNone: return "none";
    case ExchangeKind::kAllGatherReduceScatter: return "allgather_reducescatter";
    case ExchangeKind::kAllToAll: return "alltoall";
    case ExchangeKind::kAllToAllLowLatency: return "alltoall_low_latency";
    case ExchangeKind::kAuto: return "auto";
  }
  return "?";
}

RankCoords Layout::coords(int rank) const {
  CADRE_CHECK(rank >= 0 && rank < world, "rank {} of {}", rank, world);
  RankCoords c;
  c.world = rank;
  c.attn_tp = rank % attn_tp;
  c.attn_cp = rank / attn_tp % attn_cp;
  c.attn_dp = rank / (attn_tp * attn_cp);
  c.moe_tp = rank % moe_tp;
  c.ep = rank / moe_tp;
  c.dense_tp = rank % dense_tp;
  return c;
}

std::vector<int> Layout::attn_tp_members(int rank) const {
  std::vector<int> out;
  for (int i = 0; i < attn_tp; ++i) out.push_back(rank / attn_tp * attn_tp + i);
  return out;
}

std::vector<int> Layout::dense_tp_members(int rank) const {
  std::vector<int> out;
  for (int i = 0; i < dense_tp; ++i) out.push_back(rank / dense_tp * dense_tp + i);
  return out;
}

Slice even_slice(int64_t total, int parts, int index) {
  const int64_t each = total / parts, more = total % parts;
  return {index * each + std::min<int64_t>(index, more), each + (index < more ? 1 : 0)};
}

Slice kv_head_slice(int64_t num_kv_heads, int parts, int index) {
  if (parts <= num_kv_heads) {
    CADRE_CHECK(num_kv_heads % parts == 0, "{} heads over {} ranks", num_kv_heads, parts);
    return even_slice(num_kv_heads, parts, index);
  }
  CADRE_CHECK(parts % num_kv_heads == 0, "{} heads over {} ranks", num_kv_heads, parts);
  return {index / (parts / num_kv_heads), 1};
}

void scattered_rows(const Layout& layout, std::span<const int64_t> dp_rows, std::span<int64_t> world_rows) {
  CADRE_CHECK(static_cast<int>(dp_rows.size()) == layout.attn_dp && static_cast<int>(world_rows.size()) == layout.world, "{} and {} counts", dp_rows.size(), world_rows.size());
  for (int rank = 0; rank < layout.world; ++rank) {
    const RankCoords c = layout.coords(rank);
    world_rows[static_cast<size_t>(rank)] = even_slice(dp_rows[static_cast<size_t>(c.attn_dp)], layout.attn_tp, c.attn_tp).count;
  }
}

}  // namespace cadre
