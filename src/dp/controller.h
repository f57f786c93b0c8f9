// The controller owns the engines (one per data-parallel rank, one thread each) and spreads requests over them.
// submit, cancel, drain and the snapshots may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"

namespace cadre {

using RequestHandle = uint64_t;

struct ControllerOptions {
  int64_t max_queued_requests = 1024;      // waiting, not yet running; past it submit throws kOverloaded
  int64_t max_queued_tokens = 4'000'000;   // prompt tokens of waiting requests
};

class Controller {
 public:
  Controller(std::vector<std::unique_ptr<Engine>> engines, ControllerOptions options);
  ~Controller();  // cancels what is left and joins the threads

  // Validates (ids in range, prompt + 1 within the context, enough blocks in an empty pool, sane parameters) and queues.
  // Throws Error: kInvalidInput, kContextLength (both numbers in the message), kOverloaded, kUnavailable (draining).
  // The sink gets every delta of every choice; the last one of each choice has `finish`.
  RequestHandle submit(GenerationRequest request, DeltaSink sink);

  // Ends a request in whatever state it is; its choices finish with kCancelled. Unknown or finished handles are ignored.
  void cancel(RequestHandle handle);

  // No new requests from now on; running and queued ones go on. Returns true once idle, false at the deadline.
  void begin_drain();
  bool wait_until_idle(int64_t timeout_ms);

  EngineStats stats(int rank) const;  // snapshot
  int num_ranks() const;
  // True when every rank made a step lately or has nothing to do (health is progress).
  bool is_healthy() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre
