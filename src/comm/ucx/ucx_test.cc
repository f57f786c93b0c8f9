// Ranks as processes of their own: forked before anything has made a thread.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "comm/inproc/inproc_world.h"
#include "comm/test_ranks.h"
#include "comm/ucx/ucx_world.h"
#include "tests/testing.h"

namespace cadre {
namespace {

using testing::all_members;
using testing::check_all_to_all;
using testing::check_collectives;

constexpr int64_t kLongUs = 60'000'000;

// A sanitizer makes the survivors themselves slow to get where they notice.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t kSlowdown = 5;
#else
constexpr int64_t kSlowdown = 1;
#endif
constexpr int64_t kNoticedUs = 1'000'000 * kSlowdown;
constexpr int64_t kDeadlineUs = 600'000 * kSlowdown;

// What the processes of one test share.
struct Shared {
  std::atomic<int64_t> failed_at_us;  // when the victim killed or stopped itself
  std::atomic<int> num_done;
};

class Processes {
 public:
  // Starts num_ranks processes that run body(world, shared).
  template <typename Body>
  Processes(
      int num_ranks, Body body, int64_t (*timeout_us)(int rank) = [](int) { return kLongUs; }) {
    shared_ =
        static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    int ports[2];
    EXPECT_EQ(pipe2(ports, O_CLOEXEC), 0);
    for (int r = 0; r < num_ranks; ++r) {
      const pid_t pid = fork();
      if (pid == 0) run_child(r, num_ranks, ports, body, timeout_us);
      pids_.push_back(pid);
    }
    close(ports[0]);
    close(ports[1]);
  }
  ~Processes() {
    for (size_t r = 0; r < pids_.size(); ++r)
      if (pids_[r] > 0) {
        kill(pids_[r], SIGKILL);
        waitpid(pids_[r], nullptr, 0);
      }
    munmap(shared_, sizeof(Shared));
  }
  void send(int rank, int signal) { kill(pids_[static_cast<size_t>(rank)], signal); }
  // Exit status as waitpid gives it.
  int wait(int rank) {
    int status = -1;
    waitpid(pids_[static_cast<size_t>(rank)], &status, 0);
    pids_[static_cast<size_t>(rank)] = -1;
    return status;
  }
  void expect_all_well(int except = -1) {
    for (int r = 0; r < static_cast<int>(pids_.size()); ++r) {
      if (r == except) continue;
      EXPECT_EQ(wait(r), 0) << "rank " << r;
    }
  }
  Shared& shared() { return *shared_; }

