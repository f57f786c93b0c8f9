#include "eplb/model_plan.h"

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "parallel/layout.h"
#include "parallel/expert_load.h"

namespace cadre::eplb {
namespace {

double max_of(const std::vector<double>& loads) { return *std::max_element(loads.begin(), loads.end()); }

template <typename F>
double mean_over(const std::vector<LayerOutcome>& layers, F&& f) {
  double sum = 0;
  for (const LayerOutcome& l : layers) sum += f(l);
  return layers.empty() ? 1 : sum / static_cast<double>(layers.size());
}

}  // namespace

ModelPlacement trivial_placement(std::span<const int64_t> layers, const Cluster& cluster) {
  check_cluster(cluster);
  const int64_t per_rank = cluster.slots_per_rank();
  std::vector<int32_t> slots(static_cast<size_t>(cluster.ranks * per_rank), kEmptySlot);
  for (int rank = 0; rank < cluster.ranks; ++rank) {
    const Slice share = even_slice(cluster.num_experts, cluster.ranks, rank);
    for (int64_t i = 0; i < share.count; ++i)
      slots[static_cast<size_t>(rank * per_rank + i)] = static_cast<int32_t>(share.first + i);
  }
  ModelPlacement out{.layers = {layers.begin(), layers.end()}};
  out.placements.assign(layers.size(), ExpertPlacement(cluster.num_experts, cluster.ranks, std::move(slots)));
  return out;
}

ModelPlacement placement_of_layers(const ModelPlacement& placement, std::span<const int64_t> layers,
                                   const Cluster& cluster) {
  ModelPlacement out{.layers = {layers.begin(), layers.end()}};
  for (const int64_t layer : layers) {
    const auto at = std::find(placement.layers.begin(), placement.layers.end(), layer);
    if (at == placement.layers.end())
      throw invalid_input(
          "placement: expected layer {}, which the load has, found none; give a placement of the same model", layer);
    const ExpertPlacement& p = placement.placements[static_cast<size_t>(at - placement.layers.begin())];
    if (p.num_experts() != cluster.num_experts || p.ep() != cluster.ranks ||
        p.slots_per_rank() != cluster.slots_per_rank())
      throw invalid_input(
          "placement: layer {}: expected {} experts in {} slots on each of {} ranks, found {} in {} on each of {}; "
          "correct --ranks and --redundant or the placement",
          layer, cluster.num_experts, cluster.slots_per_rank(), cluster.ranks, p.num_experts(), p.slots_per_rank(),
          p.ep());
    out.placements.push_back(p);
  }
  return out;
}

ModelPlan plan_model(const PlanRequest& request) {
  const Cluster& cluster = request.cluster;
  check_cluster(cluster);
  const ModelPlacement before = request.before ? placement_of_layers(*request.before, request.layers, cluster)
                                               : trivial_placement(request.layers, cluster);
  const auto load_of = [&](size_t l) {
    return request.rows.subspan(l * static_cast<size_t>(cluster.num_experts), static_cast<size_t>(cluster.num_experts));
  };
  ModelPlan out;
  out.placement.layers.assign(request.layers.begin(), request.layers.end());
  out.placement.placements.reserve(request.layers.size());
  const SteadyClock clock;
  const int64_t start_us = clock.now_us();
  for (size_t l = 0; l < request.layers.size(); ++l) {
    switch (request.algorithm) {
      case Algorithm::kCadre:
        out.placement.placements.push_back(
            cadre(load_of(l), cluster, request.moves_from_before ? &before.placements[l] : nullptr, request.rules)
                .placement);
        break;
      case Algorithm::kDeepseek:
        out.placement.placements.push_back(deepseek(load_of(l), cluster));
        break;
      case Algorithm::kDeepseekHierarchical:
        out.placement.placements.push_back(deepseek_hierarchical(load_of(l), cluster));
        break;
    }
  }
  out.planning_us = clock.now_us() - start_us;
  for (size_t l = 0; l < request.layers.size(); ++l) {
    const std::vector<double> old_loads = rank_loads(before.placements[l], load_of(l)),
                              new_loads = rank_loads(out.placement.placements[l], load_of(l));
    out.layers.push_back({.layer = request.layers[l],
                          .before = balancedness(old_loads),
                          .after = balancedness(new_loads),
                          .fullest_before = max_of(old_loads),
                          .fullest_after = max_of(new_loads),
                          .moved = moved_slots(before.placements[l], out.placement.placements[l])});
  }
  return out;
}

double ModelPlan::mean_before() const {
  return mean_over(layers, [](const LayerOutcome& l) { return l.before; });
}
double ModelPlan::mean_after() const {
  return mean_over(layers, [](const LayerOutcome& l) { return l.after; });
}

double ModelPlan::least_after() const {
  double out = 1;
  for (const LayerOutcome& l : layers) out = std::min(out, l.after);
  return out;
}

int64_t ModelPlan::moved() const {
  int64_t out = 0;
  for (const LayerOutcome& l : layers) out += l.moved;
  return out;
}

double ModelPlan::fullest_before() const {
  double out = 0;
  for (const LayerOutcome& l : layers) out += l.fullest_before;
  return out;
}

double ModelPlan::fullest_after() const {
  double out = 0;
  for (const LayerOutcome& l : layers) out += l.fullest_after;
  return out;
}

}  // namespace cadre::eplb
