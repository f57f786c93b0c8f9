// Replays a recorded series of loads as a service that measures, plans and moves: what each rebalance cost and what it
// gained until the next. Time is counted in what the fullest rank of each layer computes; moves are not overlapped.
#pragma once

#include <cstdint>
#include <vector>

#include "eplb/model_plan.h"

namespace cadre::eplb {

struct SimulateOptions {
  Algorithm algorithm = Algorithm::kCadre;
  Cluster cluster;
  int64_t window = 8,
          interval = 8;    // records of the series: what a plan looks back on, and when the next is considered
  double threshold = 1;    // rebalance only where the window's balancedness is below
  double us_per_row = 1;   // expert time of a row
  double us_per_move = 0;  // of a replica that moves
};

struct Rebalance {
  int64_t step = 0;                            // before this record
  bool is_applied = false;                     // a plan that moves nothing, or is above the threshold, is not
  double window_before = 1, window_after = 1;  // balancedness of the window, as it was and as planned
  int64_t moved = 0, planning_us = 0;
  double cost_us = 0, gain_us = 0;  // moving; shorter steps until the next, against the placement before
};

struct Simulation {
  std::vector<Rebalance> rebalances;
  double fixed_us = 0;         // all steps under the first placement
  double steps_us = 0;         // all steps under the placements in force
  double fixed = 1, with = 1;  // balancedness over all steps: sum of means / sum of maxima
  double cost_us() const;
  int64_t moved() const;
  ModelPlacement last;
};

Simulation simulate(const LoadSeries& series, const SimulateOptions& options, const ModelPlacement& first);

}  // namespace cadre::eplb
