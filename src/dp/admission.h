// Whether a request may queue, and on which data-parallel rank: the router, the limits of the queue, and what each rank told last.
// Pure bookkeeping without threads or a clock; the controller guards it with its mutex, the replay of traces owns one.
#pragma once

#include <cstdint>
#include <vector>

#include "dp/routing.h"

namespace cadre {

// Of choices waiting, not yet running, on all ranks together, and their prompt tokens.
struct QueueLimits {
  int64_t max_requests = 1024;
  int64_t max_tokens = 4'000'000;
};

// Sequences and their known tokens, as EngineStats counts them.
struct RankGauges {
  int64_t num_waiting = 0, num_running = 0, num_waiting_tokens = 0, num_running_tokens = 0;
};

class Admission {
 public:
  Admission(LoadBalance method, int num_ranks, QueueLimits limits);

  // Chooses a rank and counts the request on it. Into an empty queue everything goes. Throws Error: kOverloaded past a limit,
  // else what Router::route throws.
  int assign(const RoutingWish& wish, const RankLoad& load);
  // A rank's gauges, of which the first num_taken assignments to it are part.
  void publish(int rank, const RankGauges& gauges, uint64_t num_taken);
  // What waits on a rank or is on its way to it.
  RankLoad queued(int rank) const;
  void remove(int rank) { router_.remove(rank); }  // it gets nothing from here on
  const Router& router() const { return router_; }

 private:
  void check_room(const RankLoad& load) const;

  QueueLimits limits_;
  Router router_;
  struct Rank {
    RankGauges gauges;
    uint64_t num_published = 0;
  };
  std::vector<Rank> ranks_;
};

}  // namespace cadre