 private:
  template <typename Body>
  [[noreturn]] void run_child(int rank, int num_ranks, const int (&ports)[2], Body body, int64_t (*timeout_us)(int)) {
    alarm(120);  // nothing outlives a test that hangs
    int code = 1;
    try {
      // Rank 0 binds first, then publishes: one copy of the port for each rank.
      std::unique_ptr<StoreServer> server;
      int port = 0;
      if (rank == 0) {
        server = std::make_unique<StoreServer>(StoreAddress{"127.0.0.1", 0});
        port = server->port();
        for (int r = 1; r < num_ranks; ++r)
          EXPECT_EQ(write(ports[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
      } else {
        EXPECT_EQ(read(ports[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
      }
      {
        auto world = make_ucx_world(rank, num_ranks, {"127.0.0.1", port},
                                    {.connect_timeout_us = timeout_us(rank), .net_devices = "lo"});
        // Whoever makes a group with all others knows that they have taken what they need from the store.
        world->make_transport("start", all_members(num_ranks));
        server.reset();
        body(*world, *shared_);
      }
      code = ::testing::Test::HasFailure() ? 2 : 0;
    } catch (const std::exception& error) {
      fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    fflush(nullptr);
    _exit(code);
  }

  std::vector<pid_t> pids_;
  Shared* shared_ = nullptr;
};

// The rank that PeerLost names; -1 when it is not thrown.
int lost_rank(const std::function<void()>& f) {
  try {
    f();
  } catch (const PeerLost& lost) {
    return lost.rank();
  }
  return -1;
}

int64_t now_us() { return SteadyClock().now_us(); }

TEST(UcxTest, EveryCollectiveOverRanksAndSizes) {
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    Processes processes(ranks, [](CommWorld& world, Shared&) {
      Group group("world", world.make_transport("world", all_members(world.size())));
      for (const int64_t size : {0, 1, 7, 1025, 200'003}) check_collectives(group, size);
    });
    processes.expect_all_well();
  }
}

TEST(UcxTest, RandomUnevenExchangesAndSubgroups) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  Processes processes(4, [&](CommWorld& world, Shared&) {
    Group group("world", world.make_transport("world", all_members(4)));
    Group pair("pair",
               world.make_transport("pair", world.rank() < 2 ? std::vector<int>{1, 0} : std::vector<int>{2, 3}));
    for (int round = 0; round < 100; ++round) {
      const auto bytes = [&](int from, int to) -> int64_t {
        Rng rng(seed, static_cast<uint64_t>((round * 8 + from) * 8 + to));
        const uint32_t kind = rng.below(16);
        return kind < 5 ? 0 : kind < 14 ? rng.below(3000) : rng.below(400'000);
      };
      check_all_to_all(group, round, bytes, [&] {
        if (round % 4 == 0) check_collectives(pair, round);
      });
    }
  });
  processes.expect_all_well();
}

TEST(UcxTest, SameNameMakesANewGroupEachTime) {
  Processes processes(3, [](CommWorld& world, Shared&) {
    for (int i = 0; i < 30; ++i) {
      Group group("again", world.make_transport("again", all_members(3)));
      check_all_to_all(group, i, [](int, int) { return 10; });
    }
  });
  processes.expect_all_well();
}

void go_on_without(CommWorld& world, int victim) {
  std::vector<int> survivors;
  for (int r = 0; r < world.size(); ++r)
    if (r != victim) survivors.push_back(r);
  Group rest("world", world.make_transport("world", survivors));
  for (const int64_t size : {0, 100, 100'000}) check_collectives(rest, size);
}

enum class Point { kBeforeStart, kBetweenHalves, kInReceive };

// An exchange of large parts in which the victim calls fail() at the point.
void exchange_with(Group& group, bool is_victim, Point point, const std::function<void()>& fail) {
  const size_t n = static_cast<size_t>(group.size());
  constexpr int64_t kBytes = 3'000'000;
  std::vector<std::byte> out(kBytes), in(n * kBytes);
  std::vector<SendPart> send(n, SendPart{out.data(), kBytes});
  std::vector<RecvPart> recv;
  for (size_t s = 0; s < n; ++s) recv.push_back({s % 2 ? nullptr : in.data() + s * kBytes, kBytes});
  if (is_victim && point == Point::kBeforeStart) fail();
  OpenExchange exchange(group, {}, send, recv);
  if (is_victim && point == Point::kBetweenHalves) fail();
  exchange.finish([&](int, std::span<const std::byte>) {
    if (is_victim && point == Point::kInReceive) fail();
  });
  group.barrier();
}

TEST(UcxTest, AKilledRankEndsTheOthersWithinASecondAndTheyGoOn) {
  constexpr int kRanks = 4;
  for (const Point point : {Point::kBeforeStart, Point::kBetweenHalves, Point::kInReceive})
    for (const int victim : {0, 2}) {
      SCOPED_TRACE(victim);
      Processes processes(kRanks, [&](CommWorld& world, Shared& shared) {
        const bool is_victim = world.rank() == victim;
        {
          Group group("world", world.make_transport("world", all_members(kRanks)));
          check_all_to_all(group, 0, [](int, int) { return 50; });
          group.transport().set_step(17);
          group.transport().set_timeout_us(30'000'000);
          try {
            exchange_with(group, is_victim, point, [&] {
              shared.failed_at_us = now_us();
              raise(SIGKILL);
            });
            ADD_FAILURE() << "rank " << world.rank() << " went on without rank " << victim;
          } catch (const PeerLost& lost) {
            EXPECT_LT(now_us() - shared.failed_at_us.load(), kNoticedUs);
            EXPECT_EQ(lost.rank(), victim) << lost.what();
            EXPECT_EQ(lost.step(), 17);
          }
        }
        go_on_without(world, victim);
      });
      processes.expect_all_well(victim);
      EXPECT_TRUE(WIFSIGNALED(processes.wait(victim)));
    }
}

TEST(UcxTest, AStoppedRankEndsTheOthersAtTheirDeadlineAndLearnsOfItLater) {
  constexpr int kRanks = 3, kVictim = 1;
  for (const Point point : {Point::kBeforeStart, Point::kBetweenHalves}) {
    Processes processes(kRanks, [&](CommWorld& world, Shared& shared) {
      const bool is_victim = world.rank() == kVictim;
      {
        Group group("world", world.make_transport("world", all_members(kRanks)));
        check_all_to_all(group, 0, [](int, int) { return 50; });
        if (!is_victim) group.transport().set_timeout_us(kDeadlineUs);
        try {
          exchange_with(group, is_victim, point, [&] {
            shared.failed_at_us = now_us();
            raise(SIGSTOP);
          });
          ADD_FAILURE() << "rank " << world.rank() << " went on without rank " << kVictim;
        } catch (const PeerLost& lost) {
          if (!is_victim) {
            EXPECT_EQ(lost.rank(), kVictim) << lost.what();
            EXPECT_LT(now_us() - shared.failed_at_us.load(), kDeadlineUs + kNoticedUs);
          }
        }
      }
      if (!is_victim) go_on_without(world, kVictim);
    });
    processes.expect_all_well(kVictim);
    processes.send(kVictim, SIGCONT);
    EXPECT_EQ(processes.wait(kVictim), 0);
  }
}

TEST(UcxTest, AnAbortEndsTheOthersAtOnceAndNamesTheRankAndItsReason) {
  for (const Point point : {Point::kBeforeStart, Point::kBetweenHalves, Point::kInReceive}) {
    Processes processes(3, [&](CommWorld& world, Shared&) {
      Group group("world", world.make_transport("world", all_members(3)));  // no deadline
      try {
        exchange_with(group, world.rank() == 2, point, [&] { group.transport().abort("out of blocks"); });
        ADD_FAILURE() << "rank " << world.rank() << " went on";
      } catch (const PeerLost& lost) {
        EXPECT_EQ(lost.rank(), 2);
        EXPECT_NE(std::string(lost.what()).find("gave up: out of blocks"), std::string::npos) << lost.what();
      }
      Group again("again", world.make_transport("again", all_members(3)));
      check_collectives(again, 100);
    });
    processes.expect_all_well();
  }
}

TEST(UcxTest, AnotherThreadMayAbort) {
  Processes processes(2, [&](CommWorld& world, Shared&) {
    Group group("world", world.make_transport("world", all_members(2)));
    group.barrier();
    std::thread aborter;
    if (world.rank() == 0) aborter = std::thread([&] { group.transport().abort("shutting down"); });
    EXPECT_THROW(for (;;) group.barrier(), PeerLost);
    if (aborter.joinable()) aborter.join();
  });
  processes.expect_all_well();
}

// Rank 1 of 3 has left; the others notice when they need it. The first to notice ends the group for all, so both have to
// be done with what came before.
void miss_rank_1(CommWorld& world, Group& group) {
  Group others("others", world.make_transport("others", {0, 2}));
  others.barrier();
  EXPECT_EQ(lost_rank([&] { group.barrier(); }), 1);
}

TEST(UcxTest, ARankThatLeavesIsMissedOnlyByThoseWhoStillNeedIt) {
  Processes processes(3, [&](CommWorld& world, Shared&) {
    Group group("world", world.make_transport("world", all_members(3)));
    check_all_to_all(group, 0, [](int, int) { return 300'000; });
    if (world.rank() != 1) miss_rank_1(world, group);
  });
  processes.expect_all_well();
}

TEST(UcxTest, AMemberThatDoesNotComeIsNamedAndTheNextMeetingIsNew) {
  constexpr int kRanks = 3, kLate = 1;
  Processes processes(
      kRanks,
      [&](CommWorld& world, Shared&) {
        if (world.rank() != kLate) {
          EXPECT_EQ(lost_rank([&] { world.make_transport("late", all_members(kRanks)); }), kLate);
        }
        // Rank 1 waits here for the others to give up; they are then not long in coming.
        Group group("done", world.make_transport("done", all_members(kRanks)));
        check_collectives(group, 10);
      },
      [](int rank) { return rank == kLate ? kLongUs : 2'000'000; });
  processes.expect_all_well();
}

TEST(UcxTest, RanksMayBeThreadsOfOneProcessToo) {
  Processes processes(1, [&](CommWorld&, Shared&) {
    constexpr int kRanks = 3;
    StoreServer server({"127.0.0.1", 0});
    // A world is made by its own thread, since making it waits for the others; run_ranks only lends the threads.
    testing::run_ranks(make_inproc_worlds(kRanks), [&](CommWorld& thread) {
      auto world = make_ucx_world(thread.rank(), kRanks, {"127.0.0.1", server.port()}, {.net_devices = "lo"});
      Group group("world", world->make_transport("world", all_members(kRanks)));
      for (const int64_t size : {0, 1, 1025, 200'003}) check_collectives(group, size);
      if (thread.rank() == 1) return;
      miss_rank_1(*world, group);
    });
  });
  processes.expect_all_well();
}

TEST(UcxTest, NoStoreIsAnError) {
  Processes processes(1, [&](CommWorld&, Shared&) {
    EXPECT_THROW(make_ucx_world(0, 2, {"127.0.0.1", 1}, {.connect_timeout_us = 50'000, .net_devices = "lo"}), Error);
  });
  processes.expect_all_well();
}

}  // namespace
}  // namespace cadre
