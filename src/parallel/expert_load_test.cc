#include "parallel/expert_load.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/rng.h"
#include "tests/testing.h"

namespace cadre {
namespace {

double balancedness(std::vector<std::vector<double>> layers) {
  Balancedness out;
  for (const auto& loads : layers) out.add(loads);
  return out.value();
}

TEST(Balancedness, IsTheMeanOverTheMaximum) {
  EXPECT_DOUBLE_EQ(balancedness({}), 1.0);
  EXPECT_DOUBLE_EQ(balancedness({{0, 0, 0}}), 1.0);
  EXPECT_DOUBLE_EQ(balancedness({{5, 5, 5, 5}}), 1.0);
  EXPECT_DOUBLE_EQ(balancedness({{8, 0, 0, 0}}), 0.25);
  EXPECT_DOUBLE_EQ(balancedness({{10, 20, 30}}), 2.0 / 3);
  // Layers weigh by what they cost: 5 of 20 and 1 of 1.
  EXPECT_DOUBLE_EQ(balancedness({{20, 0, 0, 0}, {1, 1, 1, 1}}), 6.0 / 21);
}

TEST(ExpertLoad, CountsEveryChoiceOfEveryThread) {
  SCOPED_TRACE(testing::seed());
  constexpr int64_t kLayers = 3, kExperts = 7;
  constexpr int kThreads = 4, kAdds = 500;
  ExpertLoad load(kLayers, kExperts);
  std::vector<std::vector<int64_t>> expected(kLayers, std::vector<int64_t>(kExperts));
  std::vector<std::vector<std::pair<int64_t, int32_t>>> choices(kThreads);
  Rng rng(testing::seed());
  for (auto& of_thread : choices)
    for (int i = 0; i < kAdds; ++i) {
      of_thread.emplace_back(rng.below(kLayers), static_cast<int32_t>(rng.below(kExperts)));
      ++expected[static_cast<size_t>(of_thread.back().first)][static_cast<size_t>(of_thread.back().second)];
    }
  std::vector<std::thread> threads;
  for (const auto& of_thread : choices)
    threads.emplace_back([&] {
      for (const auto& [layer, id] : of_thread) load.add(layer, std::span(&id, 1));
    });
  for (std::thread& t : threads) t.join();
  for (int64_t l = 0; l < kLayers; ++l) EXPECT_EQ(load.rows(l), expected[static_cast<size_t>(l)]);
}

TEST(ExpertLoad, RanksHaveTheRowsOfTheirExperts) {
  const std::vector<int64_t> rows{1, 2, 4, 8, 16};
  EXPECT_EQ(rank_loads(ExpertPlacement::initial(5, 2, PlacementStrategy::kLinear), rows),
            (std::vector<double>{7, 24}));
  EXPECT_EQ(rank_loads(ExpertPlacement::initial(5, 2, PlacementStrategy::kRoundRobin), rows),
            (std::vector<double>{21, 10}));
  EXPECT_EQ(rank_loads(ExpertPlacement::initial(5, 1, PlacementStrategy::kLinear), rows), (std::vector<double>{31}));
  EXPECT_EQ(rank_loads(ExpertPlacement(2, 2, {0, 1, 1, kEmptySlot}), std::vector<int64_t>{4, 7}), (std::vector<double>{7.5, 3.5}));
}

}  // namespace
}  // namespace cadre
