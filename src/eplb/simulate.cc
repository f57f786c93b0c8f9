#include "eplb/simulate.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "parallel/expert_load.h"

namespace cadre::eplb {
namespace {

struct Load {
  double means = 0, maxima = 0;
  double balancedness() const { return maxima == 0 ? 1 : means / maxima; }
};

// Of records [first, first + count), each of which its layers wait through.
Load load_of(const LoadSeries& series, int64_t first, int64_t count, const ModelPlacement& placement) {
  Load out;
  for (int64_t s = first; s < first + count; ++s)
    for (int64_t l = 0; l < series.num_layers(); ++l) {
      const std::vector<double> loads = rank_loads(placement.placements[static_cast<size_t>(l)], series.of(s, l));
      out.maxima += *std::max_element(loads.begin(), loads.end());
      out.means += std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
    }
  return out;
}

double balancedness_of(const ModelPlan& plan, bool is_after) {
  double means = 0, maxima = 0;
  for (const LayerOutcome& l : plan.layers) {
    means += l.after * l.fullest_after;
    maxima += is_after ? l.fullest_after : l.fullest_before;
  }
  return maxima == 0 ? 1 : means / maxima;
}

void check_options(const SimulateOptions& options) {
  check_cluster(options.cluster);
  if (options.window < 1 || options.interval < 1)
    throw invalid_input("simulate: expected a window and an interval of at least 1, found {} and {}; correct them",
                        options.window, options.interval);
  if (!(options.us_per_row > 0) || !(options.us_per_move >= 0))
    throw invalid_input("simulate: expected times above 0, found {} us a row and {} us a move; correct them",
                        options.us_per_row, options.us_per_move);
}

}  // namespace

Simulation simulate(const LoadSeries& series, const SimulateOptions& options, const ModelPlacement& first) {
  check_options(options);
  const int64_t num_steps = static_cast<int64_t>(series.steps.size());
  Simulation out{.last = placement_of_layers(first, series.layers, options.cluster)};
  const ModelPlacement start = out.last;
  Load with;
  for (int64_t step = 0; step < num_steps; step += options.interval) {
    const int64_t until = std::min(step + options.interval, num_steps), count = until - step;
    const ModelPlacement before = out.last;
    if (step > 0) {
      const int64_t window = std::min(options.window, step);
      const std::vector<double> rows = series.sum(step - window, window);
      MoveRules rules;
      if (options.us_per_move > 0) {
        rules.reach_reference = false;
        rules.rows_per_move = options.us_per_move / options.us_per_row *
                              static_cast<double>(series.num_passes(step - window, window)) /
                              static_cast<double>(series.num_passes(step, count));
      }
      const ModelPlan plan = plan_model({.algorithm = options.algorithm,
                                         .layers = series.layers,
                                         .rows = rows,
                                         .cluster = options.cluster,
                                         .before = &before,
                                         .moves_from_before = true,
                                         .rules = rules});
      Rebalance r{.step = step,
                  .window_before = balancedness_of(plan, false),
                  .window_after = balancedness_of(plan, true),
                  .planning_us = plan.planning_us};
      r.is_applied = r.window_before < options.threshold && plan.moved() > 0;
      if (r.is_applied) {
        out.last = plan.placement;
        r.moved = plan.moved();
        r.cost_us = static_cast<double>(r.moved) * options.us_per_move;
        r.gain_us = (load_of(series, step, count, before).maxima - load_of(series, step, count, out.last).maxima) *
                    options.us_per_row;
      }
      out.rebalances.push_back(r);
    }
    const Load now = load_of(series, step, count, out.last);
    with.means += now.means, with.maxima += now.maxima;
  }
  const Load fixed = load_of(series, 0, num_steps, start);
  out.fixed_us = fixed.maxima * options.us_per_row, out.steps_us = with.maxima * options.us_per_row;
  out.fixed = fixed.balancedness(), out.with = with.balancedness();
  return out;
}

double Simulation::cost_us() const {
  double out = 0;
  for (const Rebalance& r : rebalances) out += r.cost_us;
  return out;
}

int64_t Simulation::moved() const {
  int64_t out = 0;
  for (const Rebalance& r : rebalances) out += r.moved;
  return out;
}

}  // namespace cadre::eplb
