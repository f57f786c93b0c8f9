#include "parallel/layer_plan.h"

#include <algorithm>

#include "base/check.h"

namespace cadre {
namespace {

HalfPlan split_half(ScatterMode mode, GroupKind group) { return {mode, group, group, ReductionOwner::kReduceScatter, ExchangeKind::kNone}; }

HalfPlan plan_attention(const Layout& layout) {
  if (layout.attn_tp == 1) return {};
  return split_half(ScatterMode::kTpAttnFull, GroupKind::kAttnTp);
}

HalfPlan plan_dense(const Layout& layout) {
  if (layout.dense_tp == 1) return {};
  if (layout.dense_tp == layout.attn_tp) return split_half(ScatterMode::kTpAttnFull, GroupKind::kAttnTp);
  return split_half(layout.dense_tp == layout.world ? ScatterMode::kFull : ScatterMode::kMoeFull, GroupKind::kDenseTp);
}

HalfPlan plan_sparse(const Layout& layout) {
  if (layout.world == 1) return {};
  if (layout.ep == 1) return split_half(ScatterMode::kFull, GroupKind::kWorld);
  if (layout.exchange != ExchangeKind::kAllGatherReduceScatter) return {ScatterMode::kScattered, GroupKind::kNone, GroupKind::kNone, ReductionOwner::kCombine, layout.exchange};
  HalfPlan half{ScatterMode::kFull, GroupKind::kWorld, GroupKind::kNone, ReductionOwner::kCombine, layout.exchange};
  if (layout.combine == CombineOrder::kPerRank) half.reduce = GroupKind::kWorld, half.owner = ReductionOwner::kReduceScatter;
  return half;
}

}  // namespace

std::string_view scatter_mode_name(ScatterMode mode) {
  constexpr std::string_view kNames[] = {"SCATTERED", "TP_ATTN_FULL", "FULL", "MOE_FULL"};
  return kNames[static_cast<size_t>(mode)];
}

std::string_view group_kind_name(GroupKind kind) {
  constexpr std::string_view kNames[] = {"none", "attn_tp", "dense_tp", "world"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<LayerPlan> plan_layers(const ModelConfig& config, const Layout& layout) {
  std::vector<LayerPlan> out;
  for (const LayerConfig& layer : config.layers)
    out.push_back({layer.is_sparse, plan_attention(layout), layer.is_sparse ? plan_sparse(layout) : plan_dense(layout)});
  return out;
}

GatherMode choose_gather_mode(std::span<const int64_t> rows) {
  int64_t longest = 0, sum = 0;
  for (const int64_t r : rows) longest = std::max(longest, r), sum += r;
  return sum * 2 >= longest * static_cast<int64_t>(rows.size()) ? GatherMode::kMaxLen : GatherMode::kSumLen;
}

int64_t part_rows(GatherMode mode, std::span<const int64_t> rows, int rank) {
  return mode == GatherMode::kMaxLen ? *std::max_element(rows.begin(), rows.end()) : rows[static_cast<size_t>(rank)];
}

int64_t row_bytes(int64_t hidden, bool is_fp8, int64_t activation_bytes) { return is_fp8 ? hidden + (hidden + 127) / 128 * 4 : hidden * activation_bytes; }

}  // namespace cadre
