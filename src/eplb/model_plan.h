// Plans for all layers of a model, and what they come to: balance before and after, slots that move, planning time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eplb/balance.h"
#include "eplb/load_series.h"
#include "eplb/placement_file.h"

namespace cadre::eplb {

// Experts in order over the ranks, slots that are left over empty: what an engine starts with.
ModelPlacement trivial_placement(std::span<const int64_t> layers, const Cluster& cluster);

struct LayerOutcome {
  int64_t layer = 0;
  double before = 1, after = 1;                  // balancedness
  double fullest_before = 0, fullest_after = 0;  // rows
  int64_t moved = 0;
};

struct ModelPlan {
  ModelPlacement placement;
  std::vector<LayerOutcome> layers;
  int64_t planning_us = 0;

  double mean_before() const;
  double mean_after() const;
  double least_after() const;
  int64_t moved() const;
  // Sum over layers, which wait for their fullest rank one after the other.
  double fullest_before() const;
  double fullest_after() const;
};

// `rows`: [layers, experts]. `before` is what outcomes are compared with; kCadre starts from it if moves_from_before,
// else afresh (then `moved` counts for nothing). Throws Error where `before` has other layers or another shape.
struct PlanRequest {
  Algorithm algorithm = Algorithm::kCadre;
  std::span<const int64_t> layers;
  std::span<const double> rows;
  Cluster cluster;
  const ModelPlacement* before = nullptr;
  bool moves_from_before = false;
  MoveRules rules;
};
ModelPlan plan_model(const PlanRequest& request);

// The placements of `layers`, in that order. Throws Error if one is missing or the shape is another.
ModelPlacement placement_of_layers(const ModelPlacement& placement, std::span<const int64_t> layers,
                                   const Cluster& cluster);

}  // namespace cadre::eplb
