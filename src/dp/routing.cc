#include "dp/routing.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "base/error.h"

namespace cadre {
namespace {

constexpr struct {
  LoadBalance method;
  std::string_view name;
} kMethods[] = {{LoadBalance::kRoundRobin, "round_robin"},
                {LoadBalance::kTotalRequests, "total_requests"},
                {LoadBalance::kTotalTokens, "total_tokens"},
                {LoadBalance::kFollowBootstrapRoom, "follow_bootstrap_room"}};

}  // namespace

std::string_view load_balance_name(LoadBalance method) {
  for (const auto& entry : kMethods)
    if (entry.method == method) return entry.name;
  return {};
}

std::string load_balance_names() {
  std::string out;
  for (const auto& entry : kMethods) out += (out.empty() ? "" : ", ") + std::string(entry.name);
  return out;
}

std::optional<LoadBalance> load_balance_of(std::string_view name) {
  for (const auto& entry : kMethods)
    if (entry.name == name) return entry.method;
  return std::nullopt;
}

Router::Router(LoadBalance method, int num_ranks) : method_(method), ranks_(static_cast<size_t>(num_ranks)) {
  CADRE_CHECK(num_ranks > 0, "a router to {} ranks", num_ranks);
}

void Router::check(const RoutingWish& wish) const {
  const auto num_ranks = static_cast<int64_t>(ranks_.size());
  const auto expect_alive = [&](int64_t rank, const char* param) {
    if (ranks_[static_cast<size_t>(rank)].is_removed)
      throw Error(ErrorKind::kUnavailable, fmt::format("{}: expected data-parallel rank {} to run, found it stopped; choose another one or restart the server", param, rank), param);
  };
  if (wish.room && *wish.room < 0)
    throw Error(ErrorKind::kInvalidInput, fmt::format("bootstrap_room: expected an integer, 0 or more, found {}; correct it", *wish.room), "bootstrap_room");
  if (wish.rank) {
    if (*wish.rank < 0 || *wish.rank >= num_ranks)
      throw Error(ErrorKind::kInvalidInput,
                  fmt::format("data_parallel_rank: expected a data-parallel rank of this server, from 0 to {}, found {}; correct it or leave it out", num_ranks - 1, *wish.rank),
                  "data_parallel_rank");
    return expect_alive(*wish.rank, "data_parallel_rank");
  }
  if (method_ == LoadBalance::kFollowBootstrapRoom) {
    if (!wish.room)
      throw Error(ErrorKind::kInvalidInput, "bootstrap_room: expected an integer, as this server chooses ranks by it (follow_bootstrap_room), found nothing; send one", "bootstrap_room");
    return expect_alive(*wish.room % num_ranks, "bootstrap_room");
  }
  if (std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.is_removed; }))
    throw Error(ErrorKind::kUnavailable, "The engine has stopped after a failure; the server has to be restarted");
}

Router::Assignment Router::route(const RoutingWish& wish, const RankLoad& load) {
  check(wish);
  const int chosen = choose(wish);
  Rank& rank = ranks_[static_cast<size_t>(chosen)];
  rank.later.push_back(load);
  rank.pending.num_requests += load.num_requests;
  rank.pending.num_tokens += load.num_tokens;
  return {chosen, ++rank.num_assigned};
}

int Router::choose(const RoutingWish& wish) {
  if (wish.rank) return static_cast<int>(*wish.rank);
  if (method_ == LoadBalance::kFollowBootstrapRoom) return static_cast<int>(*wish.room % num_ranks());
  const int chosen = next_in_turn();
  turn_ = (chosen + 1) % num_ranks();
  return chosen;
}

// The best living rank, by the method; of equals the first from turn_ on.
int Router::next_in_turn() {
  const auto score = [&](int rank) {
    const RankLoad l = load(rank);
    switch (method_) {
      case LoadBalance::kTotalTokens: return std::tuple(l.num_tokens, l.num_requests);
      case LoadBalance::kTotalRequests: return std::tuple(l.num_requests, int64_t{0});
      default: return std::tuple(int64_t{0}, int64_t{0});
    }
  };
  int best = -1;
  for (int i = 0; i < num_ranks(); ++i) {
    const int rank = (turn_ + i) % num_ranks();
    if (!is_removed(rank) && (best < 0 || score(rank) < score(best))) best = rank;
  }
  CADRE_CHECK(best >= 0, "no rank is left");
  return best;
}

bool Router::update(int rank_idx, const LoadSnapshot& snapshot) {
  Rank& rank = ranks_.at(static_cast<size_t>(rank_idx));
  if (snapshot.sequence <= rank.snapshot.sequence) return false;
  CADRE_CHECK(snapshot.num_taken >= rank.snapshot.num_taken && snapshot.num_taken <= rank.num_assigned, "rank {} took {} assignments, after {}, of {}", rank_idx,
              snapshot.num_taken, rank.snapshot.num_taken, rank.num_assigned);
  for (uint64_t i = rank.snapshot.num_taken; i < snapshot.num_taken; ++i) {
    rank.pending.num_requests -= rank.later.front().num_requests;
    rank.pending.num_tokens -= rank.later.front().num_tokens;
    rank.later.pop_front();
  }
  rank.snapshot = snapshot;
  return true;
}

void Router::remove(int rank) { ranks_.at(static_cast<size_t>(rank)).is_removed = true; }

RankLoad Router::load(int rank) const {
  const Rank& r = ranks_.at(static_cast<size_t>(rank));
  return {r.snapshot.load.num_requests + r.pending.num_requests, r.snapshot.load.num_tokens + r.pending.num_tokens};
}

RankLoad Router::pending(int rank) const { return ranks_.at(static_cast<size_t>(rank)).pending; }
uint64_t Router::num_assigned(int rank) const { return ranks_.at(static_cast<size_t>(rank)).num_assigned; }
bool Router::is_removed(int rank) const { return ranks_.at(static_cast<size_t>(rank)).is_removed; }

}  // namespace cadre
