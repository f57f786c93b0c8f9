#include "dp/admission.h"

#include "base/error.h"

namespace cadre {

Admission::Admission(LoadBalance method, int num_ranks, QueueLimits limits) : limits_(limits), router_(method, num_ranks), ranks_(static_cast<size_t>(num_ranks)) {}

int Admission::assign(const RoutingWish& wish, const RankLoad& load) {
  router_.check(wish);
  check_room(load);
  return router_.route(wish, load).rank;
}

void Admission::publish(int rank_idx, const RankGauges& gauges, uint64_t num_taken) {
  Rank& rank = ranks_.at(static_cast<size_t>(rank_idx));
  rank.gauges = gauges;
  const RankLoad load{gauges.num_waiting + gauges.num_running, gauges.num_waiting_tokens + gauges.num_running_tokens};
  router_.update(rank_idx, {.sequence = ++rank.num_published, .num_taken = num_taken, .load = load});
}

RankLoad Admission::queued(int rank) const {
  const RankLoad pending = router_.pending(rank);
  const RankGauges& gauges = ranks_.at(static_cast<size_t>(rank)).gauges;
  return {pending.num_requests + gauges.num_waiting, pending.num_tokens + gauges.num_waiting_tokens};
}

void Admission::check_room(const RankLoad& request) const {
  int64_t num_queued = 0, num_tokens = 0;
  for (int rank = 0; rank < router_.num_ranks(); ++rank) {
    const RankLoad load = queued(rank);
    num_queued += load.num_requests;
    num_tokens += load.num_tokens;
  }
  if (num_queued == 0) return;
  if (num_queued + request.num_requests > limits_.max_requests)
    throw Error(ErrorKind::kOverloaded, fmt::format("The queue holds {} of at most {} waiting requests; try again later", num_queued, limits_.max_requests));
  if (num_tokens + request.num_tokens > limits_.max_tokens)
    throw Error(ErrorKind::kOverloaded, fmt::format("The queue holds {} of at most {} waiting prompt tokens; try again later", num_tokens, limits_.max_tokens));
}

}  // namespace cadre
