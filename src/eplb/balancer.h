// Rebalances the experts of a running model: counts what each expert has to do, decides at an interval which layers get another
// placement, moves their experts in pieces between steps, and switches each layer over at the same step on all ranks. One
// object a rank; after_step() is a collective of the world that each rank calls after each step, so ranks need no clock or
// message to agree when. World rank 0 plans and decides how much moves in a step; the others do as it says.
//
// Answers do not change: replicas hold the same weights, and outputs are added in the row's top-k order (CombineOrder::kExact).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/rank_groups.h"
#include "eplb/layer_move.h"
#include "eplb/load_window.h"
#include "moe/moe_layer.h"

namespace cadre::eplb {

// A sparse layer that may get another placement.
struct LayerLoad {
  int64_t layer = 0;                // among the sparse ones
  std::span<const int64_t> rows;    // of each expert, over the window
  const ExpertPlacement& current;
  double rows_per_move = 0;         // what sending an expert costs, in rows of the window on the fullest rank (MoveRules); 0: not known
};
// The placement that it should have. Pure; what it throws leaves the layer as it is and is told.
using Planner = std::function<ExpertPlacement(const LayerLoad& layer)>;

// A step as world rank 0 saw it; for whoever draws the times.
struct BalancedStep {
  int64_t step_us = 0;   // from the end of the last one
  int64_t stall_us = 0;  // then spent on planning and moving
  bool is_moving = false;
};

struct BalancerOptions {
  int64_t interval_steps = 3000;      // between rebalances; 0: only by hand
  int64_t window_steps = 1000;        // whose load counts
  int64_t layers_per_step = 1;        // that may be planned, and moved where time allows, in one step
  double min_balancedness = 1.0;      // at or above, nothing is moved
  double move_share = 0.5;            // of a step's usual time that moving may take on top
  bool prices_moves = true;           // once their cost has been seen: LayerLoad::rows_per_move
  int ranks_per_node = 0;             // for the choice of senders; 0: all ranks are near
  Planner planner;
  const Clock* clock = nullptr;
  std::function<void(const std::string&)> log;  // of rank 0; may be empty
  std::function<void(const BalancedStep&)> on_step;  // the same, on the step's thread
};

// How often values fell into [.., bounds[0]], (bounds[0], bounds[1]], ..., (bounds.back(), ..).
struct Histogram {
  explicit Histogram(std::span<const double> upper_bounds) : bounds(upper_bounds), counts(upper_bounds.size() + 1) {}
  void add(double value);
  std::span<const double> bounds;
  std::vector<int64_t> counts;
  double sum = 0;
};

struct BalancerStats {
  BalancerStats();
  int64_t num_steps = 0, num_rebalances = 0, num_layers_switched = 0, num_refused = 0, moved_slots = 0, moved_bytes = 0;
  int64_t stall_us = 0;                // that moving has taken from steps
  double balancedness = 1;             // of the last interval's load, as it was
  double rebalanced = 1;               // of the load that the last rebalance was planned for, when it was done
  int64_t generation = 0;
  // Of each world rank so far: (row, expert) pairs it computed, and how much longer it waited for other ranks' outputs than
  // the rank that waited least.
  std::vector<int64_t> rows_of_rank, waited_us_of_rank;
  Histogram balancedness_by_rows;  // of what ranks computed, every few steps
  Histogram stall_seconds;         // of each step in which experts were on their way
  Histogram stall_share;           // the same as a part of a usual step
};

class Balancer {
 public:
  // layers: the sparse ones, in order. All outlive the object.
  Balancer(BalancerOptions options, RankGroups& groups, const std::vector<MoeLayer*>& layers, std::vector<int64_t> layer_indices);
  ~Balancer();

  // This rank's own rows' choices in a layer of the model, within a step.
  void record(int64_t layer, std::span<const int32_t> ids);
  // To be added to within a step.
  ExchangeWork& exchange_work() { return exchange_work_; }
  // A collective, after each step that had rows.
  void after_step();

  // Of placements: grows with each layer that switches, at the same step on all ranks.
  int64_t generation() const { return stats_.generation; }
  // Any thread.
  BalancerStats stats() const;
  // Any thread: the placements in force, one a sparse layer, and those layers' places in the model.
  std::vector<ExpertPlacement> placements() const;
  std::span<const int64_t> layers() const { return layer_indices_; }
  // Any thread of world rank 0's process: these placements (one a sparse layer) are moved to next, in place of a plan.
  // Throws Error when they do not fit.
  void request(std::vector<ExpertPlacement> placements);

 private:
  struct Order;
  void exchange_reports();
  std::span<const int64_t> load_of(size_t layer) const { return std::span(load_).subspan(layer * static_cast<size_t>(num_experts_), static_cast<size_t>(num_experts_)); }
  double rows_per_move(size_t layer) const;
  double load_balancedness() const;
  void begin();
  std::vector<int64_t> world_load();
  bool move_some();
  void set_target(size_t layer, std::span<const int32_t> slots);
  int64_t piece_bytes() const;
  void finish_layer();
  void end();
  void say(const std::string& what) const;

  const BalancerOptions options_;
  RankGroups& groups_;
  const std::vector<MoeLayer*> layers_;
  const std::vector<int64_t> layer_indices_;
  std::vector<int64_t> slot_of_layer_;  // index among layers_ by layer of the model; -1: dense
  const int64_t num_experts_;
  LoadWindow window_;
  ExchangeWork exchange_work_;  // since the last report
  std::map<int64_t, SpareSlots> spares_;  // by slot size
  // A rebalance under way.
  bool is_moving_ = false, is_by_hand_ = false;
  size_t next_layer_ = 0;
  std::vector<int64_t> load_;  // [layers, experts], of all ranks
  std::optional<LayerMove> move_;
  // What rank 0 measures by.
  int64_t step_began_us_ = 0;
  double usual_step_us_ = 0, us_per_byte_ = 0, us_per_row_ = 0;
  std::vector<ExpertPlacement> by_hand_;  // rank 0's, while they are moved to

  mutable std::mutex mutex_;  // guards what follows
  BalancerStats stats_;
  std::vector<ExpertPlacement> in_force_, requested_;
};

}  // namespace cadre::eplb
