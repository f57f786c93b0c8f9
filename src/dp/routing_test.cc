#include "dp/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "tests/testing.h"

namespace cadre {
namespace {

constexpr LoadBalance kAll[] = {LoadBalance::kRoundRobin, LoadBalance::kTotalRequests, LoadBalance::kTotalTokens, LoadBalance::kFollowBootstrapRoom};

std::vector<int> route(Router& router, int count, RankLoad load = {1, 10}) {
  std::vector<int> out;
  for (int i = 0; i < count; ++i) out.push_back(router.route({}, load).rank);
  return out;
}

template <typename Call>
std::optional<Error> refusal(Call call) {
  try {
    call();
  } catch (const Error& e) {
    return e;
  }
  return std::nullopt;
}

TEST(Routing, MethodsHaveNames) {
  for (const LoadBalance method : kAll) EXPECT_EQ(load_balance_of(load_balance_name(method)), method);
  EXPECT_EQ(load_balance_of("total_token"), std::nullopt);
  EXPECT_EQ(load_balance_of(""), std::nullopt);
  EXPECT_EQ(load_balance_names(), "round_robin, total_requests, total_tokens, follow_bootstrap_room");
}

TEST(Routing, RoundRobinTakesTurnsWhateverTheLoad) {
  Router router(LoadBalance::kRoundRobin, 3);
  router.update(0, {.sequence = 1, .load = {900, 90'000}});
  EXPECT_EQ(route(router, 7), (std::vector<int>{0, 1, 2, 0, 1, 2, 0}));
  router.remove(1);
  EXPECT_EQ(route(router, 4), (std::vector<int>{2, 0, 2, 0}));
}

TEST(Routing, TotalRequestsLooksAtSequencesAndEqualsTakeTurns) {
  Router router(LoadBalance::kTotalRequests, 4);
  router.update(1, {.sequence = 1, .load = {2, 1}});
  router.update(2, {.sequence = 1, .load = {0, 90'000}});
  EXPECT_EQ(route(router, 6), (std::vector<int>{0, 2, 3, 0, 2, 3}));
  EXPECT_EQ(route(router, 4), (std::vector<int>{0, 1, 2, 3}));  // all have two
  EXPECT_EQ(route(router, 1, {3, 1})[0], 0);
  EXPECT_EQ(route(router, 3), (std::vector<int>{1, 2, 3}));
}

TEST(Routing, TotalTokensLooksAtTokensThenSequencesThenTakesTurns) {
  Router router(LoadBalance::kTotalTokens, 3);
  router.update(0, {.sequence = 1, .load = {1, 100}});
  router.update(1, {.sequence = 1, .load = {3, 50}});
  router.update(2, {.sequence = 1, .load = {2, 50}});
  EXPECT_EQ(route(router, 1, {1, 50})[0], 2);  // as many tokens as 1, fewer sequences
  EXPECT_EQ(route(router, 1, {1, 50})[0], 1);
  EXPECT_EQ(route(router, 1, {2, 0})[0], 0);   // all have 100 tokens
  EXPECT_EQ(router.load(0), (RankLoad{3, 100}));
  EXPECT_EQ(router.load(1), (RankLoad{4, 100}));
  EXPECT_EQ(router.load(2), (RankLoad{3, 100}));
  EXPECT_EQ(route(router, 2, {1, 0}), (std::vector<int>{2, 0}));
}

// An idle cluster does not pile everything on its first rank.
TEST(Routing, EqualRanksTakeTurnsEvenWhenEachRequestEndsBeforeTheNext) {
  for (const LoadBalance method : {LoadBalance::kRoundRobin, LoadBalance::kTotalRequests, LoadBalance::kTotalTokens}) {
    Router router(method, 3);
    std::vector<int> counts(3);
    for (uint64_t i = 1; i <= 300; ++i) {
      const auto [rank, number] = router.route({}, {1, 100});
      ++counts[static_cast<size_t>(rank)];
      ASSERT_TRUE(router.update(rank, {.sequence = i, .num_taken = number}));
    }
    EXPECT_EQ(counts, (std::vector<int>{100, 100, 100})) << load_balance_name(method);
  }
}

TEST(Routing, ARoomIsFollowedToItsRank) {
  Router router(LoadBalance::kFollowBootstrapRoom, 3);
  for (const int64_t room : {int64_t{0}, int64_t{4}, int64_t{8}, int64_t{9'223'372'036'854'775'807}})
    EXPECT_EQ(router.route({.room = room}, {1, 1}).rank, room % 3);
  const auto none = refusal([&] { router.route({}, {1, 1}); });
  ASSERT_TRUE(none);
  EXPECT_EQ(none->kind(), ErrorKind::kInvalidInput);
  EXPECT_EQ(none->param(), "bootstrap_room");
  EXPECT_TRUE(refusal([&] { router.route({.room = -1}, {1, 1}); }));
  router.remove(1);
  const auto dead = refusal([&] { router.route({.room = 4}, {1, 1}); });
  ASSERT_TRUE(dead);
  EXPECT_EQ(dead->kind(), ErrorKind::kUnavailable);
  EXPECT_EQ(router.route({.room = 5}, {1, 1}).rank, 2);
  EXPECT_EQ(router.route({.rank = 0}, {1, 1}).rank, 0);  // a pinned request needs no room
  // Other methods take a room and do not need it.
  EXPECT_EQ(Router(LoadBalance::kRoundRobin, 3).route({.room = 2}, {1, 1}).rank, 0);
}

TEST(Routing, APinnedRequestGoesToItsRankAndTakesNobodysTurn) {
  for (const LoadBalance method : kAll) {
    Router router(method, 3);
    router.update(2, {.sequence = 1, .load = {9, 900}});
    EXPECT_EQ(router.route({.rank = 2, .room = 0}, {4, 40}).rank, 2);
    EXPECT_EQ(router.load(2), (RankLoad{13, 940}));
    if (method != LoadBalance::kFollowBootstrapRoom) {
      EXPECT_EQ(router.route({}, {1, 1}).rank, 0);
    }
    for (const int64_t rank : {int64_t{-1}, int64_t{3}, int64_t{1} << 40}) {
      const auto refused = refusal([&] { router.check({.rank = rank, .room = 0}); });
      ASSERT_TRUE(refused);
      EXPECT_EQ(refused->kind(), ErrorKind::kInvalidInput);
      EXPECT_EQ(refused->param(), "data_parallel_rank");
      EXPECT_NE(std::string(refused->what()).find("from 0 to 2"), std::string::npos);
    }
    router.remove(2);
    EXPECT_EQ(refusal([&] { router.check({.rank = 2}); })->kind(), ErrorKind::kUnavailable);
  }
}

TEST(Routing, NothingGoesToRanksThatAreGone) {
  for (const LoadBalance method : {LoadBalance::kRoundRobin, LoadBalance::kTotalRequests, LoadBalance::kTotalTokens}) {
    Router router(method, 3);
    router.update(1, {.sequence = 1, .load = {50, 5000}});
    router.remove(0);
    router.remove(2);
    EXPECT_EQ(route(router, 5), std::vector<int>(5, 1));
    router.remove(1);
    const auto refused = refusal([&] { router.route({}, {1, 1}); });
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->kind(), ErrorKind::kUnavailable);
  }
}

TEST(Routing, StaleAndRepeatedSnapshotsChangeNothing) {
  Router router(LoadBalance::kTotalTokens, 1);
  route(router, 3);
  EXPECT_TRUE(router.update(0, {.sequence = 5, .num_taken = 2, .load = {2, 20}}));
  EXPECT_EQ(router.load(0), (RankLoad{3, 30}));
  EXPECT_EQ(router.pending(0), (RankLoad{1, 10}));
  for (const uint64_t sequence : {uint64_t{5}, uint64_t{4}, uint64_t{0}}) EXPECT_FALSE(router.update(0, {.sequence = sequence, .num_taken = 1, .load = {9, 9}}));
  EXPECT_EQ(router.load(0), (RankLoad{3, 30}));
  EXPECT_TRUE(router.update(0, {.sequence = 6, .num_taken = 3, .load = {1, 12}}));
  EXPECT_EQ(router.load(0), (RankLoad{1, 12}));
  EXPECT_EQ(router.num_assigned(0), 3u);
}

// A burst that no snapshot interrupts levels the ranks: they differ by no more than the largest request, unless one
// started higher.
TEST(Routing, ABurstBetweenSnapshotsSpreads) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed(), 21);
  for (int round = 0; round < 500; ++round) {
    const int num_ranks = 2 + static_cast<int>(rng.below(7));
    Router router(LoadBalance::kTotalTokens, num_ranks);
    int64_t highest = 0, largest = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const int64_t tokens = rng.below(2) ? rng.below(5000) : 0;
      highest = std::max(highest, tokens);
      router.update(rank, {.sequence = 1, .load = {1, tokens}});
    }
    std::vector<int> counts(static_cast<size_t>(num_ranks));
    for (int i = 0; i < 2000; ++i) {
      const int64_t tokens = 1 + rng.below(200);
      largest = std::max(largest, tokens);
      ++counts[static_cast<size_t>(router.route({}, {1, tokens}).rank)];
    }
    int64_t least = router.load(0).num_tokens, most = least;
    for (int rank = 1; rank < num_ranks; ++rank) {
      least = std::min(least, router.load(rank).num_tokens);
      most = std::max(most, router.load(rank).num_tokens);
    }
    ASSERT_LE(most - least, largest) << "round " << round << ", highest start " << highest;
    for (const int count : counts) ASSERT_GT(count, 0);
  }
  Router even(LoadBalance::kTotalRequests, 4);
  route(even, 1000);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(even.load(rank).num_requests, 250);
}

// A cluster of ranks behind a network that delays, reorders, repeats and loses snapshots.
class Cluster {
 public:
  Cluster(LoadBalance method, int num_ranks, Rng rng) : method_(method), router_(method, num_ranks), ranks_(static_cast<size_t>(num_ranks)), rng_(rng) {}

  void random_event() {
    const auto rank = static_cast<int>(rng_.below(static_cast<uint32_t>(ranks_.size())));
    switch (rng_.below(12)) {
      case 0:
      case 1: return submit();
      case 2:
      case 3: return take(rank, 1 + rng_.below(4));
      case 4: return grow(rank);
      case 5:
      case 6: return finish(rank);
      case 7: return cancel();
      case 8:
      case 9: return snapshot(rank);
      default: return deliver();
    }
  }
  // Everything on its way arrives, in any order; the last snapshots too.
  void settle() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      take(static_cast<int>(r), 1'000'000'000);
      snapshot(static_cast<int>(r));
    }
    while (!network_.empty()) deliver();
  }
  void finish_all() {
    for (Rank& rank : ranks_) rank.live.clear();
  }
  void expect_truth() const {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ASSERT_EQ(router_.load(static_cast<int>(r)), truth(ranks_[r])) << "rank " << r;
      ASSERT_EQ(router_.pending(static_cast<int>(r)), RankLoad{});
      ASSERT_EQ(router_.num_assigned(static_cast<int>(r)), ranks_[r].sent.size());
    }
  }
  // What the header promises of the view, counted anew: the newest snapshot that arrived, and all assignments after it.
  void expect_promise() const {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      RankLoad expected = ranks_[r].newest.load;
      for (size_t i = ranks_[r].newest.num_taken; i < ranks_[r].sent.size(); ++i) {
        expected.num_requests += ranks_[r].sent[i].num_requests;
        expected.num_tokens += ranks_[r].sent[i].num_tokens;
      }
      ASSERT_EQ(router_.load(static_cast<int>(r)), expected) << "rank " << r;
    }
  }
  size_t num_sent() const {
    return std::accumulate(ranks_.begin(), ranks_.end(), size_t{0}, [](size_t sum, const Rank& r) { return sum + r.sent.size(); });
  }
  size_t num_stale() const { return num_stale_; }

