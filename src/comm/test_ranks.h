// For tests of transports: ranks as threads, and what each collective must give, for any transport.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "comm/group.h"

namespace cadre::testing {

// Runs body(world) on one thread per world; rethrows what the first rank threw.
template <typename Body>
void run_ranks(std::vector<std::unique_ptr<CommWorld>> worlds, Body body) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(worlds.size());
  for (size_t r = 0; r < worlds.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        body(*worlds[r]);
      } catch (...) {
        errors[r] = std::current_exception();
      }
      worlds[r].reset();
    });
  for (auto& t : threads) t.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
}

inline std::vector<int> all_members(int size) {
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// The byte at position i of what rank `from` sends to rank `to` in exchange `round`: both ends can compute it.
inline std::byte pattern(int from, int to, int round, int64_t i) {
  return static_cast<std::byte>(
      (static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(from * 131 + to * 31 + round * 7)) >>
      24);
}
inline void fill(std::vector<std::byte>& data, int from, int to, int round) {
  for (size_t i = 0; i < data.size(); ++i) data[i] = pattern(from, to, round, static_cast<int64_t>(i));
}
inline bool holds(std::span<const std::byte> data, int from, int to, int round) {
  for (size_t i = 0; i < data.size(); ++i)
    if (data[i] != pattern(from, to, round, static_cast<int64_t>(i))) return false;
  return true;
}

// An all-to-all with bytes(from, to) bytes each way, `into` given for every second source; work() runs between its
// halves.
template <typename Bytes>
void check_all_to_all(
    Group& group, int round, Bytes bytes, const std::function<void()>& work = [] {}) {
  const int n = group.size(), me = group.rank();
  std::vector<std::vector<std::byte>> out(static_cast<size_t>(n)), in(static_cast<size_t>(n));
  std::vector<SendPart> send;
  std::vector<RecvPart> recv;
  for (int p = 0; p < n; ++p) {
    auto& o = out[static_cast<size_t>(p)];
    auto& i = in[static_cast<size_t>(p)];
    o.resize(static_cast<size_t>(bytes(me, p)));
    fill(o, me, p, round);
    send.push_back({o.data(), static_cast<int64_t>(o.size())});
    i.resize(static_cast<size_t>(bytes(p, me)));
    recv.push_back({(p + round) % 2 ? i.data() : nullptr, static_cast<int64_t>(i.size())});
  }
  OpenExchange exchange(group, {}, send, recv);
  work();
  int next = 0;
  exchange.finish([&](int source, std::span<const std::byte> data) {
    EXPECT_EQ(source, next++);
    EXPECT_EQ(static_cast<int64_t>(data.size()), bytes(source, me));
    EXPECT_TRUE(holds(data, source, me, round)) << "from " << source << " to " << me << " in round " << round;
    const RecvPart& want = recv[static_cast<size_t>(source)];
    if (want.into && want.bytes > 0) {
      EXPECT_EQ(data.data(), want.into);
    }
  });
  EXPECT_EQ(next, n);
  for (int p = 0; p < n; ++p) {
    if (!recv[static_cast<size_t>(p)].into) continue;
    EXPECT_TRUE(holds(in[static_cast<size_t>(p)], p, me, round));
  }
}

// Values whose sum depends on the order of adding.
inline float term(int rank, int64_t i) {
  return static_cast<float>(random_u32(7, static_cast<uint64_t>(rank), static_cast<uint64_t>(i)) >> 8) * 1e-3f;
}
inline float sum_in_rank_order(int num_ranks, int64_t i) {
  float sum = term(0, i);
  for (int r = 1; r < num_ranks; ++r) sum += term(r, i);
  return sum;
}

inline void check_sums(Group& group, int64_t count) {
  const int n = group.size(), me = group.rank();
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = term(me, i);
  group.all_reduce({}, values.data(), count);
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], sum_in_rank_order(n, i));
  // Uneven parts, the last rank's first: count, count + 1, ...; the result lies in the input's own part.
  std::vector<int64_t> counts;
  int64_t total = 0, mine_at = 0;
  for (int r = 0; r < n; ++r) {
    if (r == me) mine_at = total;
    counts.push_back(r % 3 == 2 ? 0 : count + r);
    total += counts.back();
  }
  std::vector<float> in(static_cast<size_t>(total));
  for (int64_t i = 0; i < total; ++i) in[static_cast<size_t>(i)] = term(me, i);
  group.reduce_scatter({}, in.data(), counts, in.data() + mine_at);
  for (int64_t i = 0; i < counts[static_cast<size_t>(me)]; ++i)
    ASSERT_EQ(in[static_cast<size_t>(mine_at + i)], sum_in_rank_order(n, mine_at + i));
}

inline void check_gather_and_broadcast(Group& group, int64_t bytes) {
  const int n = group.size(), me = group.rank();
  const auto size_of = [&](int r) { return static_cast<size_t>(r % 4 == 3 ? 0 : bytes + r); };
  std::vector<std::byte> mine(size_of(me));
  fill(mine, me, -1, 0);
  std::vector<std::vector<std::byte>> parts(static_cast<size_t>(n));
  std::vector<RecvPart> recv;
  for (int s = 0; s < n; ++s) {
    parts[static_cast<size_t>(s)].resize(size_of(s));
    recv.push_back({parts[static_cast<size_t>(s)].data(), static_cast<int64_t>(size_of(s))});
  }
  group.all_gather({}, {mine.data(), static_cast<int64_t>(mine.size())}, recv);
  for (int s = 0; s < n; ++s) ASSERT_TRUE(holds(parts[static_cast<size_t>(s)], s, -1, 0));
  std::vector<int64_t> values(static_cast<size_t>(n));
  group.all_gather_value<int64_t>({}, 1000 + me, values);
  for (int s = 0; s < n; ++s) ASSERT_EQ(values[static_cast<size_t>(s)], 1000 + s);
  for (int root = 0; root < n; ++root) {
    std::vector<std::byte> data(static_cast<size_t>(bytes));
    if (me == root) fill(data, root, -2, root);
    group.broadcast({}, root, data);
    ASSERT_TRUE(holds(data, root, -2, root));
  }
}

// Every collective at this size.
inline void check_collectives(Group& group, int64_t size) {
  group.barrier();
  check_gather_and_broadcast(group, size);
  check_sums(group, size);
  check_all_to_all(group, 0, [&](int from, int to) { return (from + to) % 3 == 0 ? 0 : size + from * 3 + to; });
  group.barrier();
}

}  // namespace cadre::testing
