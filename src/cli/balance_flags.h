// Flags of expert load balancing, in SGLang's and vLLM's names.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "eplb/balancer.h"
#include "parallel/options.h"
#include "parallel/replica_choice.h"

namespace cadre::cli {

struct BalanceFlags {
  std::string algorithm = "cadre", dispatch = "auto", initial = "trivial";
  int64_t window_steps = 1000, interval_steps = 3000, layers_per_step = 1, ranks_per_node = 0;
  double min_utilization = 1.0;
  bool has_free_moves = false;
};

// Flags that are written beside --eplb-config count before it.
void add_balance_flags(CLI::App& command, BalanceFlags& flags, ParallelOptions& options);


ReplicaChoice replica_choice_of(const BalanceFlags& flags);
// Of equally many consecutive expert-parallel ranks each.
int num_nodes(const BalanceFlags& flags, const Layout& layout);
// Where experts begin, one for each sparse layer: of the file that --init-expert-location names, or planned from the load
// in it. Empty: in order. Throws Error for a file of another model or layout.
std::vector<ExpertPlacement> initial_placements(const BalanceFlags& flags, const ResolvedLayout& resolved, const ModelConfig& config);
// nullopt: experts stay where they are.
std::optional<eplb::BalancerOptions> balancer_options(const BalanceFlags& flags, const ResolvedLayout& resolved, const ModelConfig& config);

}  // namespace cadre::cli
