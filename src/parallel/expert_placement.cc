#include "parallel/expert_placement.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace cadre {

ExpertPlacement::ExpertPlacement(int64_t num_experts, int ep, std::vector<int32_t> slot_to_expert)
    : num_experts_(num_experts), ep_(ep), slot_to_expert_(std::move(slot_to_expert)), first_of_expert_(static_cast<size_t>(num_experts + 1)) {
  if (ep < 1 || slot_to_expert_.size() % static_cast<size_t>(ep) != 0)
    throw invalid_input("placement: expected as many slots on each of {} ranks, found {} in all; make them equal", ep, slot_to_expert_.size());
  for (const int32_t e : slot_to_expert_) {
    if (e == kEmptySlot) continue;
    if (e < 0 || e >= num_experts) throw invalid_input("placement: expected experts 0 to {}, found {}; correct it", num_experts - 1, e);
    ++first_of_expert_[static_cast<size_t>(e) + 1];
  }
  for (int64_t e = 0; e < num_experts; ++e) {
    if (first_of_expert_[static_cast<size_t>(e) + 1] == 0) throw invalid_input("placement: expected a slot for every expert, found none for expert {}; give it one", e);
    first_of_expert_[static_cast<size_t>(e) + 1] += first_of_expert_[static_cast<size_t>(e)];
  }
  slots_.resize(static_cast<size_t>(first_of_expert_.back()));
  std::vector<int32_t> at(first_of_expert_);
  for (size_t s = 0; s < slot_to_expert_.size(); ++s)
    if (slot_to_expert_[s] != kEmptySlot) slots_[static_cast<size_t>(at[static_cast<size_t>(slot_to_expert_[s])]++)] = static_cast<int32_t>(s);
}

ExpertPlacement ExpertPlacement::initial(int64_t num_experts, int ep, PlacementStrategy strategy, int64_t redundant) {
  CADRE_CHECK(ep >= 1 && num_experts >= ep && redundant >= 0, "{} experts and {} more over {} ranks", num_experts, redundant, ep);
  const int64_t per_rank = (num_experts + redundant + ep - 1) / ep;
  std::vector<int32_t> slots(static_cast<size_t>(per_rank * ep), kEmptySlot);
  const auto first_of = [&](int rank, int64_t i) {
    return static_cast<int32_t>(strategy == PlacementStrategy::kLinear ? even_slice(num_experts, ep, rank).first + i : rank + i * ep);
  };
  std::vector<int64_t> used(static_cast<size_t>(ep));
  for (int rank = 0; rank < ep; ++rank) {
    int64_t& count = used[static_cast<size_t>(rank)];
    for (const int64_t share = even_slice(num_experts, ep, rank).count; count < share; ++count) slots[static_cast<size_t>(rank * per_rank + count)] = first_of(rank, count);
  }
  // Rank by rank in turn, from the neighbour on: never two replicas on a rank while it lacks another expert.
  for (int64_t given = 0, rank = 0, idle = 0; given < redundant && idle < ep; rank = (rank + 1) % ep) {
    int64_t& count = used[static_cast<size_t>(rank)];
    const int64_t own = even_slice(num_experts, ep, static_cast<int>(rank)).count;
    int64_t nth = count - own;  // of the other ranks' experts, in their order
    int64_t other = (rank + 1) % ep;
    while (other != rank && nth >= even_slice(num_experts, ep, static_cast<int>(other)).count) nth -= even_slice(num_experts, ep, static_cast<int>(other)).count, other = (other + 1) % ep;
    if (count == per_rank || other == rank) {
      ++idle;
      continue;
    }
    slots[static_cast<size_t>(rank * per_rank + count++)] = first_of(static_cast<int>(other), nth);
    ++given, idle = 0;
  }
  return ExpertPlacement(num_experts, ep, std::move(slots));
}

std::span<const int32_t> ExpertPlacement::expert_to_slots(int64_t expert) const {
  CADRE_CHECK(expert >= 0 && expert < num_experts_, "expert {} of {}", expert, num_experts_);
  const size_t first = static_cast<size_t>(first_of_expert_[static_cast<size_t>(expert)]);
  return {slots_.data() + first, static_cast<size_t>(first_of_expert_[static_cast<size_t>(expert) + 1]) - first};
}

std::span<const int32_t> ExpertPlacement::experts_of(int ep_rank) const {
  CADRE_CHECK(ep_rank >= 0 && ep_rank < ep_, "rank {} of {}", ep_rank, ep_);
  return std::span(slot_to_expert_).subspan(static_cast<size_t>(ep_rank * slots_per_rank()), static_cast<size_t>(slots_per_rank()));
}

std::vector<int32_t> ExpertPlacement::expert_map(int ep_rank) const {
  std::vector<int32_t> out(static_cast<size_t>(num_experts_), -1);
  const auto experts = experts_of(ep_rank);
  for (size_t i = experts.size(); i-- > 0;)
    if (experts[i] != kEmptySlot) out[static_cast<size_t>(experts[i])] = static_cast<int32_t>(i);
  return out;
}

}  // namespace cadre
