#include "parallel/layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/rng.h"
#include "tests/testing.h"

namespace cadre {
namespace {

Layout grid(int dp, int cp, int tp, int ep = 1, int dense_tp = 1) {
  const int world = dp * cp * tp;
  return {.world = world, .attn_dp = dp, .attn_cp = cp, .attn_tp = tp, .ep = ep, .moe_tp = world / ep, .dense_tp = dense_tp};
}

// SGLang's compute_dp_attention_world_info, with the context-parallel rank its comment's formula implies.
struct WorldInfo {
  int attn_tp_rank, attn_tp_size, attn_dp_rank, attn_dp_size, attn_cp_rank;
};
WorldInfo sglang_world_info(bool enable_dp_attention, int tp_rank, int tp_size, int dp_size, int attn_cp_size) {
  const int attn_dp_size = enable_dp_attention ? dp_size : 1;
  const int attn_tp_size = tp_size / attn_dp_size / attn_cp_size;
  const int attn_tp_rank = tp_rank % attn_tp_size;
  const int attn_dp_rank = enable_dp_attention ? tp_rank / (attn_tp_size * attn_cp_size) : 0;
  return {attn_tp_rank, attn_tp_size, attn_dp_rank, attn_dp_size, (tp_rank - attn_tp_rank) / attn_tp_size - attn_dp_rank * attn_cp_size};
}

TEST(Layout, CoordinatesFollowSglangsArithmeticForEveryGrid) {
  for (const int tp_size : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64})
    for (int dp = 1; dp <= tp_size; ++dp)
      for (int cp = 1; cp <= tp_size; ++cp) {
        if (tp_size % (dp * cp) != 0) continue;
        const Layout layout = grid(dp, cp, tp_size / dp / cp);
        for (int rank = 0; rank < tp_size; ++rank) {
          const WorldInfo want = sglang_world_info(true, rank, tp_size, dp, cp);
          const RankCoords got = layout.coords(rank);
          SCOPED_TRACE(fmt::format("world {} dp {} cp {} rank {}", tp_size, dp, cp, rank));
          ASSERT_EQ(got.world, rank);
          ASSERT_EQ(got.attn_dp, want.attn_dp_rank);
          ASSERT_EQ(got.attn_cp, want.attn_cp_rank);
          ASSERT_EQ(got.attn_tp, want.attn_tp_rank);
          ASSERT_EQ(layout.attn_tp, want.attn_tp_size);
          ASSERT_EQ((got.attn_dp * cp + got.attn_cp) * layout.attn_tp + got.attn_tp, rank);
        }
      }
}

TEST(Layout, WithoutDataParallelAttentionAllRanksShareTheHeads) {
  const Layout layout = grid(1, 1, 8);
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(layout.coords(rank).attn_tp, sglang_world_info(false, rank, 8, 4, 1).attn_tp_rank);
    EXPECT_EQ(layout.coords(rank).attn_dp, 0);
  }
}

TEST(Layout, DeepseekOnEightRanksIsPureDataParallelAttention) {
  const Layout layout = grid(8, 1, 1, 8);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(layout.coords(rank), (RankCoords{.world = rank, .attn_dp = rank, .ep = rank}));
}

TEST(Layout, TheExpertsSeeVllmsFlattenedWorld) {
  for (const auto [dp, pcp, tp] : {std::array{2, 1, 2}, std::array{1, 2, 2}, std::array{3, 2, 4}, std::array{8, 1, 1}, std::array{1, 1, 4}}) {
    const Layout with_ep = grid(dp, pcp, tp, dp * pcp * tp), without = grid(dp, pcp, tp, 1);
    for (int d = 0; d < dp; ++d)
      for (int p = 0; p < pcp; ++p)
        for (int t = 0; t < tp; ++t) {
          const int flat = (d * pcp + p) * tp + t;
          const RankCoords on = with_ep.coords(flat), off = without.coords(flat);
          EXPECT_EQ(on.attn_dp, d);
          EXPECT_EQ(on.attn_cp, p);
          EXPECT_EQ(on.attn_tp, t);
          EXPECT_EQ(on.ep, flat);      // EP = {size, flat}
          EXPECT_EQ(on.moe_tp, 0);     // TP = {1, 0}
          EXPECT_EQ(off.ep, 0);        // EP = {1, 0}
          EXPECT_EQ(off.moe_tp, flat); // TP = {size, flat}
        }
  }
}

TEST(Layout, ExpertGroupsOfAnyDegreeTileTheWorld) {
  for (const int world : {4, 6, 8, 12})
    for (int ep = 1; ep <= world; ++ep) {
      if (world % ep != 0) continue;
      const Layout layout = grid(world, 1, 1, ep);
      std::set<std::pair<int, int>> seen;
      for (int rank = 0; rank < world; ++rank) {
        const RankCoords c = layout.coords(rank);
        EXPECT_EQ(c.ep * layout.moe_tp + c.moe_tp, rank);
        EXPECT_LT(c.ep, ep);
        seen.insert({c.ep, c.moe_tp});
      }
      EXPECT_EQ(static_cast<int>(seen.size()), world);
    }
}

