#include "kernels/activation_quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "hwy/highway.h"
#include "hwy/targets.h"
#include "tensor/dtype.h"
#include "tests/testing.h"

namespace cadre {
namespace {

constexpr float kMin = std::numeric_limits<float>::min(), kMax = std::numeric_limits<float>::max(), kDenormal = std::numeric_limits<float>::denorm_min();

// Equal bits; any NaN equals any other.
bool same(float a, float b) { return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

// Rows of one magnitude or of many, of bits drawn at random, of denormals, of the largest floats, around the least scale.
std::vector<float> draw_row(Rng& rng, int64_t n, int kind) {
  std::vector<float> x(static_cast<size_t>(n));
  const float magnitude = std::ldexp(1.0f + rng.uniform(), static_cast<int>(rng.below(250)) - 125);
  for (float& v : x) {
    const float u = rng.uniform() * 2 - 1;
    switch (kind) {
      case 0: v = u * magnitude; break;
      case 1: v = u * std::ldexp(1.0f, static_cast<int>(rng.below(40)) - 20); break;
      case 2: v = std::bit_cast<float>(rng.below(0x7F800000u) | (rng.below(2) << 31)); break;
      case 3: v = std::bit_cast<float>(rng.below(1u << (1 + rng.below(23)))) * (rng.below(2) ? 1.0f : -1.0f); break;
      case 4: v = kMax * u; break;
      case 5: v = u * 450 * kMin; break;
      case 6: v = std::ldexp(std::round(u * 32), -4); break;  // ties
      default: v = rng.below(3) ? 0.0f : -0.0f; break;
    }
  }
  return x;
}
constexpr int kKinds = 8;

TEST(RoundToFp8, EqualsTheScalarDefinitionOnEveryVectorWidth) {
  SCOPED_TRACE(testing::seed());
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    Rng rng(testing::seed(), 5);
    for (int trial = 0; trial < 4000; ++trial) {
      const int64_t n = 1 + rng.below(300);
      std::vector<float> x = draw_row(rng, n, trial % kKinds);
      if (trial % 11 == 0) x[rng.below(static_cast<uint32_t>(n))] = rng.below(2) ? std::nanf("") : -std::numeric_limits<float>::infinity();
      std::vector<float> found(x.size()), expected(x.size());
      round_to_fp8(x.data(), n, found.data());
      round_to_fp8_ref(x.data(), n, expected.data());
      for (size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(same(found[i], expected[i])) << hwy::TargetName(target) << " trial " << trial << " at " << i << ": " << found[i] << ", " << expected[i];
      const int64_t group = std::min(n, kActivationGroup);
      ASSERT_TRUE(same(fp8_group_scale(x.data(), group), fp8_group_scale_ref(x.data(), group)));
      round_to_fp8(x.data(), n, x.data());
      for (size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(same(x[i], found[i])) << "in place";
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(RoundToFp8, RoundingTwiceIsRoundingOnce) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed(), 6);
  for (int trial = 0; trial < 40000; ++trial) {
    const int64_t n = 1 + rng.below(trial % 2 ? 8 : 300);
    std::vector<float> x = draw_row(rng, n, trial % kKinds);
    if (trial % 97 == 0) x[0] = std::nanf("");
    std::vector<float> once(x.size()), twice(x.size());
    round_to_fp8(x.data(), n, once.data());
    round_to_fp8(once.data(), n, twice.data());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(same(once[i], twice[i])) << "trial " << trial << " at " << i << ": " << x[i] << ", " << once[i] << ", " << twice[i];
  }
  // Every mantissa of a group's largest value.
  for (uint32_t mantissa = 0; mantissa < (1u << 23); mantissa += 1 + rng.below(8)) {
    const float x = std::bit_cast<float>((127u << 23) | mantissa);
    float once, twice;
    round_to_fp8(&x, 1, &once);
    round_to_fp8(&once, 1, &twice);
    ASSERT_TRUE(same(once, twice)) << x;
  }
}

TEST(RoundToFp8, KeepsZerosAndLargestValuesAndErrsByAnEighthOfAnOctave) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed(), 7);
  for (int trial = 0; trial < 400; ++trial) {
    const std::vector<float> x = draw_row(rng, kActivationGroup, trial % 2);
    std::vector<float> y(x.size());
    round_to_fp8(x.data(), kActivationGroup, y.data());
    const float scale = fp8_group_scale(x.data(), kActivationGroup);
    for (size_t i = 0; i < x.size(); ++i) {
      // Half a step: 2^-4 of the value, or of the least normal value 2^-6.
      ASSERT_LE(std::abs(double{y[i]} - double{x[i]}), 1.00001 * std::max(std::abs(double{x[i]}) / 16, double{scale} / 1024)) << i;
      if (std::abs(x[i]) == scale * 448) {
        ASSERT_EQ(y[i], x[i]);
      }
    }
  }
  const float few[] = {0.0f, -0.0f, 448.0f, -1.0f};
  float out[4];
  round_to_fp8(few, 4, out);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(same(out[i], few[i])) << i;
  const float tiny[] = {kDenormal, -3 * kMin, kMin / 512};
  round_to_fp8(tiny, 3, out);
  EXPECT_TRUE(same(out[0], 0.0f) && same(out[1], -3 * kMin) && same(out[2], kMin / 512));
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> row(200, 1.0f);
    row[130] = bad;
    round_to_fp8(row.data(), 200, row.data());
    EXPECT_EQ(row[127], 1.0f);
    EXPECT_TRUE(std::isnan(row[128]) && std::isnan(row[199])) << "a group is lost as a whole";
  }
}

}  // namespace
}  // namespace cadre
