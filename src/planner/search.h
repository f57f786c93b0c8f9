// Which layout: every legal one weighed by memory and time, the ones that fit ranked by predicted throughput, the nearest that
// do not with what is missing. Legal is what resolve_layout() lets pass: the same rules as at start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/options.h"
#include "planner/memory.h"
#include "planner/step_time.h"

namespace cadre::planner {

struct PlanRequest {
  HardwareSpec hardware;
  int devices = 1;
  int nodes = 0;  // 0: as few as the device's domain allows
  WeightType weight_type = WeightType::kCheckpoint;
  double kv_value_bytes = 2;
  std::string kv_type = "auto";
  int64_t context = 8192;  // tokens of a sequence, prompt and answer
  int64_t batch = 0;       // sequences that decode at once, over all devices; 0: as many as limits allow
  int64_t max_batch_per_rank = 256;
  double max_tpot_us = 0;      // 0: no limit
  int64_t prefill_rows = 512;  // rows of a step
  int64_t redundant_experts = 0;
  double balancedness = 1;
  std::optional<std::vector<std::vector<int64_t>>> load;  // [sparse layers][experts] recorded; then balancedness follows from it
};

// Devices that the fast link joins.
int ranks_per_domain(const PlanRequest& request);

struct Candidate {
  ParallelOptions options;  // the flags of one replica
  Layout layout;
  bool is_fp8_dispatch = false;
  int replicas = 1;  // independent servers
  MemoryBudget memory;
  double balancedness = 1;
  int64_t batch_per_rank = 0;  // sequences of a data-parallel rank; 0: none fits
  StepTime decode, prefill;    // of a step at that batch; of a step of prompts alone
  double tpot_us = 0;
  double tokens_per_s = 0;  // of all devices
  double prefill_tokens_per_s = 0;
  int64_t compute_bound_rows = 0;    // compute_bound_rows() at this context; of the chosen ones only
  std::vector<std::string> missing;  // why it cannot be; empty: it can
  std::string remedy;                // what would make it fit; of the nearest ones
  bool fits() const { return missing.empty(); }
};

struct SearchResult {
  std::vector<Candidate> ranked;      // that fit, the fastest first
  std::vector<Candidate> infeasible;  // the nearest first
  int64_t num_legal = 0, num_refused = 0;
};
SearchResult search_layouts(const PlannedModel& model, const PlanRequest& request);

// One layout weighed. max_ranks_weighed: see MemoryOptions.
Candidate weigh(const PlannedModel& model, const PlanRequest& request, const ParallelOptions& options, const ResolvedLayout& resolved,
                int replicas, int ranks_weighed);

// The fewest devices, above those of the request, on which some layout fits; 0: none up to 4096 or 64 times as many.
int fewest_devices(const PlannedModel& model, const PlanRequest& request);

}  // namespace cadre::planner
