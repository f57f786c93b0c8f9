// The exchange of votes at the start of a step between data-parallel ranks that step together.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "sched/step_agreement.h"

namespace cadre {

class StepSync {
 public:
  virtual ~StepSync() = default;
  // Votes of all data-parallel ranks, in order; valid until the next call. Throws PeerLost.
  virtual std::span<const StepVote> exchange(const StepVote& mine) = 0;
  // The step that errors name.
  virtual void set_step(int64_t step) = 0;
  // This rank gives up: nobody waits for it any longer.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace cadre
