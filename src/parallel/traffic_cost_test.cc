#include "parallel/traffic_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "config/test_configs.h"
#include "tests/testing.h"

namespace cadre {
namespace {

// DeepSeek-V3's routing and hidden size; layer 0 is dense, the others sparse.
ModelConfig deepseek() {
  return parse_model_config(testing::small_config_with(
      "deepseek_v3", R"({"hidden_size": 7168, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4})"));
}

Layout wide(int world, int ep, ExchangeKind exchange, CombineOrder combine = CombineOrder::kExact) {
  return {.world = world, .attn_dp = world, .ep = ep, .moe_tp = world / ep, .exchange = exchange, .combine = combine};
}

TrafficCount of(const TrafficCounts& counts, Traffic traffic) { return counts[static_cast<size_t>(traffic)]; }

int64_t total_bytes(const TrafficCounts& counts) {
  int64_t sum = 0;
  for (const TrafficCount& c : counts) sum += c.bytes_sent;
  return sum;
}

TrafficCounts sparse_traffic(const ModelConfig& config, const Layout& layout, const LayerTrafficInput& input) {
  return predict_layer_traffic(config, layout, plan_layers(config, layout).back(), input);
}

// top_k distinct experts a row, every set as likely.
std::vector<int32_t> uniform_routing(Rng& rng, int64_t rows, int64_t num_experts, int64_t top_k) {
  std::vector<int32_t> ids, all(static_cast<size_t>(num_experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < top_k; ++j) {
      std::swap(all[static_cast<size_t>(j)], all[static_cast<size_t>(j) + rng.below(static_cast<uint32_t>(num_experts - j))]);
      ids.push_back(all[static_cast<size_t>(j)]);
    }
  return ids;
}

TEST(TrafficCost, TheBoundaryOfTensorParallelExpertsCostsTheSeedsFigure) {
  // 2 * (N - 1) / N * T_g * d * b: 25.7 MB for N = 8, T_g = 1024, d = 7168 in bfloat16; twice that in float32.
  const int64_t seed_bytes = 2 * 7 * 1024 / 8 * 7168 * 2;
  EXPECT_EQ(seed_bytes, 25'690'112);
  const std::vector<int64_t> rows(8, 128);
  for (int rank = 0; rank < 8; ++rank) {
    const TrafficCounts counts = sparse_traffic(deepseek(), wide(8, 1, ExchangeKind::kNone), {.dp_rows = rows, .world_rank = rank});
    EXPECT_EQ(total_bytes(counts), seed_bytes / 2 * kActivationBytes);
    EXPECT_EQ(of(counts, Traffic::kMoeGather), (TrafficCount{1, seed_bytes / 4 * kActivationBytes}));
    EXPECT_EQ(of(counts, Traffic::kMoeReduce), (TrafficCount{1, seed_bytes / 4 * kActivationBytes}));
  }
}

TEST(TrafficCost, AUniformTokenReachesTheSeedsExpectedRanks) {
  const ExpectedDispatch expected = expected_dispatch(wide(8, 8, ExchangeKind::kAllToAll), 256, 8);
  EXPECT_NEAR(expected.ranks_hit, 5.29, 0.005);
  EXPECT_NEAR(expected.rows_to_others, 4.63282, 0.000005);
  EXPECT_NEAR(expected.pairs_to_others, 8 * 7.0 / 8, 1e-12);
  // 128 rows: 4.38 MB in fp8 out, 8.50 MB in bfloat16 back.
  EXPECT_NEAR(128 * expected.rows_to_others * static_cast<double>(row_bytes(7168, true)), 4.38e6, 0.005e6);
  EXPECT_NEAR(128 * expected.rows_to_others * 7168 * 2, 8.50e6, 0.005e6);
}

TEST(TrafficCost, CountedDispatchMeetsTheExpectationForAnyLayout) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  Rng rng(seed);
  constexpr int64_t kRows = 3000;
  for (const auto& [world, ep, experts, top_k] : {std::array<int, 4>{8, 8, 256, 8}, {3, 3, 256, 8}, {8, 4, 60, 4}, {4, 2, 16, 4}, {6, 3, 8, 2}, {4, 1, 16, 4}, {16, 16, 16, 2}}) {
    for (const PlacementStrategy strategy : {PlacementStrategy::kLinear, PlacementStrategy::kRoundRobin}) {
      const Layout layout = wide(world, ep, ExchangeKind::kAllToAll);
      const auto placement = ExpertPlacement::initial(experts, ep, strategy);
      DispatchRows sum;
      for (int rank = 0; rank < world; ++rank) sum += count_dispatch(layout, placement, rank, uniform_routing(rng, kRows, experts, top_k), top_k);
      const ExpectedDispatch want = expected_dispatch(layout, experts, top_k);
      // A row's count lies between 0 and min(top_k, ep) * moe_tp: six standard errors of the mean at the widest spread.
      const double n = static_cast<double>(kRows * world), spread = std::min(top_k, ep) * layout.moe_tp / 2.0;
      EXPECT_NEAR(static_cast<double>(sum.rows_to_others) / n, want.rows_to_others, 6 * spread / std::sqrt(n)) << world << " " << ep;
      EXPECT_NEAR(static_cast<double>(sum.pairs_to_others) / n, want.pairs_to_others, 6 * top_k * layout.moe_tp / 2.0 / std::sqrt(n)) << world << " " << ep;
    }
  }
}

TEST(TrafficCost, DispatchCountsByHand) {
  // 8 experts on 4 ranks, two each. Row 0: experts 0, 1, 6 (ranks 0, 0, 3). Row 1: 2, 3, 4 (ranks 1, 1, 2).
  const std::vector<int32_t> ids{0, 1, 6, 2, 3, 4};
  const auto linear = ExpertPlacement::initial(8, 4, PlacementStrategy::kLinear);
  const auto count = [&](const Layout& layout, const ExpertPlacement& placement, int rank) {
    const DispatchRows d = count_dispatch(layout, placement, rank, ids, 3);
    return std::pair(d.rows_to_others, d.pairs_to_others);
  };
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(count(wide(4, 4, ExchangeKind::kAllToAll), linear, 0), (Pair{3, 4}));
  EXPECT_EQ(count(wide(4, 4, ExchangeKind::kAllToAll), linear, 1), (Pair{3, 4}));
  EXPECT_EQ(count(wide(4, 4, ExchangeKind::kAllToAll), linear, 3), (Pair{3, 5}));
  // Each EP rank is two ranks of the world: the own group has one other.
  EXPECT_EQ(count(wide(8, 4, ExchangeKind::kAllToAll), linear, 1), (Pair{1 + 2 + 2 + 2, 2 + 2 + 4 + 2}));
  // Round robin over 2: row 0 is on both (0, 6 | 1), row 1 too (2, 4 | 3).
  EXPECT_EQ(count(wide(2, 2, ExchangeKind::kAllToAll), ExpertPlacement::initial(8, 2, PlacementStrategy::kRoundRobin), 0), (Pair{2, 2}));
}

TEST(TrafficCost, AllToAllByHand) {
  const ModelConfig config = deepseek();
  const std::vector<int64_t> rows{300, 5, 0, 10};
  const LayerTrafficInput input{.dp_rows = rows, .world_rank = 1, .out = {12, 30}, .in = {7, 9}};
  const int64_t row = 7168 * 4;
  // 300 rows at the longest: two chunks of 256, so two headers to each of three others.
  const TrafficCounts exact = sparse_traffic(config, wide(4, 4, ExchangeKind::kAllToAll), input);
  EXPECT_EQ(of(exact, Traffic::kDispatch), (TrafficCount{2, 2 * 3 * 8 + 12 * (row + 4) + 30 * 4}));
  EXPECT_EQ(of(exact, Traffic::kCombine), (TrafficCount{2, 9 * row}));
  EXPECT_EQ(total_bytes(exact), of(exact, Traffic::kDispatch).bytes_sent + of(exact, Traffic::kCombine).bytes_sent);
  const TrafficCounts per_rank = sparse_traffic(config, wide(4, 4, ExchangeKind::kAllToAll, CombineOrder::kPerRank), input);
  EXPECT_EQ(of(per_rank, Traffic::kDispatch), (TrafficCount{2, 2 * 3 * 8 + 12 * (row + 4) + 30 * (4 + 4)}));
  EXPECT_EQ(of(per_rank, Traffic::kCombine), (TrafficCount{2, 7 * row}));
  LayerTrafficInput fp8 = input;
  fp8.is_fp8_dispatch = true;
  EXPECT_EQ(of(sparse_traffic(config, wide(4, 4, ExchangeKind::kAllToAll), fp8), Traffic::kDispatch), (TrafficCount{2, 2 * 3 * 8 + 12 * (7392 + 4) + 30 * 4}));
  // Low latency on four ranks: five chunks of 64, a 4-byte count per slot (64 a rank) in each message.
  const TrafficCounts slots = sparse_traffic(config, wide(4, 4, ExchangeKind::kAllToAllLowLatency), input);
  EXPECT_EQ(of(slots, Traffic::kDispatch), (TrafficCount{5, 5 * 3 * 64 * 4 + 30 * row}));
  EXPECT_EQ(of(slots, Traffic::kCombine), (TrafficCount{5, 9 * row}));
}

TEST(TrafficCost, AllGatherExchangeByHand) {
  const ModelConfig config = deepseek();
  const std::vector<int64_t> rows{10, 5, 0, 9};  // sum 24, longest 10: padding costs 40 <= 48
  const LayerTrafficInput input{.dp_rows = rows, .world_rank = 1, .in = {7, 9}};
  const int64_t row = 7168 * 4;
  const TrafficCounts exact = sparse_traffic(config, wide(4, 4, ExchangeKind::kAllGatherReduceScatter), input);
  EXPECT_EQ(of(exact, Traffic::kMoeGather), (TrafficCount{1, 10 * 3 * row}));
  EXPECT_EQ(of(exact, Traffic::kDispatchCounts), (TrafficCount{1, 5 * 8 * (4 + 4) * 3}));
  EXPECT_EQ(of(exact, Traffic::kCombine), (TrafficCount{1, 9 * row}));
  EXPECT_EQ(of(exact, Traffic::kMoeReduce), TrafficCount{});
  const TrafficCounts summed = sparse_traffic(config, wide(4, 4, ExchangeKind::kAllGatherReduceScatter, CombineOrder::kPerRank), input);
  EXPECT_EQ(of(summed, Traffic::kMoeReduce), (TrafficCount{1, 10 * 3 * row}));
  EXPECT_EQ(of(summed, Traffic::kCombine), TrafficCount{});
}

TEST(TrafficCost, UnevenRanksSendExactRows) {
  const std::vector<int64_t> rows{1024, 0, 0, 0, 0, 0, 0, 0};
  const Layout layout = wide(8, 1, ExchangeKind::kNone);
  const int64_t row = 7168 * 4;
  const TrafficCounts busy = sparse_traffic(deepseek(), layout, {.dp_rows = rows, .world_rank = 0});
  const TrafficCounts idle = sparse_traffic(deepseek(), layout, {.dp_rows = rows, .world_rank = 5});
  EXPECT_EQ(of(busy, Traffic::kMoeGather).bytes_sent, 1024 * 7 * row);
  EXPECT_EQ(of(busy, Traffic::kMoeReduce).bytes_sent, 0);
  EXPECT_EQ(of(idle, Traffic::kMoeGather).bytes_sent, 0);
  EXPECT_EQ(of(idle, Traffic::kMoeReduce).bytes_sent, 1024 * row);
}

TEST(TrafficCost, SplitHeadsMoveRowsWithinTheirGroup) {
  const ModelConfig config = parse_model_config(testing::small_config_with("olmoe", "{}"));
  const Layout layout{.world = 4, .attn_dp = 2, .attn_tp = 2, .ep = 4, .dense_tp = 2, .exchange = ExchangeKind::kAllToAll};
  const std::vector<int64_t> rows{7, 100};
  const TrafficCounts counts = predict_layer_traffic(config, layout, plan_layers(config, layout)[0], {.dp_rows = rows, .world_rank = 1});
  EXPECT_EQ(of(counts, Traffic::kAttentionGather), (TrafficCount{1, 4 * 1 * 64 * 4}));  // 4 and 3 rows, padded to 4
  EXPECT_EQ(of(counts, Traffic::kAttentionReduce), (TrafficCount{1, 4 * 1 * 64 * 4}));
  EXPECT_EQ(of(counts, Traffic::kRowNorm), (TrafficCount{1, 7 * 2 * 4}));  // two sums a row, of q and of k
}

TEST(TrafficCost, DenseLayersMoveRowsWithinTheirGroup) {
  const ModelConfig config = deepseek();
  Layout layout{.world = 4, .attn_dp = 2, .attn_tp = 2, .ep = 4, .dense_tp = 4, .exchange = ExchangeKind::kAllToAll};
  const std::vector<int64_t> rows{8, 8};
  const auto dense = [&] { return predict_layer_traffic(config, layout, plan_layers(config, layout)[0], {.dp_rows = rows, .world_rank = 2}); };
  EXPECT_EQ(of(dense(), Traffic::kDenseGather), (TrafficCount{1, 4 * 3 * 7168 * 4}));
  layout.dense_tp = 2;
  EXPECT_EQ(of(dense(), Traffic::kDenseReduce), (TrafficCount{1, 4 * 1 * 7168 * 4}));
  layout.dense_tp = 1;
  EXPECT_EQ(of(dense(), Traffic::kDenseGather), TrafficCount{});
}

TEST(TrafficCost, AnIdleStepSendsNothingButCollectivesRun) {
  const ModelConfig config = deepseek();
  const std::vector<int64_t> none(4, 0);
  for (const ExchangeKind kind : {ExchangeKind::kAllGatherReduceScatter, ExchangeKind::kAllToAll, ExchangeKind::kAllToAllLowLatency, ExchangeKind::kAuto})
    EXPECT_EQ(total_bytes(sparse_traffic(config, wide(4, 4, kind), {.dp_rows = none, .world_rank = 1})), 0) << exchange_name(kind);
}

TEST(TrafficCost, ChunksShrinkWithTheWorldToABound) {
  const auto rows = [](int world) { return std::pair(exchange_chunk_rows(ExchangeKind::kAllToAllLowLatency, world), exchange_chunk_rows(ExchangeKind::kAllToAll, world)); };
  EXPECT_EQ(rows(1), (std::pair<int64_t, int64_t>{256, 1024}));
  EXPECT_EQ(rows(4), (std::pair<int64_t, int64_t>{64, 256}));
  EXPECT_EQ(rows(1000), (std::pair<int64_t, int64_t>{16, 32}));
}

TEST(TrafficCost, AutoIsLowLatencyWhileNoRankHasMoreThanAChunk) {
  using Rows = std::vector<int64_t>;
  const int64_t most = exchange_chunk_rows(ExchangeKind::kAllToAllLowLatency, 2);
  EXPECT_EQ(exchange_for_step(ExchangeKind::kAuto, Rows{0, most}), ExchangeKind::kAllToAllLowLatency);
  EXPECT_EQ(exchange_for_step(ExchangeKind::kAuto, Rows{0, most + 1}), ExchangeKind::kAllToAll);
  EXPECT_EQ(exchange_for_step(ExchangeKind::kAllToAll, Rows{1}), ExchangeKind::kAllToAll);
  EXPECT_EQ(exchange_for_step(ExchangeKind::kAllToAllLowLatency, Rows{10000}), ExchangeKind::kAllToAllLowLatency);
}

// What others send this rank is what they count as sent: no row is lost between the two ends.
TEST(TrafficCost, RowsOutOfAllRanksAreRowsIntoAllRanks) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  Rng rng(seed);
  const Layout layout = wide(6, 3, ExchangeKind::kAllToAll);
  const auto placement = ExpertPlacement::initial(8, 3, PlacementStrategy::kRoundRobin);
  int64_t out = 0, in = 0;
  for (int rank = 0; rank < 6; ++rank) {
    const auto ids = uniform_routing(rng, 50, 8, 3);
    out += count_dispatch(layout, placement, rank, ids, 3).pairs_to_others;
    for (const int32_t e : ids)
      for (int dest = 0; dest < 6; ++dest)
        if (dest != rank && placement.expert_map(layout.coords(dest).ep)[static_cast<size_t>(e)] >= 0) ++in;
  }
  EXPECT_EQ(out, in);
}

}  // namespace
}  // namespace cadre
