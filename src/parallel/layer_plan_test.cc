#include "parallel/layer_plan.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "config/test_configs.h"
#include "tests/testing.h"

namespace cadre {
namespace {

constexpr ExchangeKind kExchanges[] = {ExchangeKind::kAllGatherReduceScatter, ExchangeKind::kAllToAll, ExchangeKind::kAllToAllLowLatency, ExchangeKind::kAuto};

ModelConfig config_of(std::string_view type) { return parse_model_config(testing::small_config_with(type, "{}")); }

bool is_all_to_all(ExchangeKind kind) { return kind != ExchangeKind::kNone && kind != ExchangeKind::kAllGatherReduceScatter; }

std::vector<Layout> layouts() {
  std::vector<Layout> out;
  for (const int dp : {1, 2, 3, 4})
    for (const int tp : {1, 2, 4}) {
      const int world = dp * tp;
      for (const int dense_tp : {1, tp, world})
        for (int ep = 1; ep <= world; ++ep) {
          if (world % ep != 0) continue;
          Layout l{.world = world, .attn_dp = dp, .attn_tp = tp, .ep = ep, .moe_tp = world / ep, .dense_tp = dense_tp};
          if (ep == 1) out.push_back(l);
          else
            for (const ExchangeKind kind : kExchanges)
              for (const CombineOrder order : {CombineOrder::kExact, CombineOrder::kPerRank}) l.exchange = kind, l.combine = order, out.push_back(l);
        }
    }
  return out;
}

// Whether ranks hold parts of sums (or of the set of experts) that somebody has to bring together.
bool needs_reduction(const Layout& layout, bool is_attention, bool is_sparse) {
  if (is_attention) return layout.attn_tp > 1;
  return is_sparse ? layout.world > 1 : layout.dense_tp > 1;
}

TEST(LayerPlan, EveryHalfHasExactlyOneReductionOwnerAndItIsTheOneThatMoves) {
  for (const char* type : {"deepseek_v3", "qwen3_moe", "llama"}) {
    const ModelConfig config = config_of(type);
    for (const Layout& layout : layouts()) {
      const auto plans = plan_layers(config, layout);
      ASSERT_EQ(static_cast<int64_t>(plans.size()), config.num_layers);
      for (size_t l = 0; l < plans.size(); ++l) {
        EXPECT_EQ(plans[l].is_sparse, config.layers[l].is_sparse);
        for (const bool is_attention : {true, false}) {
          const HalfPlan& half = is_attention ? plans[l].attention : plans[l].feed_forward;
          EXPECT_EQ(half.owner != ReductionOwner::kNobody, needs_reduction(layout, is_attention, plans[l].is_sparse));
          EXPECT_EQ(half.owner == ReductionOwner::kReduceScatter, half.reduce != GroupKind::kNone);
          if (half.owner == ReductionOwner::kCombine) { EXPECT_NE(half.exchange, ExchangeKind::kNone); }
          if (half.reduce != GroupKind::kNone) { EXPECT_EQ(half.reduce, half.gather); }  // rows return to where they came from
          EXPECT_EQ(half.compute == ScatterMode::kScattered, half.gather == GroupKind::kNone);
          if (is_attention || !plans[l].is_sparse) { EXPECT_EQ(half.exchange, ExchangeKind::kNone); }
        }
      }
    }
  }
}

TEST(LayerPlan, AnAllToAllExchangeLeavesSparseLayersScatteredAndGathersNothing) {
  const ModelConfig config = config_of("deepseek_v3");
  for (const Layout& layout : layouts())
    for (const LayerPlan& plan : plan_layers(config, layout)) {
      if (!plan.is_sparse) continue;
      if (is_all_to_all(layout.exchange)) {
        EXPECT_EQ(plan.feed_forward, (HalfPlan{ScatterMode::kScattered, GroupKind::kNone, GroupKind::kNone, ReductionOwner::kCombine, layout.exchange}));
      } else if (layout.world > 1) {
        EXPECT_EQ(plan.feed_forward.compute, ScatterMode::kFull);
        EXPECT_EQ(plan.feed_forward.gather, GroupKind::kWorld);
      }
    }
}

TEST(LayerPlan, OneRankMovesNothing) {
  for (const std::string_view type : testing::kModelTypes)
    for (const LayerPlan& plan : plan_layers(config_of(type), Layout{})) {
      EXPECT_EQ(plan.attention, HalfPlan{});
      EXPECT_EQ(plan.feed_forward, HalfPlan{});
    }
}

TEST(LayerPlan, PureDataParallelAttentionMovesNothingInAttention) {
  for (const LayerPlan& plan : plan_layers(config_of("qwen3_moe"), {.world = 8, .attn_dp = 8, .ep = 8, .exchange = ExchangeKind::kAllToAll}))
    EXPECT_EQ(plan.attention, HalfPlan{});
}

TEST(LayerPlan, SplitAttentionGathersWithinItsGroupOnly) {
  for (const LayerPlan& plan : plan_layers(config_of("qwen3_moe"), {.world = 4, .attn_dp = 2, .attn_tp = 2, .ep = 4, .exchange = ExchangeKind::kAllToAll}))
    EXPECT_EQ(plan.attention, (HalfPlan{ScatterMode::kTpAttnFull, GroupKind::kAttnTp, GroupKind::kAttnTp, ReductionOwner::kReduceScatter}));
}

TEST(LayerPlan, DenseLayersFollowTheirOwnDegree) {
  const ModelConfig config = config_of("deepseek_v3");
  const auto dense = [&](int dense_tp) { return plan_layers(config, {.world = 4, .attn_dp = 2, .attn_tp = 2, .moe_tp = 4, .dense_tp = dense_tp})[0].feed_forward; };
  EXPECT_EQ(dense(1), HalfPlan{});
  EXPECT_EQ(dense(2), (HalfPlan{ScatterMode::kTpAttnFull, GroupKind::kAttnTp, GroupKind::kAttnTp, ReductionOwner::kReduceScatter}));
  EXPECT_EQ(dense(4), (HalfPlan{ScatterMode::kFull, GroupKind::kDenseTp, GroupKind::kDenseTp, ReductionOwner::kReduceScatter}));
}

TEST(LayerPlan, ExactCombineOfTheAllGatherExchangeLeavesTheSumToTheOwner) {
  Layout layout{.world = 4, .attn_dp = 4, .ep = 4, .exchange = ExchangeKind::kAllGatherReduceScatter};
  EXPECT_EQ(plan_layers(config_of("mixtral"), layout)[0].feed_forward,
            (HalfPlan{ScatterMode::kFull, GroupKind::kWorld, GroupKind::kNone, ReductionOwner::kCombine, layout.exchange}));
  layout.combine = CombineOrder::kPerRank;
  EXPECT_EQ(plan_layers(config_of("mixtral"), layout)[0].feed_forward,
            (HalfPlan{ScatterMode::kFull, GroupKind::kWorld, GroupKind::kWorld, ReductionOwner::kReduceScatter, layout.exchange}));
}

TEST(LayerPlan, NamesAreTheSeedsNames) {
  EXPECT_EQ(scatter_mode_name(ScatterMode::kScattered), "SCATTERED");
  EXPECT_EQ(scatter_mode_name(ScatterMode::kTpAttnFull), "TP_ATTN_FULL");
  EXPECT_EQ(scatter_mode_name(ScatterMode::kFull), "FULL");
  EXPECT_EQ(scatter_mode_name(ScatterMode::kMoeFull), "MOE_FULL");
  EXPECT_EQ(group_kind_name(GroupKind::kDenseTp), "dense_tp");
}

TEST(GatherMode, PadsWhileThatCostsAtMostTwiceTheRows) {
  using Rows = std::vector<int64_t>;
  EXPECT_EQ(choose_gather_mode(Rows{128, 128, 128, 128, 128, 128, 128, 128}), GatherMode::kMaxLen);
  EXPECT_EQ(choose_gather_mode(Rows{100, 50}), GatherMode::kMaxLen);
  EXPECT_EQ(choose_gather_mode(Rows{4, 0}), GatherMode::kMaxLen);        // equal cost: 4 * 2 = 4 * 2
  EXPECT_EQ(choose_gather_mode(Rows{4, 0, 0}), GatherMode::kSumLen);     // 8 < 12
  EXPECT_EQ(choose_gather_mode(Rows{4, 1, 1}), GatherMode::kMaxLen);     // 12 = 12
  EXPECT_EQ(choose_gather_mode(Rows{0, 0, 0}), GatherMode::kMaxLen);
  EXPECT_EQ(choose_gather_mode(Rows{7}), GatherMode::kMaxLen);
}

TEST(GatherMode, OneBusyRankOfEightWouldCostEightTimesAsMuchPadded) {
  const std::vector<int64_t> rows{1024, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(choose_gather_mode(rows), GatherMode::kSumLen);
  int64_t padded = 0, exact = 0;
  for (int rank = 0; rank < 8; ++rank) padded += part_rows(GatherMode::kMaxLen, rows, rank), exact += part_rows(GatherMode::kSumLen, rows, rank);
  EXPECT_EQ(padded, 8 * exact);
}

TEST(GatherMode, NeverMovesMoreThanTwiceTheRows) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int round = 0; round < 1000; ++round) {
    std::vector<int64_t> rows(1 + rng.below(16));
    for (auto& r : rows) r = rng.below(2) ? rng.below(1000) : 0;
    const GatherMode mode = choose_gather_mode(rows);
    int64_t moved = 0, sum = 0;
    for (size_t i = 0; i < rows.size(); ++i) moved += part_rows(mode, rows, static_cast<int>(i)), sum += rows[i];
    EXPECT_LE(moved, 2 * sum);
    EXPECT_GE(moved, sum);
  }
}

TEST(RowBytes, Fp8IsAByteAValueAndAScalePer128) {
  EXPECT_EQ(row_bytes(7168, false), 7168 * 4);
  EXPECT_EQ(row_bytes(7168, true), 7392);  // 1.03125 bytes a value
  EXPECT_EQ(row_bytes(128, true), 132);
  EXPECT_EQ(row_bytes(129, true), 137);
}

}  // namespace
}  // namespace cadre
