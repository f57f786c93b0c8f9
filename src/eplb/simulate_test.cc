#include "eplb/simulate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "eplb/heat_map.h"
#include "tests/testing.h"

namespace cadre::eplb {
namespace {

// Expert 0 is hot for some records, then expert 3.
LoadSeries shifting(int records) {
  LoadSeries s{.num_experts = 4, .layers = {5}};
  for (int i = 0; i < records; ++i)
    s.steps.push_back(
        {.name = "step " + std::to_string(i),
         .rows = i < records / 2 ? std::vector<double>{90, 10, 10, 10} : std::vector<double>{10, 10, 10, 90}});
  return s;
}

TEST(Simulate, GainsWhatItMeasures) {
  const LoadSeries series = shifting(16);
  SimulateOptions options{
      .cluster = {.num_experts = 4, .ranks = 2, .num_replicas = 6}, .window = 4, .interval = 4, .us_per_row = 2};
  const ModelPlacement first = trivial_placement(series.layers, options.cluster);
  const Simulation s = simulate(series, options, first);
  ASSERT_EQ(s.rebalances.size(), 3u);
  EXPECT_TRUE(s.rebalances[0].is_applied);
  EXPECT_GT(s.rebalances[0].gain_us, 0);
  double gained = 0;
  for (const Rebalance& r : s.rebalances) gained += r.gain_us;
  EXPECT_GT(gained, 0);
  EXPECT_LT(s.steps_us, s.fixed_us);
  EXPECT_GT(s.with, s.fixed);
  // Rank 0 has experts 0 and 1 at first: 100 rows of 120 of each record of the first half, 20 in the second.
  EXPECT_DOUBLE_EQ(s.fixed_us, 16 * 100 * 2);

  options.threshold = 0;
  EXPECT_EQ(simulate(series, options, first).moved(), 0);
  options.threshold = 1, options.us_per_move = 1e9;
  EXPECT_EQ(simulate(series, options, first).moved(), 0);
  options.interval = 0;
  EXPECT_THROW(simulate(series, options, first), Error);
}

TEST(HeatMap, DrawsACellForEachLayerAndRank) {
  const std::vector<int64_t> layers{1, 2};
  const ModelPlacement p = trivial_placement(layers, {.num_experts = 4, .ranks = 2, .num_replicas = 4});
  const std::vector<double> rows{4, 0, 0, 0, 1, 1, 1, 1};
  const std::string svg = heat_map_svg(p, p, rows);
  size_t cells = 0;
  for (size_t at = 0; (at = svg.find("<title>", at)) != std::string::npos; ++at) ++cells;
  EXPECT_EQ(cells, 2u * 2 * 2);
  EXPECT_NE(svg.find("layer 1, rank 0: 2.00 x mean"), std::string::npos);
  EXPECT_NE(svg.find("balancedness 0.750"), std::string::npos);
}

}  // namespace
}  // namespace cadre::eplb
