#include "replay/cost.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "tests/testing.h"

namespace cadre::replay {
namespace {

std::vector<MeasuredStep> steps_of(const LinearCost& cost, uint64_t seed, double noise) {
  std::vector<MeasuredStep> steps;
  for (uint64_t i = 0; i < 80; ++i) {
    const auto draw = [&](uint64_t what, uint32_t below) {
      return static_cast<int64_t>(random_u32(seed, i, what) % below);
    };
    MeasuredStep step;
    for (uint64_t r = 0; r < 2; ++r) {
      StepShape shape{.decode_rows = draw(10 * r, 32),
                      .prefill_rows = draw(10 * r + 1, 3) == 0 ? draw(10 * r + 2, 500) : 0};
      shape.decode_context = shape.decode_rows * (1 + draw(10 * r + 3, 900));
      shape.prefill_pairs = shape.prefill_rows * (1 + draw(10 * r + 4, 900));
      shape.prefill_sequences = shape.prefill_rows > 0 ? 1 + draw(10 * r + 5, 6) : 0;
      if (r == 0) shape.decode_rows += 1;
      step.dp_ranks.push_back(shape);
    }
    step.us = cost(step.dp_ranks, 1) * (1 + noise * (static_cast<double>(draw(99, 2001)) / 1000 - 1));
    steps.push_back(step);
  }
  return steps;
}

TEST(LinearCost, AFitFindsWhatStepsWereMadeOf) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE("CADRE_SEED=" + std::to_string(seed));
  const LinearCost made{.us = {120, 30, 0.02, 9, 0.001, 4, 0, 11}, .num_experts = 64, .top_k = 6};
  const auto steps = steps_of(made, seed, 0);
  const LinearCost found = fit_linear_cost(steps, 64, 6);
  for (size_t i = 0; i < LinearCost::kNumFeatures; ++i)
    EXPECT_NEAR(found.us[i], made.us[i], 1e-3 * made.us[i] + 1e-6) << LinearCost::kNames[i];
  EXPECT_LT(cost_error(found, steps).max, 1e-4);
  const auto noisy = steps_of(made, seed, 0.1);
  const LinearCost near = fit_linear_cost(noisy, 64, 6);
  EXPECT_LT(cost_error(near, noisy).mean, 0.1);
  for (const double us : near.us) EXPECT_GE(us, 0);
}

TEST(LinearCost, DenseModelsAndUselessFeaturesFitToo) {
  std::vector<MeasuredStep> steps;
  for (int64_t rows = 1; rows <= 10; ++rows)
    steps.push_back({{{.decode_rows = rows, .decode_context = rows * 100}}, 50.0 + 3.0 * static_cast<double>(rows)});
  const LinearCost found = fit_linear_cost(steps, 0, 0);
  EXPECT_LT(cost_error(found, steps).max, 1e-4);
  EXPECT_THROW(fit_linear_cost(std::span(steps).first(3), 0, 0), Error);
  steps[0].us = 0;
  EXPECT_THROW(fit_linear_cost(steps, 0, 0), Error);
}

TEST(LinearCost, JsonReadsBackAndBadOnesAreRefused) {
  const LinearCost cost{.us = {120, 30, 0.02, 9, 0.001, 4, 2, 3}, .num_experts = 64, .top_k = 6};
  const json::object object = cost_json(cost);
  const LinearCost back = parse_cost(JsonObject(object, "cost"));
  EXPECT_EQ(back.us, cost.us);
  EXPECT_EQ(back.num_experts, 64);
  const auto refused = [&](auto&& change) {
    json::object bad = object;
    change(bad);
    EXPECT_THROW(parse_cost(JsonObject(bad, "cost")), Error) << json::serialize(bad);
  };
  refused([](json::object& o) { o.erase("us"); });
  refused([](json::object& o) { o["us"].as_object().erase("step"); });
  refused([](json::object& o) { o["us"].as_object()["decode_row"] = -1; });
  refused([](json::object& o) { o["us"].as_object()["decode_row"] = "fast"; });
  refused([](json::object& o) { o["top_k"] = 65; });
  refused([](json::object& o) { o["us"].as_object()["step"] = 0, o["us"].as_object()["decode_row"] = 0; });
}

TEST(RooflineCost, IsThePlannersAndFollowsBalance) {
  const ModelConfig config = load_model_config(testing::source_dir() / "models" / "demo");
  const planner::PlannedModel model(config, planner::WeightType::kCheckpoint);
  const planner::HardwareSpec hardware = planner::HardwareTable::built_in().find("h100-80g");
  Layout layout{.world = 4, .attn_dp = 4, .ep = 4, .exchange = ExchangeKind::kAllToAll};
  const StepCost cost = roofline_cost(model, layout, hardware, {});
  const std::vector<StepShape> shapes(4, {.decode_rows = 400, .decode_context = 40'000});
  const planner::StepTimeModel direct(model, layout, hardware, {});
  EXPECT_DOUBLE_EQ(cost(shapes, 1), direct(shapes).total_us());
  EXPECT_GT(cost(shapes, 0.5), cost(shapes, 1));
  EXPECT_EQ(cost(shapes, 0.5), cost(shapes, 0.5));
}

}  // namespace
}  // namespace cadre::replay
