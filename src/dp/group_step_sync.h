// StepSync over a group of ranks.
#pragma once

#include <vector>

#include "comm/rank_groups.h"
#include "dp/step_sync.h"

namespace cadre {

class GroupStepSync final : public StepSync {
 public:
  // groups.leaders must be there; groups outlives the object.
  explicit GroupStepSync(RankGroups& groups) : groups_(groups), votes_(static_cast<size_t>(groups.leaders->size())) {}

  std::span<const StepVote> exchange(const StepVote& mine) override {
    groups_.leaders->all_gather_value({Traffic::kStep, -1}, mine, std::span(votes_));
    return votes_;
  }
  void set_step(int64_t step) override { groups_.set_step(step); }
  void abort(const std::string& reason) override { groups_.abort(reason); }

 private:
  RankGroups& groups_;
  std::vector<StepVote> votes_;
};

}  // namespace cadre
