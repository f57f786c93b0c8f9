#include "parallel/plan_text.h"

#include <fmt/format.h>

namespace cadre {

std::string half_text(const HalfPlan& half) {
  std::string out(scatter_mode_name(half.compute));
  if (half.gather == GroupKind::kNone && half.exchange == ExchangeKind::kNone) return out + ": nothing moves";
  out += ':';
  if (half.gather != GroupKind::kNone) out += fmt::format(" all-gather over {},", group_kind_name(half.gather));
  if (half.exchange != ExchangeKind::kNone) {
    if (half.gather == GroupKind::kNone) out += " no gather,";
    out += fmt::format(" {},", half.gather == GroupKind::kNone
                                   ? fmt::format("dispatch and combine over world ({})", exchange_name(half.exchange))
                               : half.owner == ReductionOwner::kCombine ? "combine over world"
                                                                        : "each rank its own experts");
  }
  if (half.reduce != GroupKind::kNone) out += fmt::format(" reduce-scatter over {},", group_kind_name(half.reduce));
  return out + (half.owner == ReductionOwner::kCombine ? " the combine owns the sum" : " which owns the sum");
}

json::object half_json(const HalfPlan& half) {
  constexpr const char* kOwners[] = {"nobody", "reduce_scatter", "combine"};
  return {{"scatter_mode", scatter_mode_name(half.compute)}, {"gather", group_kind_name(half.gather)},
          {"reduce", group_kind_name(half.reduce)},          {"owner_of_sum", kOwners[static_cast<size_t>(half.owner)]},
          {"exchange", exchange_name(half.exchange)},        {"text", half_text(half)}};
}

}  // namespace cadre
