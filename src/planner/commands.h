// The command lines that start a chosen layout: Cadre's own, and the nearest of SGLang and vLLM with what they cannot express.
#pragma once

#include <string>
#include <vector>

#include "planner/search.h"

namespace cadre::planner {

struct EngineCommand {
  std::string engine;
  std::vector<std::string> lines;  // one a node, where nodes differ
  std::vector<std::string> notes;
};
std::vector<EngineCommand> engine_commands(const std::string& model, const PlannedModel& planned, const PlanRequest& request,
                                           const Candidate& chosen);

// "--tp-size 16 --dp-size 16 --enable-dp-attention ..."
std::string option_flags(const ParallelOptions& options);

}  // namespace cadre::planner
