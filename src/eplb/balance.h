// Where the replicas of a layer's experts should stand, from the load of each expert: the two published algorithms and
// our own. Pure functions: the same arguments give the same placement on every machine. They move nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/expert_placement.h"

namespace cadre::eplb {

// What a layer's slots are spread over. Each rank has ceil(num_replicas / ranks) slots; where that is more than
// num_replicas in all, some slots stay empty, on any ranks.
struct Cluster {
  int64_t num_experts = 0;
  int ranks = 1;
  int64_t num_replicas = 0;  // slots that hold an expert: num_experts and the redundant ones
  int nodes = 1;             // of equally many ranks each, for deepseek_hierarchical
  int64_t groups = 1;        // of equally many consecutive experts each, of which a token chooses few

  int64_t slots_per_rank() const { return (num_replicas + ranks - 1) / ranks; }
};

// Throws Error unless every expert gets a slot and every rank can hold one.
void check_cluster(const Cluster& cluster);

// DeepSeek's published balancer (github.com/deepseek-ai/EPLB, README), global policy: give each spare slot to the
// expert with the most load per replica, then pack the replicas, heaviest first, onto the least loaded rank with a free
// slot. In float32, as published, so that ties and roundings fall alike. Slots of a rank are in the order of packing.
// Counts that do not divide evenly, which it refuses, are packed with the same rule into ceil(num_replicas / ranks)
// slots.
ExpertPlacement deepseek(std::span<const double> load, const Cluster& cluster);

// Its policy for group-limited routing: groups are packed onto nodes, spare slots given out within each node, and
// replicas packed onto the node's ranks. As published, it is the global policy where nodes do not divide the groups;
// here also where they do not divide the ranks.
ExpertPlacement deepseek_hierarchical(std::span<const double> load, const Cluster& cluster);

// What cadre() may spend.
struct MoveRules {
  // A replica that moves has to shorten the layer by as many rows on its fullest rank. The unit is that of `load`: of a
  // window that is half as long as the time to the next plan, give half the rows. 0: moves cost nothing but are still
  // not made in vain.
  double rows_per_move = 0;
  // Slots that are left over where the replicas do not divide among the ranks hold replicas too.
  bool fill_all_slots = true;
  // Ask for at least the balance of the published algorithms, whatever rows_per_move says.
  bool reach_reference = true;
  // Where moves are paid for by balance alone, stop at this balancedness.
  double good_enough = 0.995;
};

struct LayerPlan {
  ExpertPlacement placement;
  int64_t moved = 0;        // slots whose expert has to be sent to their rank; 0 without `current`
  double balancedness = 1;  // of `placement` under the load
  double reference = 1;     // of the better of the published algorithms; 1 where reach_reference is off
};

// Our own: from `current` it changes as few slots as buy balance; without one it starts afresh. Never two replicas of
// an expert on one rank. A current placement of another shape counts as none. A layer without load keeps its placement.
LayerPlan cadre(std::span<const double> load, const Cluster& cluster, const ExpertPlacement* current = nullptr,
                const MoveRules& rules = {});

// Mean / maximum; 1 without load.
double balancedness(std::span<const double> loads);
double balancedness(const ExpertPlacement& placement, std::span<const double> load);

// Slots of `to` whose expert their rank does not hold in `from`. Ranks are compared as sets: order does not count.
int64_t moved_slots(const ExpertPlacement& from, const ExpertPlacement& to);

// True if an expert has two slots on a rank.
bool has_doubled(const ExpertPlacement& placement);

enum class Algorithm { kCadre, kDeepseek, kDeepseekHierarchical };
std::string_view name_of(Algorithm algorithm);
// Throws Error with the names there are.
Algorithm parse_algorithm(std::string_view name);

}  // namespace cadre::eplb
