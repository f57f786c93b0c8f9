// cadre plan --replay: a trace served in simulated time, by layout and policy.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/search.h"

namespace cadre::cli {

struct ReplayFlags {
  std::string trace;  // empty: no replay is asked for
  double rate = 1, session_interval_s = 10;
  int64_t limit = 0, repeat = 1;
  std::vector<std::string> policies{"total_tokens"};
  int64_t num_layouts = 1;
  bool has_prefix_cache = false;
  std::string cost;  // file of `cadre calibrate`; empty: the planner's roofline
  int64_t max_num_seqs = 0, max_prefill_tokens_per_step = -1;  // 0, -1: as serve has them
  std::string dp_sync = "lockstep";
  std::string load;  // recorded, by step or as a whole
  bool moves_experts = false;
  std::string algorithm = "cadre";
  int64_t interval_steps = 3000, window_steps = 1000;
  bool is_timed = false;
};

void add_replay_flags(CLI::App& command, ReplayFlags& flags);

// Prints a table, or JSON, of the trace on the first layouts that fit, under each policy. Returns the exit code. Throws
// Error. context: 0: the model's.
int run_replay(const ReplayFlags& flags, const planner::PlannedModel& model, const planner::PlanRequest& request,
               std::span<const planner::Candidate> layouts, int64_t context, bool as_json);
// The same with what was measured in place of a model and devices (--replay-cost).
int run_measured_replay(const ReplayFlags& flags, bool as_json);

}  // namespace cadre::cli
