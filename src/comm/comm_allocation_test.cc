// Exchanges between threads do not allocate once warm: counted by replacing operator new in this test program.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "comm/inproc/inproc_world.h"
#include "comm/test_ranks.h"

namespace {

thread_local int64_t t_num_allocations = 0;

}  // namespace

// Not inlined: the compiler would take malloc and free for a mismatched pair.
__attribute__((noinline)) void* operator new(size_t size) {
  ++t_num_allocations;
  if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace cadre {
namespace {

TEST(CommAllocation, ExchangesBetweenThreadsDoNotAllocate) {
  testing::run_ranks(make_inproc_worlds(3), [](CommWorld& world) {
    TrafficCounters counters(2);
    Group group("world", world.make_transport("world", testing::all_members(3)), &counters);
    group.transport().set_timeout_us(60'000'000);
    std::vector<std::byte> out(3000), in(9000);
    std::vector<float> values(300);
    const std::vector<int64_t> counts = {100, 150, 50};
    std::vector<int64_t> gathered(3);
    const std::vector<SendPart> send(3, {out.data(), 3000});
    std::vector<RecvPart> recv;
    for (int s = 0; s < 3; ++s) recv.push_back({s == 1 ? nullptr : in.data() + 3000 * s, 3000});
    int64_t before = 0;
    for (int round = 0; round < 50; ++round) {
      if (round == 1) before = t_num_allocations;
      group.all_to_all({Traffic::kDispatch, 1}, send, recv);
      group.reduce_scatter({}, values.data(), counts, values.data());
      group.all_reduce({}, values.data(), 300);
      group.all_gather_value<int64_t>({}, round, gathered);
      group.broadcast({}, 1, in);
      group.barrier();
    }
    EXPECT_EQ(t_num_allocations, before);
  });
}

}  // namespace
}  // namespace cadre
