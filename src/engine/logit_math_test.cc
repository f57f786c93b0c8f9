#include "engine/logit_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "tests/testing.h"

namespace cadre {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(LogitMath, ExpIsCloseToTheLibrarysEverywhere) {
  double worst_ulps = 0;
  for (int i = 0; i <= 870'000; ++i) {
    const float x = static_cast<float>(-i * 1e-4);
    const double exact = std::exp(double{x});
    const float got = exp_nonpositive(x);
    const float ulp = std::nextafter(static_cast<float>(exact), kInfinity) - static_cast<float>(exact);
    worst_ulps = std::max(worst_ulps, std::abs(double{got} - exact) / double{ulp});
  }
  EXPECT_LT(worst_ulps, 2.0);
  EXPECT_EQ(exp_nonpositive(0), 1.0f);
  EXPECT_EQ(exp_nonpositive(-88.0f), 0.0f);
  EXPECT_EQ(exp_nonpositive(-kInfinity), 0.0f);
}

// Sizes around the widths of the loops, with the extremes at every place.
TEST(LogitMath, SummaryFindsBestAndWhatIsNotFinite) {
  for (size_t size = 1; size <= 40; ++size) {
    std::vector<float> row(size, 1.0f);
    EXPECT_EQ(summarize(row).best_id, 0);
    for (size_t i = 0; i < size; ++i) {
      row.assign(size, -2.0f);
      row[i] = -1.0f;
      row.back() = std::max(row.back(), -1.0f);  // a tie: the lower id wins
      const RowSummary summary = summarize(row);
      EXPECT_EQ(summary.best, -1.0f);
      EXPECT_EQ(summary.best_id, static_cast<int32_t>(i));
      EXPECT_TRUE(summary.is_finite);
      EXPECT_TRUE(any_above(row, -1.5f));
      EXPECT_FALSE(any_above(row, -1.0f));
      row[i] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_FALSE(summarize(row).is_finite);
      row[i] = kInfinity;
      EXPECT_FALSE(summarize(row).is_finite);
      row[i] = -kInfinity;
      EXPECT_TRUE(summarize(row).is_finite);
    }
    row.assign(size, -kInfinity);
    EXPECT_EQ(summarize(row).best, -kInfinity);
    EXPECT_TRUE(summarize(row).is_finite);
  }
}

TEST(LogitMath, SumAgreesWithDoubles) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  for (const size_t size : {1u, 7u, 8u, 63u, 64u, 65u, 1000u, 150'000u}) {
    std::vector<float> row(size);
    float best = -kInfinity;
    for (float& x : row) {
      x = rng.uniform() * 40 - 20;
      if (rng.below(50) == 0) x = -kInfinity;
      best = std::max(best, x);
    }
    row[0] = best = std::max(best, 0.0f);
    for (const float scale : {0.2f, 1.0f, 3.0f}) {
      double expected = 0;
      for (const float x : row) expected += std::exp((double{x} - double{best}) * double{scale});
      EXPECT_NEAR(sum_weights(row, best, scale) / expected, 1.0, 2e-6) << size << " " << scale;
    }
  }
}

}  // namespace
}  // namespace cadre
