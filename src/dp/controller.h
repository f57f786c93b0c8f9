// The controller owns the engines (one per data-parallel rank, one thread each) and spreads requests over them.
// submit, cancel, drain and the snapshots may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "dp/routing.h"
#include "dp/rank_link.h"
#include "dp/step_sync.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace cadre {

using RequestHandle = uint64_t;

// For whoever measures steps; called on the ranks' threads, for ranks without rows too.
struct StepObserver {
  std::function<void(int rank, std::span<const ScheduledRows> rows)> begins;  // about to run; rows are valid during the call
  std::function<void(int rank)> ends;                                          // its tokens have been delivered
};

struct ControllerOptions {
  // Choices waiting, not yet running, on all ranks together, and their prompt tokens; past either, submit throws
  // kOverloaded. Into an empty queue everything goes that is valid.
  int64_t max_queued_requests = 1024;
  int64_t max_queued_tokens = 4'000'000;
  int64_t step_timeout_us = 60'000'000;    // a rank whose step takes longer is not healthy
  const Clock* clock = nullptr;            // of the health check; must outlive the controller. nullptr: the steady clock
  DpSync sync = DpSync::kLockstep;         // of several ranks
  LoadBalance load_balance = LoadBalance::kTotalTokens;
  // Of a controller whose one rank takes its requests from another process: told after each decision, step and pause, on
  // the rank's thread. first_rank: which data-parallel rank it is.
  std::function<void(const RankReport&)> on_report;
  StepObserver step_observer;  // of the engines in this process; both or none
  int first_rank = 0;
};

// A data-parallel rank as the controller sees it.
struct RankStatus {
  EngineStats stats;          // as Controller::stats()
  RankLoad load;              // what requests are spread by
  uint64_t num_assigned = 0;  // requests it was given since the start
  bool is_healthy = true;     // makes steps, or has nothing to do
};

class Controller {
 public:
  // At least one engine. syncs: one for each engine whose ranks step together (their models share collectives); empty: each
  // engine steps by itself. links: further data-parallel ranks, in other processes.
  Controller(std::vector<std::unique_ptr<Engine>> engines, ControllerOptions options, std::vector<std::unique_ptr<StepSync>> syncs = {},
             std::vector<std::unique_ptr<RankLink>> links = {});
  ~Controller();  // cancels what is left and joins the threads

  // Validates (ids in range, prompt + 1 within the context, enough blocks in an empty pool, sane parameters) and queues.
  // Throws Error: kInvalidInput, kContextLength (both numbers in the message), kOverloaded, kUnavailable (draining, or the
  // rank it has to go to has stopped).
  // The sink gets every delta of every choice; the last one of each choice has `finish`.
  RequestHandle submit(GenerationRequest request, DeltaSink sink);
  // The rank that a request was given to, for life.
  int rank_of(RequestHandle handle) const;

  // Ends a request in whatever state it is, before the next step of its rank; its choices finish with kCancelled. Does
  // not wait for that. Unknown or finished handles are ignored.
  void cancel(RequestHandle handle);

  // No new requests from now on; running and queued ones go on. Returns true once idle, false at the deadline.
  void begin_drain();
  bool wait_until_idle(int64_t timeout_ms);

  // For a rank that takes its requests from the controller of another process, which validated them and counts the wakes.
  void accept(RequestHandle handle, GenerationRequest request, DeltaSink sink);
  void cancel_accepted(RequestHandle handle);
  void set_wakes(int64_t num_wakes);

  EngineStats stats(int rank) const;  // snapshot, never waits for a step; requests on their way in count as waiting
  RankStatus status(int rank) const;
  const ControllerOptions& options() const;
  int num_ranks() const;
  const Engine& engine(int rank) const;  // of a rank in this process (0 is); for its constants: validate, options, max_model_len, vocab_size, tokenizer
  // True when every rank made a step lately or has nothing to do (health is progress).
  bool is_healthy() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre
