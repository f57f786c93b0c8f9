// A layer's placement that is improved step by step: two replicas swapped, one moved into an empty slot, or a slot
// given to a replica of another expert. Each step shortens the fullest rank and makes no other rank as full.
// Deterministic; no allocation but in reset(). Not an interface of the folder.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"
#include "eplb/balance.h"

namespace cadre::eplb {

class LayerSearch {
 public:
  LayerSearch(std::span<const double> load, const Cluster& cluster);

  // Replicas by expert, to be placed afresh; each at most `ranks`.
  void build(std::span<const int32_t> counts);
  // Takes over a placement that has no expert twice on a rank. With counts_moves steps are chosen by what they gain for
  // each replica that moves, and moved() counts from here; else by what they gain.
  void start_from(std::span<const int32_t> slots, bool counts_moves);
  // start_from(), then as many replicas as `counts` has: the surplus is taken from the fullest ranks, the missing ones
  // go to the emptiest.
  void repair(std::span<const int32_t> slots, std::span<const int32_t> counts);

  // Steps until the fullest rank has at most `enough`, or none is left, or max_steps were made. With rows_per_move > 0
  // goes back to the step at which the fullest rank was shortened most for its price, but not above must_reach. Above
  // must_reach it also tries what takes long.
  struct Limits {
    double enough = 0, must_reach = 0, rows_per_move = 0;
    int max_steps = 0;
  };
  void improve(const Limits& limits);

  // About num_steps swaps and changes of replica numbers by chance, whatever they do to loads: a way out of where no step gains.
  void shake(Rng& rng, int num_steps);

  double max_load() const;
  double mean_load() const { return mean_; }
  // Replicas whose rank did not hold their expert at start_from() or repair().
  int64_t moved() const { return moved_; }
  // Slots of each rank in no order that means anything.
  std::span<const int32_t> slots() const { return slots_; }

 private:
  struct Step {
    double new_max = 0;  // the largest of the loads it changes
    double score = 0;    // rows gained, for each replica moved
    int32_t rank = -1, other = -1;
    int32_t out = -1, in = -1;    // experts: `out` leaves rank, `in` comes to it
    int32_t out2 = -1, in2 = -1;  // of a swap: second ones
    bool is_swap = false;
  };
  bool holds(int32_t rank, int32_t expert) const {
    return held_[static_cast<size_t>(expert * words_ + (rank >> 6))] >> (rank & 63) & 1;
  }
  bool held_at_start(int32_t rank, int32_t expert) const {
    return !start_.empty() && (start_[static_cast<size_t>(expert * words_ + (rank >> 6))] >> (rank & 63) & 1);
  }
  double load_with(int32_t expert, int32_t count) const { return load_[static_cast<size_t>(expert)] / count; }
  void clear();
  void put(int32_t rank, int32_t expert);
  void take(int32_t rank, int32_t expert);
  void set_share(int32_t expert);
  void set_count(int32_t expert, int32_t count);
  void sort_slots(int32_t rank);
  void sort_ranks();
  void moved_rank(int32_t rank);  // its load changed
  void place(int32_t expert);
  void consider_swaps(Step* best) const;
  void consider_double_swaps(Step* best) const;
  void consider_replicas(Step* best) const;
  void consider_replica(int32_t expert, int32_t rank, Step* best) const;
  int move_price(int32_t rank, int32_t out, int32_t in) const;
  void offer(Step step, int price, Step* best) const;
  void apply(const Step& step);

  std::vector<double> load_;
  int32_t ranks_, per_rank_, words_;
  int64_t num_replicas_, placed_ = 0, moved_ = 0;
  double mean_ = 0;
  bool counts_moves_ = false;
  std::vector<int32_t> slots_, used_, count_;
  std::vector<double> share_, more_without_one_,
      rank_load_;                            // share: load of one replica; more: what it gains when one goes
  std::vector<uint64_t> held_, start_;       // [experts, words]: bit per rank
  std::vector<int32_t> by_load_, place_in_;  // ranks, emptiest first, and where each stands
};

}  // namespace cadre::eplb
