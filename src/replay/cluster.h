// A deployment that serves a trace in simulated time. The scheduler, the block pool, the prefix cache, the admission
// and routing of requests and the agreement of ranks on steps are the engine's own; in place of kernels, a step takes
// what a cost says, and answers are as long as the trace has them. Event-driven: nothing waits for a clock. Same
// arguments, same result to the last bit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dp/admission.h"
#include "replay/cost.h"
#include "replay/expert_balance.h"
#include "replay/trace.h"
#include "sched/scheduler.h"
#include "sched/step_agreement.h"

namespace cadre::replay {

// What a scheduled step of a rank holds.
StepShape shape_of(std::span<const ScheduledRows> scheduled);

struct ClusterOptions {
  int replicas = 1;  // independent servers
  int ranks = 1;     // data-parallel ranks of each, which step together
  SchedulerOptions scheduler;
  int64_t num_kv_blocks = 0;  // of each rank
  int64_t max_model_len = 0;  // prompt and answer together
  bool has_prefix_cache = false;
  QueueLimits queue;
  LoadBalance load_balance = LoadBalance::kTotalTokens;
  DpSync sync = DpSync::kLockstep;
  StepCost cost;
  double round_us = 20;                    // of a turn in which ranks agree that there is nothing to do
  std::function<ExpertBalance()> balance;  // one for each server; empty: experts are loaded evenly
};

// What became of a request; times in us from the start of the trace.
struct Outcome {
  enum class End : uint8_t { kAnswered, kTooLong, kOverloaded };
  End end = End::kAnswered;
  int rank = -1;  // over all servers
  double started_us = -1, first_token_us = -1, last_token_us = -1;
  int64_t cached_tokens = 0;  // of the prompt, when it started
};

struct ClusterTotals {
  double end_us = 0;  // when the last step ended
  int64_t steps = 0, rounds = 0;
  double step_us = 0;                                        // all steps together, over all servers
  int64_t decode_rows = 0, prefill_rows = 0, most_rows = 0;  // most: of a step of a rank
  uint64_t preemptions = 0;
  int64_t most_running = 0, most_waiting = 0, most_blocks = 0;  // of a rank, all ranks, a rank
  double running_us = 0, waiting_us = 0, blocks_us = 0;         // integrals over the time of steps, all ranks together
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  std::vector<int64_t> requests_of_rank;
  int64_t rebalances = 0, moved_slots = 0;
  double stall_us = 0, balancedness = 1;
};

struct ClusterResult {
  std::vector<Outcome> outcomes;  // by request
  ClusterTotals totals;
};

// Throws Error where options do not go together.
ClusterResult replay_trace(const Trace& trace, const ClusterOptions& options);

}  // namespace cadre::replay