TEST(Layout, MembersAreTheRanksThatAgreeInAllButOneCoordinate) {
  for (const auto [dp, cp, tp] : {std::array{2, 1, 2}, std::array{2, 2, 2}, std::array{1, 1, 8}, std::array{3, 1, 4}, std::array{4, 2, 1}}) {
    const int world = dp * cp * tp;
    for (const int dense_tp : std::set<int>{1, tp, world}) {
      const Layout layout = grid(dp, cp, tp, world, dense_tp);
      for (int rank = 0; rank < world; ++rank) {
        const RankCoords own = layout.coords(rank);
        std::vector<int> attention, dense;
        for (int other = 0; other < world; ++other) {
          const RankCoords c = layout.coords(other);
          if (c.attn_dp == own.attn_dp && c.attn_cp == own.attn_cp) attention.push_back(other);
          if (other / dense_tp == rank / dense_tp) dense.push_back(other);
        }
        EXPECT_EQ(layout.attn_tp_members(rank), attention);
        EXPECT_EQ(layout.attn_tp_members(rank)[static_cast<size_t>(own.attn_tp)], rank);
        EXPECT_EQ(layout.dense_tp_members(rank), dense);
        EXPECT_EQ(layout.dense_tp_members(rank)[static_cast<size_t>(own.dense_tp)], rank);
        if (dense_tp == tp) { EXPECT_EQ(dense, attention); }
      }
    }
  }
}

TEST(Layout, LeadersComeFirstInTheirDataParallelRank) {
  const Layout layout = grid(3, 2, 2);
  for (int dp = 0; dp < 3; ++dp) {
    const RankCoords c = layout.coords(layout.leader_of(dp));
    EXPECT_EQ(c.attn_dp, dp);
    EXPECT_EQ(c.attn_cp, 0);
    EXPECT_EQ(c.attn_tp, 0);
  }
}

TEST(Layout, EvenSlicesCoverEverythingOnceAndDifferByAtMostOne) {
  for (int64_t total = 0; total <= 70; ++total)
    for (int parts = 1; parts <= 20; ++parts) {
      int64_t next = 0, least = total, most = 0;
      for (int i = 0; i < parts; ++i) {
        const Slice s = even_slice(total, parts, i);
        ASSERT_EQ(s.first, next) << total << " over " << parts;
        next += s.count;
        least = std::min(least, s.count);
        most = std::max(most, s.count);
        if (i > 0) { ASSERT_LE(s.count, even_slice(total, parts, i - 1).count); }  // the first ones get one more
      }
      ASSERT_EQ(next, total);
      ASSERT_LE(most - least, 1);
    }
  EXPECT_EQ(even_slice(256, 3, 0), (Slice{0, 86}));
  EXPECT_EQ(even_slice(256, 3, 2), (Slice{171, 85}));
}

TEST(Layout, KvHeadsAreSplitThenHeldAlikeByNeighbours) {
  EXPECT_EQ(kv_head_slice(8, 2, 1), (Slice{4, 4}));
  EXPECT_EQ(kv_head_slice(4, 4, 3), (Slice{3, 1}));
  for (const auto [heads, parts] : {std::array{2, 8}, std::array{1, 4}, std::array{4, 16}, std::array{3, 6}, std::array{8, 4}, std::array{8, 8}}) {
    std::vector<int> holders(static_cast<size_t>(heads));
    int64_t last = 0;
    for (int i = 0; i < parts; ++i) {
      const Slice s = kv_head_slice(heads, parts, i);
      EXPECT_EQ(s.count, std::max(1, heads / parts));
      EXPECT_GE(s.first, last);
      last = s.first;
      for (int64_t h = s.first; h < s.first + s.count; ++h) ++holders[static_cast<size_t>(h)];
    }
    for (const int n : holders) EXPECT_EQ(n, std::max(1, parts / heads));
    // A rank's query heads use exactly the KV heads it holds (grouped queries: query head q reads q * heads / num_heads).
    const int64_t num_heads = 2 * std::max(heads, parts);
    for (int i = 0; i < parts; ++i) {
      const Slice q = even_slice(num_heads, parts, i), kv = kv_head_slice(heads, parts, i);
      for (int64_t h = q.first; h < q.first + q.count; ++h) {
        EXPECT_GE(h * heads / num_heads, kv.first);
        EXPECT_LT(h * heads / num_heads, kv.first + kv.count);
      }
    }
  }
}

TEST(Layout, ScatteredRowsAddUpToEachDataParallelRanksRows) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int round = 0; round < 200; ++round) {
    const Layout layout = grid(1 + static_cast<int>(rng.below(5)), 1, 1 + static_cast<int>(rng.below(5)));
    std::vector<int64_t> dp_rows(static_cast<size_t>(layout.attn_dp)), world_rows(static_cast<size_t>(layout.world), -1);
    for (auto& r : dp_rows) r = rng.below(3) == 0 ? 0 : rng.below(100);
    scattered_rows(layout, dp_rows, world_rows);
    EXPECT_EQ(std::accumulate(dp_rows.begin(), dp_rows.end(), int64_t{0}), std::accumulate(world_rows.begin(), world_rows.end(), int64_t{0}));
    for (int rank = 0; rank < layout.world; ++rank) {
      const RankCoords c = layout.coords(rank);
      EXPECT_EQ(world_rows[static_cast<size_t>(rank)], even_slice(dp_rows[static_cast<size_t>(c.attn_dp)], layout.attn_tp, c.attn_tp).count);
    }
  }
}

TEST(Layout, EveryExchangeHasAName) {
  EXPECT_EQ(exchange_name(ExchangeKind::kNone), "none");
  EXPECT_EQ(exchange_name(ExchangeKind::kAllGatherReduceScatter), "allgather_reducescatter");
  EXPECT_EQ(exchange_name(ExchangeKind::kAllToAll), "alltoall");
  EXPECT_EQ(exchange_name(ExchangeKind::kAllToAllLowLatency), "alltoall_low_latency");
  EXPECT_EQ(exchange_name(ExchangeKind::kAuto), "auto");
}

}  // namespace
}  // namespace cadre
