// Which physical slots hold which logical experts, and on which rank of the expert-parallel group each slot is. A value;
// invalid ones are refused (validate) and never applied.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/layout.h"

namespace cadre {

enum class ExpertId : int32_t {};
enum class SlotId : int32_t {};
inline constexpr int32_t kEmptySlot = -1;

// Slots are numbered rank by rank: slot = ep_rank * slots_per_rank + local slot.
class ExpertPlacement {
 public:
  ExpertPlacement() = default;
  // slot_to_expert: [ep * slots_per_rank], kEmptySlot where a slot holds nothing. Throws Error (what is missing or twice)
  // unless every expert has a slot.
  ExpertPlacement(int64_t num_experts, int ep, std::vector<int32_t> slot_to_expert);

  // kLinear: rank 0 holds the first experts; kRoundRobin: expert e is on rank e % ep. Counts per rank differ by at most one.
  // Redundant slots then hold, on each rank, the first experts of the next ranks; slots that are left over stay empty. Each
  // rank has ceil((num_experts + redundant) / ep) slots.
  static ExpertPlacement initial(int64_t num_experts, int ep, PlacementStrategy strategy, int64_t redundant = 0);

  int64_t num_experts() const { return num_experts_; }
  int ep() const { return ep_; }
  int64_t num_slots() const { return static_cast<int64_t>(slot_to_expert_.size()); }
  int64_t slots_per_rank() const { return ep_ == 0 ? 0 : num_slots() / ep_; }
  std::span<const int32_t> slot_to_expert() const { return slot_to_expert_; }
  // Slots that hold an expert, ascending.
  std::span<const int32_t> expert_to_slots(int64_t expert) const;
  int rank_of_slot(int64_t slot) const { return static_cast<int>(slot / slots_per_rank()); }
  int64_t local_slot(int64_t slot) const { return slot % slots_per_rank(); }

  // [num_experts]: the local slot of each expert on this rank, -1 for the others.
  std::vector<int32_t> expert_map(int ep_rank) const;
  // Experts of a rank's slots, in the order of slots, kEmptySlot included.
  std::span<const int32_t> experts_of(int ep_rank) const;

  bool operator==(const ExpertPlacement&) const = default;

 private:
  int64_t num_experts_ = 0;
  int ep_ = 0;
  std::vector<int32_t> slot_to_expert_;
  std::vector<int32_t> first_of_expert_, slots_;  // slots of expert e: slots_[first_of_expert_[e] .. [e + 1])
};

}  // namespace cadre