 private:
  struct Rank {
    std::vector<RankLoad> sent;         // every assignment
    size_t num_taken = 0;               // of them
    std::map<size_t, RankLoad> live;    // taken and not over
    std::vector<size_t> cancelled;      // in the channel behind the assignment
    uint64_t num_snapshots = 0;
    LoadSnapshot newest;                // delivered
  };
  struct Message {
    int rank;
    LoadSnapshot snapshot;
  };

  static RankLoad truth(const Rank& rank) {
    RankLoad sum;
    for (const auto& [id, load] : rank.live) sum.num_requests += load.num_requests, sum.num_tokens += load.num_tokens;
    return sum;
  }
  void submit() {
    RoutingWish wish;
    if (rng_.below(10) == 0) wish.rank = rng_.below(static_cast<uint32_t>(ranks_.size()));
    if (method_ == LoadBalance::kFollowBootstrapRoom) wish.room = rng_();
    const RankLoad load{1 + rng_.below(3), 1 + rng_.below(2000)};
    const RankLoad before = router_.load(0);
    const auto [rank, number] = router_.route(wish, load);
    if (wish.rank) {
      ASSERT_EQ(rank, *wish.rank);
    } else if (method_ == LoadBalance::kTotalTokens) {
      const int64_t chosen = router_.load(rank).num_tokens - load.num_tokens;
      for (size_t r = 0; r < ranks_.size(); ++r)
        if (static_cast<int>(r) != rank) {
          ASSERT_LE(chosen, router_.load(static_cast<int>(r)).num_tokens);
        }
      if (rank != 0) {
        ASSERT_EQ(before, router_.load(0));
      }
    }
    ranks_[static_cast<size_t>(rank)].sent.push_back(load);
    ASSERT_EQ(number, ranks_[static_cast<size_t>(rank)].sent.size());
  }
  void take(int rank_idx, size_t count) {
    Rank& rank = ranks_[static_cast<size_t>(rank_idx)];
    for (; count > 0 && rank.num_taken < rank.sent.size(); --count, ++rank.num_taken) rank.live.emplace(rank.num_taken, rank.sent[rank.num_taken]);
    std::erase_if(rank.cancelled, [&](size_t id) {
      if (id >= rank.num_taken) return false;
      rank.live.erase(id);
      return true;
    });
  }
  // A step: every sequence gets a token.
  void grow(int rank_idx) {
    for (auto& [id, load] : ranks_[static_cast<size_t>(rank_idx)].live) load.num_tokens += load.num_requests;
  }
  void finish(int rank_idx) {
    auto& live = ranks_[static_cast<size_t>(rank_idx)].live;
    if (live.empty()) return;
    auto it = live.lower_bound(live.begin()->first + rng_.below(8));
    live.erase(it == live.end() ? live.begin() : it);
  }
  void cancel() {
    Rank& rank = ranks_[rng_.below(static_cast<uint32_t>(ranks_.size()))];
    if (rank.sent.empty()) return;
    const size_t back = rng_.below(static_cast<uint32_t>(std::min<size_t>(rank.sent.size(), 16)));
    rank.cancelled.push_back(rank.sent.size() - 1 - back);
  }
  void snapshot(int rank_idx) {
    Rank& rank = ranks_[static_cast<size_t>(rank_idx)];
    network_.push_back({rank_idx, {.sequence = ++rank.num_snapshots, .num_taken = rank.num_taken, .load = truth(rank)}});
  }
  void deliver() {
    if (network_.empty()) return;
    const size_t i = rng_.below(static_cast<uint32_t>(network_.size()));
    const Message message = network_[i];
    Rank& rank = ranks_[static_cast<size_t>(message.rank)];
    const bool is_last = message.snapshot.sequence == rank.num_snapshots;
    if (is_last || rng_.below(8) != 0) {  // else lost
      const bool is_new = message.snapshot.sequence > rank.newest.sequence;
      ASSERT_EQ(router_.update(message.rank, message.snapshot), is_new);
      if (is_new) rank.newest = message.snapshot;
      num_stale_ += !is_new;
    }
    if (rng_.below(8) == 0) return;  // comes again
    network_[i] = network_.back();
    network_.pop_back();
  }

  LoadBalance method_;
  Router router_;
  std::vector<Rank> ranks_;
  Rng rng_;
  std::vector<Message> network_;
  size_t num_stale_ = 0;
};

TEST(Routing, CountersEqualTheTruthAfterAMillionRandomEvents) {
  SCOPED_TRACE(testing::seed());
  uint64_t stream = 100;
  for (const LoadBalance method : kAll)
    for (const int num_ranks : {1, 2, 4, 9, 16}) {
      SCOPED_TRACE(fmt::format("{} over {} ranks", load_balance_name(method), num_ranks));
      Cluster cluster(method, num_ranks, Rng(testing::seed(), ++stream));
      for (int event = 0; event < 50'000; ++event) {
        cluster.random_event();
        if (event % 997 == 0) cluster.expect_promise();
        if (HasFatalFailure()) return;
      }
      cluster.settle();
      cluster.expect_truth();
      cluster.finish_all();
      cluster.settle();
      cluster.expect_truth();
      if (HasFatalFailure()) return;
      EXPECT_GT(cluster.num_sent(), 7000u);
      EXPECT_GT(cluster.num_stale(), 1000u);
    }
}

}  // namespace
}  // namespace cadre
