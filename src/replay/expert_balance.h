// How evenly experts' rows fall on ranks while a trace is replayed: a recorded load, and, where experts move, the
// planner that a server's balancer runs, at its interval, over its window, layer after layer. Routing itself is not
// drawn anew.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "eplb/balancer.h"
#include "eplb/load_series.h"
#include "eplb/model_plan.h"

namespace cadre::replay {

struct ExpertBalanceOptions {
  eplb::Cluster cluster;
  eplb::Planner planner;  // empty: the first placement stays
  int64_t interval_steps = 3000, window_steps = 1000;
  double min_balancedness = 1.0;  // at or above, nothing is moved
  double us_per_slot = 0;         // for an expert of a layer to reach its new rank
  double move_share = 0.5;        // of a step's time that moving may take on top
};

class ExpertBalance {
 public:
  // The series is copied; its records stand for the steps of a server, over and over. Throws Error where it does not
  // fit the cluster.
  ExpertBalance(eplb::LoadSeries series, const ExpertBalanceOptions& options);

  // Mean over maximum of rows on ranks in the step that comes.
  double balancedness();
  // The step took so long: counts it, plans where one is due, and returns what moving adds to it.
  double after_step(double step_us);

  int64_t num_rebalances() const { return num_rebalances_; }
  int64_t num_moved() const { return num_moved_; }
  double stall_us() const { return stall_us_; }
  double mean_balancedness() const { return maxima_ > 0 ? means_ / maxima_ : 1; }

 private:
  struct Load {
    double mean = 0, maximum = 0;
  };
  const Load& load_of(int64_t record);
  int64_t record_at(int64_t step) const;
  std::vector<double> window() const;
  void plan();

  eplb::LoadSeries series_;
  ExpertBalanceOptions options_;
  struct Move {
    size_t layer = 0;
    ExpertPlacement target;
    double left_us = 0;
  };
  eplb::ModelPlacement placement_;
  std::deque<Move> moves_;  // under way, in order
  int64_t step_ = 0, num_passes_ = 0;
  std::vector<int64_t> end_of_record_;  // steps up to and with each record
  std::map<int64_t, Load> loads_;       // by record, under placement_
  int64_t num_rebalances_ = 0, num_moved_ = 0;
  double stall_us_ = 0, means_ = 0, maxima_ = 0;
};

}  // namespace cadre::replay
