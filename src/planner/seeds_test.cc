// The figures that the two documents behind this project print, to their digits, from the functions that the engine and the
// planner use.
#include <gtest/gtest.h>

#include <cmath>

#include "config/bytes.h"
#include "parallel/expert_load.h"
#include "parallel/layer_plan.h"
#include "parallel/options.h"
#include "parallel/traffic_cost.h"
#include "planner/memory.h"
#include "planner/step_time.h"
#include "tests/testing.h"

namespace cadre::planner {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Figures are printed rounded; this rounds to the same digits.
std::string printed(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

ModelConfig published(const std::filesystem::path& data, const std::string& name) {
  return load_model_config(data / "configs" / "hf" / (name + "_config.json"));
}

Layout all_to_all(int ranks) {
  return {.world = ranks, .attn_dp = ranks, .ep = ranks, .exchange = ExchangeKind::kAllToAll, .combine = CombineOrder::kPerRank};
}

TEST(Seeds, LatentCacheOnEveryRankOrOnOne) {
  CADRE_DATA_OR_SKIP(data);
  const ModelConfig v3 = published(data, "deepseek-ai--DeepSeek-V3");
  EXPECT_EQ(kv_bytes_per_token(v3, DType::kBF16), 70'272);
  EXPECT_EQ(40 * kGiB, 42'949'672'960);
  const Layout tp{.world = 8, .attn_tp = 8, .moe_tp = 8, .dense_tp = 8}, dp{.world = 8, .attn_dp = 8, .moe_tp = 8};
  // The latent is cached whole on each rank that splits the heads.
  EXPECT_EQ(rank_kv_bytes_per_token(v3, tp, DType::kBF16), 70'272);
  // The document rounds the quotient of 611,191.84 up; whole tokens are one fewer.
  const int64_t bytes = rank_kv_bytes_per_token(v3, dp, DType::kBF16),
                rounded = std::llround(static_cast<double>(40 * kGiB) / static_cast<double>(bytes));
  EXPECT_EQ(rounded, 611'192);
  EXPECT_EQ(rounded * dp.attn_dp, 4'889'536);
  EXPECT_EQ(rounded * tp.attn_dp, 611'192);
  EXPECT_EQ(tokens_in(40 * kGiB, bytes), 611'191);
}

TEST(Seeds, SixteenGpusWithAttentionSplitOrReplicated) {
  CADRE_DATA_OR_SKIP(data);
  const PlannedModel v3(published(data, "deepseek-ai--DeepSeek-V3"), WeightType::kCheckpoint);
  // A byte a parameter: 671 GB, of which 11.41 GB attention.
  const RankBytes parameters = v3.parameters();
  const double total = static_cast<double>(parameters.total()), attention = static_cast<double>(parameters.attention);
  EXPECT_EQ(printed(total / 1e9, 0), "671");
  EXPECT_EQ(printed(attention / 1e9, 2), "11.41");
  EXPECT_GT(total, 8 * 80e9);  // eight 80 GB devices do not hold it
  const AttentionComparison c = compare_attention(total, attention, 16, 72e9, false);
  EXPECT_EQ(printed(c.more_weights() / 1e9, 1), "10.7");
  EXPECT_EQ(printed(100 * c.pool_loss(), 0), "36");
  EXPECT_EQ(printed(c.more_tokens(), 1), "10.3");
}

TEST(Seeds, GatheredRowsOfTensorParallelExperts) {
  CADRE_DATA_OR_SKIP(data);
  const ModelConfig v3 = published(data, "deepseek-ai--DeepSeek-V3");
  const Layout layout{.world = 8, .attn_dp = 8, .moe_tp = 8};
  const std::vector<int64_t> rows(8, 128);
  const std::vector<LayerPlan> plans = plan_layers(v3, layout);
  const auto traffic = predict_layer_traffic(v3, layout, plans.back(), {.dp_rows = rows, .activation_bytes = 2});
  const double gather = static_cast<double>(traffic[static_cast<size_t>(Traffic::kMoeGather)].bytes_sent),
               reduce = static_cast<double>(traffic[static_cast<size_t>(Traffic::kMoeReduce)].bytes_sent);
  EXPECT_EQ(printed((gather + reduce) / 1e6, 1), "25.7");
  EXPECT_EQ(printed(gather / 1e6, 2), "12.85");
  const double sparse_layers =
      static_cast<double>(std::count_if(plans.begin(), plans.end(), [](const LayerPlan& p) { return p.is_sparse; }));
  EXPECT_EQ(sparse_layers, 58);
  const double step = (gather + reduce) * sparse_layers;
  EXPECT_EQ(printed(step / 1e9, 2), "1.49");
  const double ms = step / HardwareTable::built_in().find("h100-80g").domain_bytes_per_s * 1e3;
  EXPECT_EQ(printed(ms, 1), "3.3");
  EXPECT_EQ(printed(ms * 1e3 / 1024, 1), "3.2");
  // The narrow product: two projections of an eighth of 2,048.
  EXPECT_EQ(2 * even_slice(v3.moe.expert_intermediate, 8, 0).count, 512);
}

TEST(Seeds, DestinationsOfARow) {
  const ExpectedDispatch e = expected_dispatch(all_to_all(8), 256, 8);
  EXPECT_EQ(printed(e.ranks_hit, 2), "5.29");
  EXPECT_EQ(printed(e.rows_to_others, 2), "4.63");
  EXPECT_EQ(printed(e.rows_to_others, 5), "4.63282");
  EXPECT_EQ(printed(destinations_with_replacement(8, 8), 2), "5.25");
  EXPECT_NEAR(destinations_with_replacement(8, 8), 8 * (1 - std::pow(7.0 / 8, 8)), 1e-12);
}

TEST(Seeds, DispatchAndCombine) {
  CADRE_DATA_OR_SKIP(data);
  const ModelConfig v3 = published(data, "deepseek-ai--DeepSeek-V3");
  const double rows = 128 * expected_dispatch(all_to_all(8), v3.moe.router.num_experts, v3.moe.router.top_k).rows_to_others;
  const double dispatch = rows * static_cast<double>(row_bytes(v3.hidden_size, true)),
               combine = rows * static_cast<double>(row_bytes(v3.hidden_size, false, 2));
  EXPECT_EQ(static_cast<double>(row_bytes(v3.hidden_size, true)), 7168 * 1.03125);
  EXPECT_EQ(printed(dispatch / 1e6, 2), "4.38");
  EXPECT_EQ(printed(combine / 1e6, 2), "8.50");
  EXPECT_EQ(printed((dispatch + combine) / 1e6, 2), "12.88");
  EXPECT_EQ(printed(25.690112 / ((dispatch + combine) / 1e6), 1), "2.0");
  // Two round trips of 58 layers.
  EXPECT_EQ(2 * std::count_if(v3.layers.begin(), v3.layers.end(), [](const LayerConfig& l) { return l.is_sparse; }), 116);
}

TEST(Seeds, ExpertsOfDeepseek) {
  CADRE_DATA_OR_SKIP(data);
  const ModelConfig v3 = published(data, "deepseek-ai--DeepSeek-V3");
  const PlannedModel model(v3, WeightType::kCheckpoint);
  const double sparse_layers = 58, expert = static_cast<double>(model.parameters().routed) / 256 / sparse_layers;  // a byte a parameter
  EXPECT_EQ(printed(expert / 1e6, 2), "44.04");
  EXPECT_EQ(printed(256 * expert / 1e9, 2), "11.27");
  EXPECT_EQ(printed(256 * expert / 8 / 1e9, 2), "1.41");
  // As stored, with a float a block of 128 x 128.
  EXPECT_EQ(expert_bytes(v3), 3 * (2048 * 7168 + 16 * 56 * 4));
  // A slice of every expert, or all of 32: the same bytes.
  const Layout tp{.world = 8, .attn_tp = 8, .moe_tp = 8, .dense_tp = 8};
  const double by_tp = static_cast<double>(model.rank_parameters(tp, initial_placement(v3, tp), 0).routed) / sparse_layers;
  const double by_ep =
      static_cast<double>(model.rank_parameters(all_to_all(8), initial_placement(v3, all_to_all(8)), 0).routed) / sparse_layers;
  EXPECT_EQ(printed(by_tp / 1e9, 2), "1.41");
  EXPECT_EQ(by_tp, by_ep);
  EXPECT_EQ(printed(static_cast<double>(model.active_parameters()) / 1e9, 1), "37.6") << "published: 37 B, without the embedding";
  // 32 more slots: four more experts on each of eight ranks.
  Layout eplb = all_to_all(8);
  eplb.redundant_experts = 32;
  EXPECT_EQ(initial_placement(v3, eplb).slots_per_rank(), 36);
}

TEST(Seeds, ExpertsThatABatchMeets) {
  for (const double rows : {1.0, 8.0, 64.0, 128.0, 4096.0})
    EXPECT_NEAR(expected_active_experts(256, 8, rows), 256 * (1 - std::pow(1 - 8.0 / 256, rows)), 1e-9);
  EXPECT_EQ(expected_active_experts(256, 8, 1), 8);
  EXPECT_EQ(printed(expected_active_experts(256, 8, 4096), 2), "256.00");
  EXPECT_EQ(expected_active_experts(0, 8, 5), 0);
}

TEST(Seeds, Qwen235OnEightGpus) {
  CADRE_DATA_OR_SKIP(data);
  const PlannedModel model(published(data, "Qwen--Qwen3-235B-A22B"), WeightType::kBF16);
  const ModelConfig& c = model.config();
  EXPECT_EQ(printed(static_cast<double>(model.parameters().total()) / 1e9, 0), "235");
  EXPECT_EQ(printed(static_cast<double>(model.parameters().total()) / 8 / 1e9, 1), "29.4");
  EXPECT_EQ(c.attention.num_kv_heads, 4);
  EXPECT_EQ(768 * 4 / 2, c.moe.expert_intermediate);  // a fused gate and up of 768 outputs on each of four ranks
  EXPECT_EQ(16384 * c.moe.router.top_k / 128, 1024);
  const double expert = static_cast<double>(model.parameters().routed) / 128 / static_cast<double>(c.num_layers);
  EXPECT_EQ(printed(expert / 1e6, 1), "18.9");
  EXPECT_EQ(even_slice(128, 8, 0).count, 16);
  EXPECT_EQ(printed(16 * expert / 1e6, 0), "302");
}

TEST(Seeds, PaddedOrExactGather) {
  // One of eight ranks has all rows: exact parts move an eighth of the padded ones.
  const std::vector<int64_t> rows{1024, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(choose_gather_mode(rows), GatherMode::kSumLen);
  int64_t padded = 0, exact = 0;
  for (int r = 0; r < 8; ++r) padded += part_rows(GatherMode::kMaxLen, rows, r), exact += part_rows(GatherMode::kSumLen, rows, r);
  EXPECT_EQ(padded, 8 * exact);
  EXPECT_EQ(choose_gather_mode(std::vector<int64_t>(8, 128)), GatherMode::kMaxLen);
  EXPECT_EQ(choose_gather_mode(std::vector<int64_t>{4, 4, 0, 0}), GatherMode::kMaxLen);  // equal cost: padding
}

TEST(Seeds, GroupsBoundTheRanksARowReaches) {
  RouterConfig v3{.num_experts = 256, .top_k = 8, .num_groups = 8, .topk_groups = 4};
  EXPECT_EQ(destination_bound(v3, 8), 4);   // a group a rank, four groups
  EXPECT_EQ(destination_bound(v3, 4), 4);   // two groups a rank: the four chosen may lie on four ranks
  EXPECT_EQ(destination_bound(v3, 16), 8);  // a group on two ranks, and eight experts
  EXPECT_EQ(destination_bound(v3, 64), 8);
  v3.num_groups = 1;
  EXPECT_EQ(destination_bound(v3, 16), 8);
  EXPECT_EQ(destination_bound({.num_experts = 8, .top_k = 2}, 1), 1);
}

TEST(Seeds, BalancednessIsTheShareThatIsUsed) {
  Balancedness b;
  b.add(std::vector<double>{20, 8, 8, 8});
  EXPECT_NEAR(b.value(), 0.55, 1e-12);  // 45 % of the experts' time is stall
}

TEST(Seeds, ExpertParallelismFlattensDataAndTensorRanks) {
  CADRE_DATA_OR_SKIP(data);
  const ModelConfig qwen = published(data, "Qwen--Qwen3-30B-A3B");
  ParallelOptions o;
  o.tensor_parallel_size = 2, o.data_parallel_size = 2, o.enable_expert_parallel = true;
  const Layout l = resolve_layout(o, qwen).layout;
  EXPECT_EQ(l.ep, 4);
  EXPECT_EQ(l.moe_tp, 1);
  o.enable_expert_parallel = false;
  const Layout without = resolve_layout(o, qwen).layout;
  EXPECT_EQ(without.ep, 1);
  EXPECT_EQ(without.moe_tp, 4);
  const auto linear = ExpertPlacement::initial(4, 2, PlacementStrategy::kLinear),
             in_turn = ExpertPlacement::initial(4, 2, PlacementStrategy::kRoundRobin);
  EXPECT_EQ(std::vector<int32_t>(linear.slot_to_expert().begin(), linear.slot_to_expert().end()), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(std::vector<int32_t>(in_turn.slot_to_expert().begin(), in_turn.slot_to_expert().end()), (std::vector<int32_t>{0, 2, 1, 3}));
}

}  // namespace
}  // namespace cadre::planner
