#include "planner/step_time.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "config/test_configs.h"
#include "parallel/options.h"
#include "tests/testing.h"

namespace cadre::planner {
namespace {

// A device with round figures and nothing but peaks.
HardwareSpec ideal() {
  HardwareSpec h;
  h.name = "ideal";
  h.memory_bytes = 80e9, h.memory_bytes_per_s = 1e12, h.bf16_per_s = 1e15, h.fp8_per_s = 2e15;
  h.domain_size = 8, h.domain_bytes_per_s = 450e9, h.network_bytes_per_s = 50e9;
  return h;
}

ModelConfig small(std::string_view type, std::string_view changes = "{}") {
  return parse_model_config(testing::small_config_with(type, changes));
}

TEST(StepTime, OneRankReadsItsWeightsOnce) {
  const PlannedModel model(small("llama"), WeightType::kBF16);
  const HardwareSpec h = ideal();
  const StepTime t = StepTimeModel(model, {}, h, {}).uniform({.decode_rows = 1, .decode_context = 100});
  const RankBytes bytes = model.bytes();
  EXPECT_NEAR(t[StepPart::kAttention].bytes_us, static_cast<double>(bytes.attention) / 1e12 * 1e6, 1e-9);
  EXPECT_NEAR(t[StepPart::kDense].bytes_us, static_cast<double>(bytes.dense) / 1e12 * 1e6, 1e-9);
  EXPECT_NEAR(t[StepPart::kHead].bytes_us, static_cast<double>(bytes.head) / 1e12 * 1e6, 1e-9);
  EXPECT_NEAR(t[StepPart::kDense].compute_us, 2 * static_cast<double>(model.parameters().dense) / 1e15 * 1e6, 1e-12);
  EXPECT_EQ(t[StepPart::kDomain].us(), 0);
  EXPECT_EQ(t[StepPart::kNetwork].us(), 0);
  // 100 tokens read and one written, 3 layers of 2 * 2 heads * 8 values of 2 bytes.
  EXPECT_NEAR(t[StepPart::kCache].bytes_us, 101.0 * 3 * 2 * 2 * 8 * 2 / 1e12 * 1e6, 1e-9);
}

TEST(StepTime, ExpertsAreReadByTheShareThatRowsMeet) {
  const PlannedModel model(small("qwen3_moe"), WeightType::kBF16);
  const StepTimeModel time(model, {}, ideal(), {});
  const double all = static_cast<double>(model.bytes().routed) / 1e12 * 1e6;
  for (const int64_t rows : {1, 2, 7, 500})
    EXPECT_NEAR(time.uniform({.decode_rows = rows})[StepPart::kExperts].bytes_us,
                all * expected_active_experts(16, 4, static_cast<double>(rows)) / 16, all * 1e-9);
}

TEST(StepTime, NothingToDoTakesNoTime) {
  const PlannedModel model(small("qwen3_moe"), WeightType::kBF16);
  EXPECT_EQ(
      StepTimeModel(model, {.world = 4, .attn_dp = 4, .ep = 4, .exchange = ExchangeKind::kAllToAll}, ideal(), {}).uniform({}).total_us(),
      0);
}

TEST(StepTime, TheFullestRankSetsTheExpertsTime) {
  const PlannedModel model(small("qwen3_moe"), WeightType::kBF16);
  const Layout layout{.world = 4, .attn_dp = 4, .ep = 4, .exchange = ExchangeKind::kAllToAll};
  const StepShape shape{.decode_rows = 4000};
  const double even = StepTimeModel(model, layout, ideal(), {.balancedness = 1}).uniform(shape)[StepPart::kExperts].compute_us;
  const double half = StepTimeModel(model, layout, ideal(), {.balancedness = 0.5}).uniform(shape)[StepPart::kExperts].compute_us;
  EXPECT_NEAR(half, 2 * even, even * 1e-9);
}

TEST(StepTime, DomainsThatDoNotHoldAllRanksUseTheNetwork) {
  const PlannedModel model(small("qwen3_moe"), WeightType::kBF16);
  const Layout layout{.world = 4, .attn_dp = 4, .ep = 4, .exchange = ExchangeKind::kAllToAll};
  const StepTime one = StepTimeModel(model, layout, ideal(), {}).uniform({.decode_rows = 64}),
                 two = StepTimeModel(model, layout, ideal(), {.ranks_per_domain = 2}).uniform({.decode_rows = 64});
  EXPECT_EQ(one.network_bytes, 0);
  EXPECT_GT(one.domain_bytes, 0);
  EXPECT_NEAR(two.network_bytes + two.domain_bytes, one.domain_bytes, 1e-6);
  EXPECT_NEAR(two.network_bytes, one.domain_bytes * 2 / 3, 1e-6) << "two of three peers are in the other domain";
}

// Two nodes of eight, 256 experts: a prompt's row crosses to the other node once however many of its experts are there.
TEST(StepTime, PromptsCrossBetweenDomainsOncePerDomain) {
  const PlannedModel model(small("qwen3_moe", R"({"num_experts": 256, "num_experts_per_tok": 8})"), WeightType::kBF16);
  const Layout layout{.world = 16, .attn_dp = 16, .ep = 16, .exchange = ExchangeKind::kAllToAll, .combine = CombineOrder::kPerRank};
  const StepTime t = StepTimeModel(model, layout, ideal(), {}).uniform({.prefill_rows = 1000});
  // A half of the experts is there: 1 - 1/2 x 1/2 ... of 8, nearly always hit; there and back, 4 layers, 64 values of 2 bytes.
  const double rows = 1000 * 4 * 2 * 64 * 2.0;
  EXPECT_NEAR(t.network_bytes, rows, rows * 0.2);
  EXPECT_GT(t.domain_bytes, 4 * rows);
}

// More of anything never takes less time, over random models, layouts and shapes; every figure is finite.
TEST(StepTime, GrowsWithWork) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  Rng rng(seed);
  int tried = 0;
  for (int i = 0; i < 400; ++i) {
    const ModelConfig config = small(testing::kModelTypes[rng.below(10)]);
    const int world = 1 << rng.below(4), dp = 1 << rng.below(4), ep = 1 << rng.below(4);
    ParallelOptions o;
    o.tp_size = world, o.dp_size = std::min(dp, world), o.enable_dp_attention = true, o.ep_size = std::min(ep, world);
    ResolvedLayout r;
    try {
      r = resolve_layout(o, config);
    } catch (const Error&) {
      continue;
    }
    ++tried;
    const PlannedModel model(config, WeightType::kCheckpoint);
    HardwareSpec h = HardwareTable::built_in().all()[rng.below(11)];
    const StepTimeModel time(model, r.layout, h,
                             {.balancedness = 0.1 + 0.9 * rng.uniform(), .ranks_per_domain = static_cast<int>(1 + rng.below(8))});
    StepShape shape{.decode_rows = 1 + rng.below(300),
                    .decode_context = rng.below(100000),
                    .prefill_rows = rng.below(500),
                    .prefill_pairs = rng.below(100000)};
    const double before = time.uniform(shape).total_us();
    EXPECT_TRUE(std::isfinite(before));
    EXPECT_GT(before, 0);
    StepShape more = shape;
    (rng.below(2) ? more.decode_rows : more.prefill_rows) += 1 + rng.below(500);
    more.decode_context += rng.below(1000);
    more.prefill_pairs += rng.below(1000);
    // Rows round to whole ones on the wire.
    EXPECT_GE(time.uniform(more).total_us(), before * 0.98) << config.model_type << " world " << world;
  }
  EXPECT_GT(tried, 50);
}

TEST(StepTime, TurnsToComputeWhereTheRooflineSays) {
  const PlannedModel model(
      small("llama", R"({"hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32, "num_key_value_heads": 8})"),
      WeightType::kBF16);
  const StepTimeModel time(model, {}, ideal(), {});
  // Two bytes and 2 operations a row for each parameter: 1,000 operations a byte make it 1,000 rows, with a cache to read a little more.
  const int64_t rows = compute_bound_rows(time, 0, 1 << 20);
  EXPECT_GT(rows, 900);
  EXPECT_LT(rows, 1300);
  EXPECT_EQ(compute_bound_rows(time, 0, 100), 0);
}

}  // namespace
}  // namespace cadre::planner
