// The decision procedure that people follow by hand, with the figures of this model and these devices as reasons: pipeline stages
// only if there is no way around, expert parallelism as wide as the experts allow, attention data-parallel for latents and by
// heads for grouped queries, tensor parallelism for what is left, then balancing. The search (search.h) says whether it was right.
#pragma once

#include <string>
#include <vector>

#include "planner/search.h"

namespace cadre::planner {

struct DecisionStep {
  std::string what, choice, reason;
};
struct Decision {
  std::vector<DecisionStep> steps;
  ParallelOptions options;
  std::optional<ResolvedLayout> resolved;  // nullopt: the rules refuse it, the last step says why
};
Decision decide(const PlannedModel& model, const PlanRequest& request);

}  // namespace cadre::planner
