#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "hwy/highway.h"
#include "kernels/elementwise.h"
#include "tests/testing.h"

namespace cadre {
namespace {

std::vector<float> random_values(size_t n, Rng& rng) {
  std::vector<float> v(n);
  for (float& x : v) x = rng.uniform() * 2 - 1;
  return v;
}

std::vector<std::byte> as_dtype(const std::vector<float>& v, DType t) {
  std::vector<std::byte> bytes(v.size() * dtype_bytes(t));
  for (size_t i = 0; i < v.size(); ++i) {
    if (t == DType::kF32) std::memcpy(bytes.data() + i * 4, &v[i], 4);
    const uint16_t half = float_to_bf16(v[i]);
    if (t == DType::kBF16) std::memcpy(bytes.data() + i * 2, &half, 2);
  }
  return bytes;
}

TEST(Attend, MatchesTwoPassSoftmaxForAnyShapeWindowAndSink) {
  Rng rng(testing::seed(), 2);
  SCOPED_TRACE(testing::seed());
  for (int trial = 0; trial < 40; ++trial) {
    const int64_t d = 8 * (1 + rng.below(8)), vd = 4 * (1 + rng.below(20)), tiles = 1 + rng.below(6), count = 1 + rng.below(9);
    const DType dtype = trial % 2 ? DType::kF32 : DType::kBF16;
    const int64_t window = trial % 3 == 0 ? 1 + rng.below(40) : 0;
    const int64_t values = kTileTokens * (d + vd);
    const auto memory = as_dtype(random_values(static_cast<size_t>(tiles * values), rng), dtype);
    std::vector<int32_t> blocks(static_cast<size_t>(tiles));
    for (int64_t i = 0; i < tiles; ++i) blocks[static_cast<size_t>(i)] = static_cast<int32_t>(tiles - 1 - i);
    const int64_t bytes = static_cast<int64_t>(dtype_bytes(dtype));
    const HeadCache kv{{memory.data(), blocks.data(), values * bytes}, 0, d * kTileTokens * bytes, d, vd, dtype};
    const auto q = random_values(static_cast<size_t>(count * d), rng);
    std::vector<float> together(static_cast<size_t>(count * vd)), alone(together), expected(together);
    std::vector<AttentionQuery> queries;
    for (int64_t i = 0; i < count; ++i)
      queries.push_back({q.data() + i * d, together.data() + i * vd, rng.below(static_cast<uint32_t>(tiles * kTileTokens)),
                         trial % 4 == 1 ? rng.uniform() * 4 - 2 : -std::numeric_limits<float>::infinity()});
    attend(kv, 0.7f, window, queries);
    for (int64_t i = 0; i < count; ++i) {
      AttentionQuery one = queries[static_cast<size_t>(i)];
      one.out = alone.data() + i * vd;
      attend(kv, 0.7f, window, {&one, 1});
      one.out = expected.data() + i * vd;
      attend_ref(kv, 0.7f, window, one);
    }
    for (size_t i = 0; i < together.size(); ++i) {
      ASSERT_NEAR(together[i], expected[i], 3e-6) << "trial " << trial;
      ASSERT_EQ(together[i], alone[i]) << "a query's result depends on its company, trial " << trial;
    }
  }
}

TEST(AttendLatent, MatchesTwoPassSoftmax) {
  Rng rng(testing::seed(), 3);
  SCOPED_TRACE(testing::seed());
  for (int trial = 0; trial < 20; ++trial) {
    const int64_t latent = 2 + rng.below(70), rope = 8, width = latent + rope, tiles = 1 + rng.below(4);
    const DType dtype = trial % 2 ? DType::kF32 : DType::kBF16;
    const auto memory = as_dtype(random_values(static_cast<size_t>(tiles * kTileTokens * width), rng), dtype);
    const LatentCache kv{{memory.data(), nullptr, kTileTokens * width * static_cast<int64_t>(dtype_bytes(dtype))}, 0, latent, rope, dtype};
    const auto q = random_values(static_cast<size_t>(width * kMlaHeads), rng);
    std::vector<float> out(static_cast<size_t>(latent * kMlaHeads)), expected(out);
    const int64_t position = rng.below(static_cast<uint32_t>(tiles * kTileTokens));
    attend_latent(kv, 0.3f, position, q.data(), out.data());
    attend_latent_ref(kv, 0.3f, position, q.data(), expected.data());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 3e-6) << "trial " << trial;
  }
}

TEST(Elementwise, MatchesScalarCodeAndAllowsInPlace) {
  Rng rng(testing::seed(), 4);
  SCOPED_TRACE(testing::seed());
  for (const int64_t n : {1, 7, 16, 33, 256, 1000}) {
    auto a = random_values(static_cast<size_t>(n), rng), b = random_values(static_cast<size_t>(n), rng);
    for (float& x : a) x *= 10;
    std::vector<float> out(a.size()), expected(a.size());
    rms_norm(a.data(), b.data(), 1e-6f, n, out.data());
    rms_norm_ref(a.data(), b.data(), 1e-6f, n, expected.data());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 2e-6f * (1 + std::abs(expected[i])));
    gpt_oss_swiglu(a.data(), b.data(), 7.0f, n, out.data());
    gpt_oss_swiglu_ref(a.data(), b.data(), 7.0f, n, expected.data());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-5f);
    silu_mul_ref(a.data(), b.data(), n, expected.data());
    silu_mul(a.data(), b.data(), n, a.data());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(a[i], expected[i], 1e-5f);
  }
}

TEST(Elementwise, SigmoidStaysFiniteAtTheEnds) {
  const float gate[4] = {-1e4f, 1e4f, -200.0f, 200.0f}, up[4] = {1, 1, 1, 1};
  float out[4];
  silu_mul(gate, up, 4, out);
  EXPECT_NEAR(out[0], 0, 1e-30);
  EXPECT_EQ(out[1], 1e4f);
  EXPECT_EQ(out[3], 200.0f);
}

}  // namespace
}  // namespace cadre
