// Which replica of an expert each row goes to. A pure function of the placement, the rank the rows come from and the experts
// that its rows chose, so that every rank can compute any rank's choices. Replicas hold the same weights and outputs are
// added in the row's top-k order: the choice changes who works, and no bit of an answer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/expert_placement.h"
#include "parallel/layout.h"

namespace cadre {

enum class ReplicaChoice : uint8_t {
  kStatic,   // one replica for all rows of a rank: its own, or else the rank's share of the others (SGLang's static)
  kDynamic,  // the rows of an expert take its replicas in turn
};

class ReplicaChooser {
 public:
  ReplicaChooser(ReplicaChoice kind, const Layout& layout, int64_t num_experts);

  // slots[i]: of the world's slots, one that holds ids[i]. ids: of one batch of world_rank's rows, row by row.
  void choose(const ExpertPlacement& placement, int world_rank, std::span<const int32_t> ids, std::span<int32_t> slots);

 private:
  int32_t own_or_share(const ExpertPlacement& placement, std::span<const int32_t> replicas, int world_rank) const;

  const ReplicaChoice kind_;
  const Layout layout_;
  std::vector<int32_t> num_rows_;  // of each expert so far, in one call
};

}  // namespace cadre
