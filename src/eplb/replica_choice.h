// Which replica of its expert a row goes to. Every rank computes the same choice from the same numbers, without another
// exchange; results do not depend on it, for replicas are equal to the bit. Deterministic, and free of allocation after
// construction; one object for each layer and rank, remade when the placement changes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/expert_placement.h"

namespace cadre::eplb {

enum class ReplicaChoice {
  kStatic,     // by source rank alone: a replica on that rank, else on its node, else one of all, spread over the ranks
  kDynamic,    // rows of an expert go to its replicas in turn
  kWaterFill,  // rows of an expert go where they make the busiest rank of the batch least busy
};
std::string_view name_of(ReplicaChoice choice);
// Throws Error with the names there are.
ReplicaChoice parse_replica_choice(std::string_view name);

class ReplicaSplit {
 public:
  // `nodes` of equally many consecutive ranks each (static alone looks at them; 1 where they do not divide the ranks).
  ReplicaSplit(const ExpertPlacement& placement, ReplicaChoice choice, int nodes = 1);

  // Before the rows of a batch are sent: rows of each expert, over all source ranks, [num_experts]. Not needed for
  // kStatic. Water fill: ranks are filled expert by expert and emptied and filled again until the busiest is within
  // 0.1 % of a lower bound, or nothing changes; integers throughout.
  void split(std::span<const int32_t> rows_of_expert);

  // The slot of a row of `expert` that comes from `source`. `row` numbers the expert's rows of the batch: those of
  // lower ranks first, then this rank's own in its order. After split(), for 0 <= row < rows_of_expert[expert].
  int32_t slot_of(int64_t expert, int source, int64_t row) const;

  // Rows that each of the expert's slots gets, in the order of expert_to_slots. Water fill and dynamic, after split().
  void rows_of_slots(int64_t expert, std::span<int32_t> rows) const;
  // Rows of each rank: [ranks]. Water fill, after split().
  std::span<const int32_t> rank_rows() const { return rank_rows_; }

 private:
  struct Shared {  // an expert, whose replicas stand at [first, first + count)
    int32_t expert = 0, first = 0, count = 0;
  };
  struct Single {
    int32_t expert = 0, rank = 0;
  };
  void fill(const Shared& shared);
  void sweep(int32_t bound);
  int32_t static_slot(int64_t expert, int source) const;

  ExpertPlacement placement_;
  ReplicaChoice choice_;
  int nodes_;
  std::vector<Shared> of_expert_, sweep_;             // all; those on several ranks
  std::vector<Single> singles_;                       // those on one rank
  std::vector<int32_t> replica_rank_, replica_slot_;  // one for each rank that holds the expert
  std::vector<int32_t> replica_rows_, rank_rows_;
  std::vector<int32_t> rows_;        // of each expert, of the last split()
  std::vector<int32_t> other_rows_;  // of the ranks that are being filled
};

// Of a step: rows of each expert from ranks below `source` (where this rank's own begin), and from all. Both
// [num_experts]; rows_by_source: [ranks, num_experts].
void number_rows(std::span<const int32_t> rows_by_source, int source, std::span<int32_t> first_row,
                 std::span<int32_t> all_rows);

}  // namespace cadre::eplb
