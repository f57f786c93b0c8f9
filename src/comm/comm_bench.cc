// Time per collective over threads (inproc) and over processes on this host (ucx), beside a plain copy. Prints the
// table of docs/transports.md.
//   comm_bench [inproc|ucx|neighbour] [ranks...]
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "comm/group.h"
#include "comm/inproc/inproc_world.h"
#include "comm/ucx/ucx_world.h"

namespace cadre {
namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Median time of once(); the same number of runs on every rank.
double median_us(int num_runs, const std::function<void()>& once) {
  std::vector<double> times;
  for (int i = 0; i < num_runs + num_runs / 4; ++i) {
    const double start = now_us();
    once();
    if (i >= num_runs / 4) times.push_back(now_us() - start);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

// Buffers for parts of `bytes` bytes from and to every rank.
struct Parts {
  Parts(int num_ranks, int64_t bytes)
      : out(static_cast<size_t>(num_ranks * bytes)),
        in(out.size()),
        counts(static_cast<size_t>(num_ranks), bytes / 4),
        sums(static_cast<size_t>(num_ranks * bytes / 4)) {
    for (int r = 0; r < num_ranks; ++r) {
      send.push_back({out.data() + r * bytes, bytes});
      recv.push_back({in.data() + r * bytes, bytes});
    }
  }
  std::vector<std::byte> out, in;
  std::vector<SendPart> send;
  std::vector<RecvPart> recv;
  std::vector<int64_t> counts;
  std::vector<float> sums;
};

struct Collective {
  const char* name;
  std::function<void(Group&, Parts&, int64_t bytes)> run;
};
const Collective kCollectives[] = {
    {"all_to_all", [](Group& g, Parts& p, int64_t) { g.all_to_all({}, p.send, p.recv); }},
    {"all_gather", [](Group& g, Parts& p, int64_t) { g.all_gather({}, p.send[0], p.recv); }},
    {"reduce_scatter",
     [](Group& g, Parts& p, int64_t) { g.reduce_scatter({}, p.sums.data(), p.counts, p.sums.data()); }},
    {"all_reduce", [](Group& g, Parts& p, int64_t bytes) { g.all_reduce({}, p.sums.data(), bytes / 4); }},
    {"broadcast",
     [](Group& g, Parts& p, int64_t bytes) {
       g.broadcast({}, 0, {p.in.data(), static_cast<size_t>(bytes)});
     }},
};

void measure(CommWorld& world, const char* transport) {
  std::vector<int> members(static_cast<size_t>(world.size()));
  std::iota(members.begin(), members.end(), 0);
  Group group("bench", world.make_transport("bench", members));
  const auto print = [&](const std::string& line) {
    if (world.rank() != 0) return;
    fmt::print("{}\n", line);
    fflush(stdout);
  };
  const double barrier_us = median_us(4000, [&] { group.barrier(); });
  print(fmt::format("| {} | {} | barrier | {:.1f} us | | |", transport, world.size(), barrier_us));
  for (const Collective& c : kCollectives) {
    double us[3] = {};
    const int64_t sizes[3] = {4 << 10, 64 << 10, 16 << 20};
    const int runs[3] = {4000, 1000, 8};
    for (int i = 0; i < 3; ++i) {
      Parts parts(world.size(), sizes[i]);
      group.barrier();
      us[i] = median_us(runs[i], [&] { c.run(group, parts, sizes[i]); });
    }
    const bool is_broadcast = std::string_view(c.name) == "broadcast";
    const double received = 16.777216e6 * (is_broadcast ? 1 : world.size() - 1);
    print(fmt::format("| {} | {} | {} | {:.1f} us | {:.1f} us | {:.2f} GB/s |", transport, world.size(), c.name, us[0],
                      us[1], received / us[2] * 1e-3));
  }
}

void measure_inproc(int num_ranks) {
  auto worlds = make_inproc_worlds(num_ranks);
  std::vector<std::thread> threads;
  for (auto& world : worlds) threads.emplace_back([&world] { measure(*world, "inproc"); });
  for (auto& t : threads) t.join();
}

// One process per rank, forked before this one has threads.
void measure_ucx(int num_ranks) {
  int ports[2];
  if (pipe2(ports, O_CLOEXEC) != 0) return;
  std::vector<pid_t> pids;
  for (int r = 0; r < num_ranks; ++r) {
    const pid_t pid = fork();
    if (pid != 0) {
      pids.push_back(pid);
      continue;
    }
    int code = 1;
    try {
      std::unique_ptr<StoreServer> server;
      int port = 0;
      bool is_told = true;
      if (r == 0) {
        server = std::make_unique<StoreServer>(StoreAddress{"127.0.0.1", 0});
        port = server->port();
        for (int i = 1; i < num_ranks; ++i) is_told &= write(ports[1], &port, sizeof port) == sizeof port;
      } else {
        is_told = read(ports[0], &port, sizeof port) == sizeof port;
      }
      if (is_told) {
        auto world = make_ucx_world(r, num_ranks, {"127.0.0.1", port}, {.net_devices = "lo"});
        measure(*world, "ucx");
        code = 0;
      }
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", r, error.what());
    }
    fflush(stdout);
    _exit(code);
  }
  close(ports[0]);
  close(ports[1]);
  for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
}

// Steps of so much arithmetic and an exchange of 4 KiB, alone and beside a thread that never sleeps. The scheduler's
// fair share of two processors for two ranks is then two thirds.
void measure_neighbour(int num_ranks, int step_us) {
  double steps_per_s[2] = {};
  for (const bool is_busy : {false, true}) {
    std::atomic<bool> is_over{false};
    std::thread neighbour;
    if (is_busy)
      neighbour = std::thread([&] {
        while (!is_over) {
        }
      });
    auto worlds = make_inproc_worlds(num_ranks);
    std::vector<std::thread> threads;
    for (auto& world : worlds)
      threads.emplace_back([&] {
        std::vector<int> members(static_cast<size_t>(num_ranks));
        std::iota(members.begin(), members.end(), 0);
        Group group("bench", world->make_transport("bench", members));
        Parts parts(num_ranks, 4 << 10);
        const int num_steps = 1'000'000 / step_us;
        volatile float sink = 0;
        const double start = now_us();
        for (int step = 0; step < num_steps; ++step) {
          float sum = 0;
          for (int i = 0; i < 1000 * step_us; ++i) sum += static_cast<float>(i) * 0.5f;
          sink = sum;
          group.all_to_all({}, parts.send, parts.recv);
        }
        if (world->rank() == 0) steps_per_s[is_busy] = num_steps / (now_us() - start) * 1e6;
        (void)sink;
      });
    for (auto& t : threads) t.join();
    is_over = true;
    if (neighbour.joinable()) neighbour.join();
  }
  fmt::print("{} ranks (inproc), {} us of arithmetic a step: {:.0f} steps/s alone, {:.0f} beside a busy thread: {:.0f} %\n", num_ranks,
             step_us, steps_per_s[0], steps_per_s[1], 100 * steps_per_s[1] / steps_per_s[0]);
}

void measure_copy() {
  std::vector<std::byte> from(16 << 20, std::byte{1}), to(16 << 20);
  double us[3];
  const size_t sizes[3] = {4 << 10, 64 << 10, 16 << 20};
  for (int i = 0; i < 3; ++i)
    us[i] = median_us(i == 2 ? 20 : 2000, [&] { std::memcpy(to.data(), from.data(), sizes[i]); });
  fmt::print("| memcpy | 1 | | {:.1f} us | {:.1f} us | {:.2f} GB/s |\n", us[0], us[1],
             static_cast<double>(sizes[2]) / us[2] * 1e-3);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  const std::string which = argc > 1 ? argv[1] : "";
  std::vector<int> ranks;
  for (int i = 2; i < argc; ++i) ranks.push_back(std::atoi(argv[i]));
  if (ranks.empty()) ranks = {2, 4};
  if (which == "neighbour") {
    for (const int n : ranks)
      for (const int step_us : {100, 1000, 10'000}) cadre::measure_neighbour(n, step_us);
    return 0;
  }
  fmt::print("| transport | ranks | collective | 4 KiB | 64 KiB | 16 MiB |\n|---|---|---|---|---|---|\n");
  cadre::measure_copy();
  fflush(stdout);
  if (which != "inproc")
    for (const int n : ranks) cadre::measure_ucx(n);
  if (which != "ucx")
    for (const int n : ranks) cadre::measure_inproc(n);
}
