#include "sched/step_agreement.h"

#include <algorithm>

#include "base/check.h"

namespace cadre {

StepVerdict StepAgreement::decide(std::span<const StepVote> votes) {
  CADRE_CHECK(!votes.empty(), "a turn of no rank");
  is_paused_ = false;
  ++turn_;
  const auto all = [&](auto&& holds) { return std::all_of(votes.begin(), votes.end(), holds); };
  CADRE_CHECK(all([&](const StepVote& v) { return v.generation == votes[0].generation; }), "placement generations differ");
  if (all([](const StepVote& v) { return v.is_stopping != 0; })) return StepVerdict::kStop;
  if (!all([](const StepVote& v) { return v.num_rows == 0; })) return StepVerdict::kRun;
  const bool all_done = all([&](const StepVote& v) { return !v.has_work && v.num_wakes == votes[0].num_wakes && !v.is_stopping; });
  if (!all_done || turn_ % turns_per_pause_ != 0) return StepVerdict::kRound;
  is_paused_ = true;
  paused_with_ = votes[0].num_wakes;
  turn_ = 0;
  ++wave_;
  return StepVerdict::kPause;
}

bool others_decode(std::span<const StepVote> votes, int rank) {
  for (size_t r = 0; r < votes.size(); ++r)
    if (static_cast<int>(r) != rank && votes[r].num_samples > 0) return true;
  return false;
}

}  // namespace cadre
