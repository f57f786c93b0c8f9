#include "parallel/replica_choice.h"

#include <algorithm>

namespace cadre {

ReplicaChooser::ReplicaChooser(ReplicaChoice kind, const Layout& layout, int64_t num_experts) : kind_(kind), layout_(layout), num_rows_(static_cast<size_t>(num_experts)) {}

void ReplicaChooser::choose(const ExpertPlacement& placement, int world_rank, std::span<const int32_t> ids, std::span<int32_t> slots) {
  const bool takes_turns = kind_ == ReplicaChoice::kDynamic;
  if (takes_turns) std::fill(num_rows_.begin(), num_rows_.end(), world_rank);  // ranks begin at different replicas
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto replicas = placement.expert_to_slots(ids[i]);
    if (replicas.size() == 1) slots[i] = replicas[0];
    else if (takes_turns) slots[i] = replicas[static_cast<size_t>(num_rows_[static_cast<size_t>(ids[i])]++) % replicas.size()];
    else slots[i] = own_or_share(placement, replicas, world_rank);
  }
}

int32_t ReplicaChooser::own_or_share(const ExpertPlacement& placement, std::span<const int32_t> replicas, int world_rank) const {
  const int own = layout_.coords(world_rank).ep;
  for (const int32_t slot : replicas)
    if (placement.rank_of_slot(slot) == own) return slot;
  return replicas[static_cast<size_t>(world_rank) % replicas.size()];
}

}  // namespace cadre
