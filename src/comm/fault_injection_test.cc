#include "comm/fault_injection.h"

#include <gtest/gtest.h>

#include <latch>

#include "comm/inproc/inproc_world.h"
#include "comm/test_ranks.h"

namespace cadre {
namespace {

using testing::all_members;
using testing::check_all_to_all;
using testing::run_ranks;

constexpr int kRanks = 3, kVictim = 1;

std::vector<std::unique_ptr<CommWorld>> worlds_with(std::vector<Fault> faults) {
  auto worlds = make_inproc_worlds(kRanks);
  worlds[kVictim] = inject_faults(std::move(worlds[kVictim]), std::move(faults));
  return worlds;
}

void exchange(Group& group, int round) {
  check_all_to_all(group, round, [](int from, int to) { return 40 + from + to; });
}

TEST(FaultInjectionTest, ADropEndsThePeersAtTheSameCall) {
  for (const Fault::At at : {Fault::At::kStart, Fault::At::kFinish})
    for (const int64_t call : {0, 3}) {
      run_ranks(worlds_with({{.at = at, .call = call, .kind = Fault::Kind::kDrop, .group = "world"}}),
                [&](CommWorld& world) {
                  Group other("other", world.make_transport("other", all_members(kRanks)));
                  Group group("world", world.make_transport("world", all_members(kRanks)));
                  int64_t num_ended = 0;
                  try {
                    for (;; ++num_ended) {
                      exchange(other, 0);  // its calls do not count
                      exchange(group, static_cast<int>(num_ended));
                    }
                  } catch (const InjectedDrop&) {
                    EXPECT_EQ(world.rank(), kVictim);
                    EXPECT_EQ(num_ended, call);
                  } catch (const PeerLost& lost) {
                    EXPECT_NE(world.rank(), kVictim);
                    EXPECT_EQ(lost.group(), "world");
                    EXPECT_EQ(lost.rank(), kVictim);
                    EXPECT_EQ(num_ended, call);
                  }
                });
    }
}

TEST(FaultInjectionTest, ADelayRunsItsHookAndHarmsNothing) {
  std::latch others_have_started(kRanks - 1);
  run_ranks(worlds_with({{.call = 2, .kind = Fault::Kind::kDelay, .hook = [&] { others_have_started.wait(); }}}),
            [&](CommWorld& world) {
              Group group("world", world.make_transport("world", all_members(kRanks)));
              exchange(group, 0);
              exchange(group, 1);
              check_all_to_all(
                  group, 2, [](int, int) { return 9; },
                  [&] {
                    if (world.rank() != kVictim) others_have_started.count_down();
                  });
              EXPECT_TRUE(others_have_started.try_wait());
              exchange(group, 3);
            });
}

TEST(FaultInjectionTest, AFreezeLastsUntilItsGateOpens) {
  for (const Fault::At at : {Fault::At::kStart, Fault::At::kFinish}) {
    auto gate = std::make_shared<FaultGate>();
    std::latch others_have_thrown(kRanks - 1);
    run_ranks(worlds_with({{.at = at, .call = 1, .kind = Fault::Kind::kFreeze, .gate = gate}}), [&](CommWorld& world) {
      Group group("world", world.make_transport("world", all_members(kRanks)));
      exchange(group, 0);
      if (world.rank() != kVictim) group.transport().set_timeout_us(200'000);
      try {
        exchange(group, 1);
        ADD_FAILURE();
      } catch (const PeerLost& lost) {
        EXPECT_EQ(lost.rank(), kVictim);
      }
      if (world.rank() == kVictim) return;
      others_have_thrown.count_down();
      others_have_thrown.wait();
      gate->open();
    });
  }
}

TEST(FaultInjectionTest, AnAbortOfTheFrozenTransportEndsTheFreeze) {
  auto gate = std::make_shared<FaultGate>();
  std::latch is_made(2), is_aborted(2);
  Transport* frozen = nullptr;
  run_ranks(worlds_with({{.kind = Fault::Kind::kFreeze, .gate = gate}}), [&](CommWorld& world) {
    Group group("world", world.make_transport("world", all_members(kRanks)));
    if (world.rank() == kVictim) frozen = &group.transport();
    if (world.rank() < 2) is_made.arrive_and_wait();
    if (world.rank() == 0) frozen->abort("told to stop");
    EXPECT_THROW(exchange(group, 0), PeerLost);
    // Rank 0 used the transport of the victim, which therefore stays until it is done.
    if (world.rank() < 2) is_aborted.arrive_and_wait();
  });
}

}  // namespace
}  // namespace cadre
