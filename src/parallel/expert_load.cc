#include "parallel/expert_load.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace cadre {

ExpertLoad::ExpertLoad(int64_t num_layers, int64_t num_experts)
    : num_layers_(num_layers), num_experts_(num_experts), rows_(static_cast<size_t>(num_layers * num_experts)) {}

void ExpertLoad::add(int64_t layer, std::span<const int32_t> ids) {
  CADRE_CHECK(layer >= 0 && layer < num_layers_, "layer {} of {}", layer, num_layers_);
  std::atomic<int64_t>* of_layer = rows_.data() + layer * num_experts_;
  for (const int32_t id : ids) of_layer[id].fetch_add(1, std::memory_order_relaxed);
}

std::vector<int64_t> ExpertLoad::rows(int64_t layer) const {
  std::vector<int64_t> out(static_cast<size_t>(num_experts_));
  for (size_t e = 0; e < out.size(); ++e)
    out[e] = rows_[static_cast<size_t>(layer * num_experts_) + e].load(std::memory_order_relaxed);
  return out;
}

std::vector<double> rank_loads(const ExpertPlacement& placement, std::span<const double> rows_of_expert) {
  CADRE_CHECK(static_cast<int64_t>(rows_of_expert.size()) == placement.num_experts(), "{} experts of {}",
              rows_of_expert.size(), placement.num_experts());
  std::vector<double> out(static_cast<size_t>(placement.ep()));
  for (size_t s = 0; s < placement.slot_to_expert().size(); ++s) {
    const int32_t e = placement.slot_to_expert()[s];
    if (e != kEmptySlot)
      out[static_cast<size_t>(placement.rank_of_slot(static_cast<int64_t>(s)))] +=
          rows_of_expert[static_cast<size_t>(e)] / static_cast<double>(placement.expert_to_slots(e).size());
  }
  return out;
}

std::vector<double> rank_loads(const ExpertPlacement& placement, std::span<const int64_t> rows_of_expert) {
  return rank_loads(placement, std::vector<double>(rows_of_expert.begin(), rows_of_expert.end()));
}

void Balancedness::add(std::span<const double> loads) {
  if (loads.empty()) return;
  sum_of_means_ += std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
  sum_of_maxima_ += *std::max_element(loads.begin(), loads.end());
}

}  // namespace cadre
