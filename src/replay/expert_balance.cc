#include "replay/expert_balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "parallel/expert_load.h"

namespace cadre::replay {

ExpertBalance::ExpertBalance(eplb::LoadSeries series, const ExpertBalanceOptions& options)
    : series_(std::move(series)), options_(options) {
  eplb::check_cluster(options_.cluster);
  if (series_.num_experts != options_.cluster.num_experts)
    throw invalid_input(
        "the recorded load: expected {} experts a layer, as the model has, found {}; record it with this model",
        options_.cluster.num_experts, series_.num_experts);
  if (series_.steps.empty())
    throw invalid_input("the recorded load: expected at least one record, found none; record it under load");
  placement_ = eplb::trivial_placement(series_.layers, options_.cluster);
  for (const eplb::LoadStep& step : series_.steps)
    end_of_record_.push_back(num_passes_ += std::max<int64_t>(step.num_steps, 1));
}

int64_t ExpertBalance::record_at(int64_t step) const {
  return std::upper_bound(end_of_record_.begin(), end_of_record_.end(), step % num_passes_) - end_of_record_.begin();
}

const ExpertBalance::Load& ExpertBalance::load_of(int64_t record) {
  const auto [it, is_new] = loads_.try_emplace(record);
  if (is_new) {
    for (int64_t l = 0; l < series_.num_layers(); ++l) {
      const std::vector<double> loads =
          rank_loads(placement_.placements[static_cast<size_t>(l)], series_.of(record, l));
      it->second.maximum += *std::max_element(loads.begin(), loads.end());
      it->second.mean += std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
    }
  }
  return it->second;
}

double ExpertBalance::balancedness() {
  const Load& load = load_of(record_at(step_));
  means_ += load.mean, maxima_ += load.maximum;
  return load.maximum > 0 ? load.mean / load.maximum : 1;
}

double ExpertBalance::after_step(double step_us) {
  ++step_;
  if (moves_.empty()) {
    if (options_.planner && step_ % options_.interval_steps == 0) plan();
    return 0;
  }
  const double budget_us = step_us * options_.move_share;
  double stall = 0;
  while (!moves_.empty() && stall < budget_us) {
    Move& move = moves_.front();
    const double us = std::min(move.left_us, budget_us - stall);
    stall += us;
    if ((move.left_us -= us) > 0) break;
    placement_.placements[move.layer] = std::move(move.target);
    loads_.clear();
    moves_.pop_front();
  }
  stall_us_ += stall;
  return stall;
}

// Rows of experts over the last window_steps steps, record by record: how many of each one's steps there were weighs
// it.
std::vector<double> ExpertBalance::window() const {
  std::vector<double> rows(static_cast<size_t>(series_.num_layers() * series_.num_experts));
  int64_t left = std::min(options_.window_steps, step_);
  for (int64_t step = step_; left > 0;) {
    const int64_t record = record_at(step - 1);
    const int64_t in_cycle = (step - 1) % num_passes_,
                  begin = record == 0 ? 0 : end_of_record_[static_cast<size_t>(record - 1)];
    const int64_t count = std::min(left, in_cycle - begin + 1);
    const eplb::LoadStep& of = series_.steps[static_cast<size_t>(record)];
    const double weight = static_cast<double>(count) / static_cast<double>(std::max<int64_t>(of.num_steps, 1));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] += of.rows[i] * weight;
    step -= count, left -= count;
  }
  return rows;
}

// As the balancer: whether at all by the whole window's balance, then each layer by its own.
void ExpertBalance::plan() {
  const std::vector<double> all = window();
  const auto num_experts = static_cast<size_t>(series_.num_experts);
  double mean = 0, maximum = 0;
  for (size_t l = 0; l < placement_.placements.size(); ++l) {
    const std::vector<double> loads =
        rank_loads(placement_.placements[l], std::span(all).subspan(l * num_experts, num_experts));
    maximum += *std::max_element(loads.begin(), loads.end());
    mean += std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
  }
  if (maximum <= 0 || mean / maximum >= options_.min_balancedness) return;
  for (size_t l = 0; l < placement_.placements.size(); ++l) {
    std::vector<int64_t> rows;
    for (const double r : std::span(all).subspan(l * num_experts, num_experts)) rows.push_back(std::llround(r));
    ExpertPlacement target =
        options_.planner({.layer = static_cast<int64_t>(l), .rows = rows, .current = placement_.placements[l]});
    const int64_t moved = eplb::moved_slots(placement_.placements[l], target);
    if (moved == 0) continue;
    num_moved_ += moved;
    moves_.push_back({l, std::move(target), static_cast<double>(moved) * options_.us_per_slot});
  }
  num_rebalances_ += !moves_.empty();
}

}  // namespace cadre::replay
