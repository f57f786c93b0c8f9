// One rank of tests/netns/two_hosts.py: the collectives, then exchanges until the network between the hosts is cut,
// then the collectives again among the ranks of its own host. Which rank it is stands in CADRE_RANK and its like; ranks
// of a host are consecutive, two each.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/clock.h"
#include "comm/launch_env.h"
#include "comm/test_ranks.h"
#include "comm/ucx/ucx_world.h"

namespace cadre {
namespace {

constexpr int64_t kDeadlineUs = 1'500'000;

void say(const char* what) {
  puts(what);
  fflush(stdout);
}

void run(const LaunchEnv& launch) {
  std::unique_ptr<StoreServer> server;
  if (launch.rank == 0) server = std::make_unique<StoreServer>(*launch.store);
  auto world = make_ucx_world(launch.rank, launch.size, *launch.store, {.connect_timeout_us = 20'000'000});
  Group all("world", world->make_transport("world", testing::all_members(launch.size)));
  for (const int64_t size : {0, 1, 1025, 200'003}) testing::check_collectives(all, size);
  // Ranks of the other host only: every part crosses the network.
  const int host = launch.rank / 2;
  Group across("across", world->make_transport("across", {launch.rank % 2, launch.rank % 2 + 2}));
  testing::check_collectives(across, 3'000'000);
  all.barrier();
  server.reset();
  say("ready");
  all.transport().set_timeout_us(kDeadlineUs);
  int64_t last_us = SteadyClock().now_us();
  try {
    for (;;) {
      testing::check_all_to_all(all, 0, [](int, int) { return 5000; });
      last_us = SteadyClock().now_us();
    }
  } catch (const PeerLost& lost) {
    EXPECT_NE(lost.rank() / 2, host) << lost.what();
    EXPECT_LT(SteadyClock().now_us() - last_us, kDeadlineUs + 1'000'000) << lost.what();
  }
  Group rest("world", world->make_transport("world", {2 * host, 2 * host + 1}));
  for (const int64_t size : {0, 1, 200'003}) testing::check_collectives(rest, size);
  say("done");
}

}  // namespace
}  // namespace cadre

int main() {
  try {
    const auto launch = cadre::read_launch_env(cadre::process_environment());
    if (!launch || launch->size != 4 || !launch->store)
      throw std::runtime_error("expected CADRE_RANK, CADRE_WORLD_SIZE=4 and CADRE_STORE");
    cadre::run(*launch);
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return testing::Test::HasFailure() ? 1 : 0;
}
