#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <stdexcept>

#include "base/rng.h"
#include "comm/inproc/inproc_world.h"
#include "comm/test_ranks.h"
#include "tests/testing.h"

namespace cadre {
namespace {

using testing::all_members;
using testing::check_all_to_all;
using testing::check_collectives;
using testing::run_ranks;

std::unique_ptr<Transport> whole_world(CommWorld& world) {
  return world.make_transport("world", all_members(world.size()));
}

TEST(InprocTest, EveryCollectiveOverRanksAndSizes) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(ranks);
    run_ranks(make_inproc_worlds(ranks), [](CommWorld& world) {
      Group group("world", whole_world(world));
      for (const int64_t size : {0, 1, 7, 1025, 200'003}) check_collectives(group, size);
    });
  }
}

TEST(InprocTest, RandomUnevenExchanges) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  for (const int ranks : {2, 3, 5}) {
    run_ranks(make_inproc_worlds(ranks), [&](CommWorld& world) {
      Group group("world", whole_world(world));
      for (int round = 0; round < 200; ++round)
        check_all_to_all(group, round, [&](int from, int to) -> int64_t {
          Rng rng(seed, static_cast<uint64_t>((round * 8 + from) * 8 + to));
          const uint32_t kind = rng.below(8);
          return kind < 3 ? 0 : kind < 7 ? rng.below(300) : rng.below(20'000);
        });
    });
  }
}

TEST(InprocTest, OtherWorkAndOtherGroupsRunBetweenTheHalves) {
  run_ranks(make_inproc_worlds(4), [](CommWorld& world) {
    Group all("world", whole_world(world));
    Group pair("pair",
               world.make_transport("pair", world.rank() < 2 ? std::vector<int>{1, 0} : std::vector<int>{2, 3}));
    EXPECT_EQ(pair.size(), 2);
    EXPECT_EQ(pair.rank(), world.rank() < 2 ? 1 - world.rank() : world.rank() - 2);
    for (int round = 0; round < 50; ++round)
      check_all_to_all(
          all, round, [](int from, int to) { return 100 + from + to; }, [&] { check_collectives(pair, round); });
  });
}

TEST(InprocTest, SubgroupsRunInParallelEachAtItsOwnPace) {
  run_ranks(make_inproc_worlds(7), [](CommWorld& world) {
    // Three groups that share no rank; the larger the rank, the more exchanges.
    const std::vector<std::vector<int>> groups = {{0}, {1, 2}, {3, 4, 5, 6}};
    const size_t which = world.rank() == 0 ? 0 : world.rank() < 3 ? 1 : 2;
    Group group("part", world.make_transport("part", groups[which]));
    for (size_t i = 0; i < 20 * (which + 1); ++i) check_collectives(group, 33);
  });
}

TEST(InprocTest, CountsCallsAndBytesSentToOthers) {
  run_ranks(make_inproc_worlds(3), [](CommWorld& world) {
    TrafficCounters counters(1);
    Group group("world", whole_world(world), &counters);
    float values[5] = {};
    group.all_reduce({Traffic::kMoeReduce, 0}, values, 5);
    group.barrier({Traffic::kStep});
    EXPECT_EQ(counters.at(0, Traffic::kMoeReduce), (TrafficCount{1, 40}));
    EXPECT_EQ(counters.at(-1, Traffic::kStep), (TrafficCount{1, 0}));
  });
}

TEST(InprocTest, SameNameMakesANewGroupEachTime) {
  run_ranks(make_inproc_worlds(3), [](CommWorld& world) {
    for (int i = 0; i < 30; ++i) {
      Group group("again", world.make_transport("again", all_members(3)));
      check_all_to_all(group, i, [](int, int) { return 10; });
    }
  });
}

// ---- ranks that fail

enum class Point { kBeforeStart, kBetweenHalves };

// One exchange in which `victim` calls freeze() at the point.
void exchange_with(Group& group, bool is_victim, Point point, const std::function<void()>& freeze) {
  if (is_victim && point == Point::kBeforeStart) freeze();
  check_all_to_all(
      group, 1, [](int, int) { return 50; },
      [&] {
        if (is_victim && point == Point::kBetweenHalves) freeze();
      });
}

TEST(InprocTest, AFrozenRankEndsTheOthersAtTheirDeadline) {
  constexpr int kRanks = 4;
  for (const Point point : {Point::kBeforeStart, Point::kBetweenHalves})
    for (const int victim : {0, 2}) {
      std::latch others_have_thrown(kRanks - 1);
      run_ranks(make_inproc_worlds(kRanks), [&](CommWorld& world) {
        const bool is_victim = world.rank() == victim;
        Group group("world", whole_world(world));
        check_all_to_all(group, 0, [](int, int) { return 50; });
        group.transport().set_step(17);
        // Long enough that only the frozen rank is late, even on a busy machine.
        if (!is_victim) group.transport().set_timeout_us(500'000);
        try {
          exchange_with(group, is_victim, point, [&] { others_have_thrown.wait(); });
          ADD_FAILURE() << "rank " << world.rank() << " went on without rank " << victim;
        } catch (const PeerLost& lost) {
          EXPECT_EQ(lost.group(), "world");
          EXPECT_EQ(lost.rank(), victim);
          EXPECT_EQ(lost.step(), 17);
          EXPECT_NE(std::string(lost.what()).find("did not come within 500000 us"), std::string::npos) << lost.what();
        }
        if (!is_victim) others_have_thrown.count_down();
        // The survivors go on without it.
        std::vector<int> survivors;
        for (int r = 0; r < kRanks; ++r)
          if (r != victim) survivors.push_back(r);
        if (!is_victim) {
          Group rest("world", world.make_transport("world", survivors));
          check_collectives(rest, 100);
        }
      });
    }
}

TEST(InprocTest, AnAbortWakesEveryoneAtOnceAndNamesTheRankAndItsReason) {
  constexpr int kRanks = 4;
  for (const Point point : {Point::kBeforeStart, Point::kBetweenHalves})
    for (int victim = 0; victim < kRanks; ++victim)
      run_ranks(make_inproc_worlds(kRanks), [&](CommWorld& world) {
        Group group("world", whole_world(world));  // no deadline: without the wake-up this test would hang
        try {
          exchange_with(group, world.rank() == victim, point, [&] { group.transport().abort("out of blocks"); });
          ADD_FAILURE() << "rank " << world.rank() << " went on without rank " << victim;
        } catch (const PeerLost& lost) {
          EXPECT_EQ(lost.rank(), victim);
          EXPECT_NE(std::string(lost.what()).find("gave up: out of blocks"), std::string::npos) << lost.what();
        }
      });
}

TEST(InprocTest, AnotherThreadMayAbort) {
  run_ranks(make_inproc_worlds(2), [&](CommWorld& world) {
    Group group("world", whole_world(world));
    if (world.rank() == 0) {
      auto aborter = std::async(std::launch::async, [&] { group.transport().abort("shutting down"); });
      EXPECT_THROW(for (;;) group.barrier(), PeerLost);
    } else {
      EXPECT_THROW(for (;;) group.barrier(), PeerLost);
    }
  });
}

TEST(InprocTest, ARankThatLeavesIsMissedOnlyByThoseWhoStillNeedIt) {
  run_ranks(make_inproc_worlds(3), [&](CommWorld& world) {
    auto group = std::make_unique<Group>("world", whole_world(world));
    check_all_to_all(*group, 0, [](int, int) { return 1000; });
    if (world.rank() == 1) return group.reset();
    try {
      group->barrier();
      ADD_FAILURE();
    } catch (const PeerLost& lost) {
      EXPECT_EQ(lost.rank(), 1);
      EXPECT_NE(std::string(lost.what()).find("left the group"), std::string::npos) << lost.what();
    }
  });
}

// What a rank sends from is freed as soon as it throws; under the sanitizers this fails when a peer still reads it.
TEST(InprocTest, BuffersOfARankThatThrowsAreNotReadAfterwards) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  struct Mishap : std::runtime_error {
    using runtime_error::runtime_error;
  };
  constexpr int kRanks = 3;
  for (int round = 0; round < 60; ++round) {
    Rng choice(seed, static_cast<uint64_t>(round));
    const int victim = static_cast<int>(choice.below(kRanks)), how = static_cast<int>(choice.below(3)),
              at_source = static_cast<int>(choice.below(kRanks));
    std::atomic<int> num_mishaps{0}, num_lost{0};
    run_ranks(make_inproc_worlds(kRanks), [&](CommWorld& world) {
      Group group("world", whole_world(world));
      const bool is_victim = world.rank() == victim;
      try {
        std::vector<std::byte> out(1 << 18), in(kRanks << 18);
        std::vector<SendPart> send(kRanks, SendPart{out.data(), 1 << 18});
        std::vector<RecvPart> recv;
        for (int s = 0; s < kRanks; ++s) recv.push_back({in.data() + (s << 18), 1 << 18});
        OpenExchange exchange(group, {}, send, recv);
        if (is_victim && how == 0) throw Mishap("between the halves");
        exchange.finish([&](int source, std::span<const std::byte>) {
          if (!is_victim || source != at_source) return;
          if (how == 1) throw Mishap("within receive");
          group.transport().abort("within receive");
        });
        // Whoever gave up in the last part of an exchange that all others had ended fails in the next.
        group.barrier();
        ADD_FAILURE() << "rank " << world.rank() << " went on after rank " << victim << " gave up";
      } catch (const Mishap&) {
        ++num_mishaps;
      } catch (const PeerLost& lost) {
        ++num_lost;
        EXPECT_EQ(lost.rank(), victim);
      }
    });
    EXPECT_EQ(num_mishaps + num_lost, kRanks) << "round " << round;
  }
}

TEST(InprocTest, AMemberThatDoesNotComeIsNamedAndTheNextMeetingIsNew) {
  std::latch both_gave_up(2);
  run_ranks(make_inproc_worlds(3, {.meet_timeout_us = 200'000}), [&](CommWorld& world) {
    if (world.rank() == 1) {
      both_gave_up.wait();
    } else {
      try {
        whole_world(world);
        ADD_FAILURE();
      } catch (const PeerLost& lost) {
        EXPECT_EQ(lost.rank(), 1);
        EXPECT_EQ(lost.group(), "world");
      }
      both_gave_up.count_down();
      both_gave_up.wait();
    }
    // All three meet; the deadline of this meeting must be long enough for a busy machine, so it is retried.
    for (int attempt = 0;; ++attempt) try {
        Group group("second", world.make_transport("second", all_members(3)));
        return check_collectives(group, 10);
      } catch (const PeerLost&) {
        if (attempt == 20) throw;
      }
  });
}

TEST(InprocTest, AMemberThatIsGoneIsNamedAtOnce) {
  run_ranks(make_inproc_worlds(3, {.meet_timeout_us = 0}), [&](CommWorld& world) {
    if (world.rank() == 2) return;
    EXPECT_THROW(
        try { whole_world(world); } catch (const PeerLost& lost) {
          EXPECT_EQ(lost.rank(), 2);
          throw;
        },
        PeerLost);
    Group rest("rest", world.make_transport("rest", {0, 1}));
    check_collectives(rest, 10);
  });
}

TEST(InprocDeathTest, SizesThatDisagreeAreABug) {
  EXPECT_DEATH(run_ranks(make_inproc_worlds(2),
                         [](CommWorld& world) {
                           Group group("world", whole_world(world));
                           check_all_to_all(group, 0, [&](int, int) { return 10 + world.rank(); });
                         }),
               "sends 1[01] bytes");
}

}  // namespace
}  // namespace cadre
