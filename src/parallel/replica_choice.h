// Which replica of its expert a row goes to. Every rank computes the same choice from the same numbers. Replicas hold the same
// weights and outputs are added in the row's top-k order: the choice changes who works, and no bit of an answer.
// Deterministic, and free of allocation after construction; one object for each layer and rank, remade when the placement changes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/expert_placement.h"

namespace cadre {

enum class ReplicaChoice : uint8_t {
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
  ReplicaSplit(ExpertPlacement placement, ReplicaChoice choice, int nodes = 1);

  const ExpertPlacement& placement() const { return placement_; }
  ReplicaChoice choice() const { return choice_; }
  int nodes() const { return nodes_; }
  // Whether slots depend on the rows of all ranks, so that split() is called first; the same on all ranks.
  bool needs_counts() const { return choice_ == ReplicaChoice::kWaterFill && !sweep_.empty(); }

  // Before the rows of a batch are sent: rows of each expert, over all source ranks, [num_experts]. Not needed for
  // kStatic. Water fill: ranks are filled expert by expert and emptied and filled again until the busiest is within
  // 0.1 % of a lower bound, or nothing changes; integers throughout.
  void split(std::span<const int32_t> rows_of_expert);

  // The slot of a row of `expert` that comes from `source`. `row` numbers the expert's rows of the batch: those of
  // lower ranks first, then this rank's own in its order. After split(), for 0 <= row < rows_of_expert[expert].
  int32_t slot_of(int64_t expert, int source, int64_t row) const;

  // slots[i]: of the world's slots, the one for ids[i], a row of rank `source` of the expert-parallel group. next_row:
  // [num_experts], the number of each expert's next row, counted on here. Where nothing counts the rows of all ranks
  // (kDynamic), numbers that begin with the source's rank serve as well.
  void choose(int source, std::span<const int32_t> ids, std::span<int32_t> next_row, std::span<int32_t> slots) const;

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

}  // namespace cadre
