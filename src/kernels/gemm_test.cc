#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "hwy/highway.h"
#include "hwy/targets.h"
#include "kernels/int_rows.h"
#include "kernels/ref/int_rows.h"
#include "tests/testing.h"

namespace cadre {
namespace {

struct Case {
  std::vector<std::byte> data;
  std::vector<float> fp8_scales;
  std::vector<uint8_t> mx_scales;
  PackSource source;
};

template <typename T>
void put(std::vector<std::byte>& bytes, size_t i, T v) { std::memcpy(bytes.data() + i * sizeof(T), &v, sizeof(T)); }

Case random_case(WeightFormat format, int64_t n, int64_t k, Rng& rng) {
  Case c;
  const size_t count = static_cast<size_t>(n * k);
  const auto normal = [&] { return (rng.uniform() + rng.uniform() + rng.uniform() - 1.5f) * 2; };
  c.source = {.format = format, .n = n, .k = k, .stride_n = k};
  switch (format) {
    case WeightFormat::kInt8: case WeightFormat::kInt4:  // quantised from float32
      c.source.format = WeightFormat::kF32;
      [[fallthrough]];
    case WeightFormat::kF32:
      c.data.resize(count * 4);
      for (size_t i = 0; i < count; ++i) put(c.data, i, normal());
      break;
    case WeightFormat::kBF16: case WeightFormat::kF16:
      c.data.resize(count * 2);
      for (size_t i = 0; i < count; ++i) {
        // float16: any finite bit pattern, subnormals included
        uint16_t bits = static_cast<uint16_t>(rng());
        if (format == WeightFormat::kF16 && (bits & 0x7C00) == 0x7C00) bits &= 0x83FF;
        if (format == WeightFormat::kBF16) bits = float_to_bf16(normal());
        put(c.data, i, bits);
      }
      break;
    case WeightFormat::kFp8Block: {
      c.data.resize(count);
      for (size_t i = 0; i < count; ++i) {
        uint8_t bits = static_cast<uint8_t>(rng());
        if ((bits & 0x7F) == 0x7F) bits ^= 1;  // the NaN code
        put(c.data, i, bits);
      }
      c.source.scale_columns = (k + 127) / 128;
      c.fp8_scales.resize(static_cast<size_t>((n + 127) / 128 * c.source.scale_columns));
      for (float& s : c.fp8_scales) s = rng.uniform() * 0.01f + 1e-4f;
      break;
    }
    case WeightFormat::kMxfp4:
      c.data.resize(count / 2);
      for (auto& b : c.data) b = static_cast<std::byte>(rng());
      c.mx_scales.resize(count / 32);
      for (auto& s : c.mx_scales) s = static_cast<uint8_t>(120 + rng.below(10));
      c.source.stride_n = k / 2;
      c.source.mx_scale_stride = k / 32;
      break;
  }
  c.source.data = c.data.data();
  c.source.fp8_scales = c.fp8_scales.data();
  c.source.mx_scales = c.mx_scales.data();
  return c;
}

const char* name_of(WeightFormat f) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "fp8", "mxfp4", "int8", "int4"};
  return kNames[static_cast<int>(f)];
}

class Gemm : public ::testing::TestWithParam<WeightFormat> {};

// Every compiled vector target that this machine can run.
void for_each_target(const std::function<void(int64_t)>& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    body(target);
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_P(Gemm, EqualsTheDefinitionToTheBitForAnyShapeAndTarget) {
  Rng rng(testing::seed());
  SCOPED_TRACE(testing::seed());
  const WeightFormat format = GetParam();
  const int64_t unit = format == WeightFormat::kMxfp4 ? 32 : 1;
  ThreadPool pool(2);
  for (int trial = 0; trial < 24; ++trial) {
    const int64_t n = trial < 4 ? 1 + trial * 31 : 1 + rng.below(200);
    const int64_t k = (trial == 5 ? 0 : 1 + rng.below(unit == 1 ? 400 : 12)) * unit;
    const int64_t m = trial % 3 == 0 ? rng.below(3) : rng.below(40);
    const Case c = random_case(format, n, k, rng);
    const PackedMatrix w(c.source, format);
    const int64_t stride = k + 3;
    std::vector<float> x(static_cast<size_t>((m + 2) * stride)), bias(static_cast<size_t>(n));
    std::vector<int32_t> index(static_cast<size_t>(m));
    for (float& v : x) v = rng.uniform() * 2 - 1;
    for (float& v : bias) v = rng.uniform();
    for (int32_t& i : index) i = static_cast<int32_t>(rng.below(static_cast<uint32_t>(m + 2)));
    if (trial % 5 == 0 && k > 70)  // a block of zeros and one of rounding's own size
      for (int64_t r = 0; r < m + 2; ++r)
        for (int64_t i = 0; i < 70; ++i) x[static_cast<size_t>(r * stride + i)] *= i < 64 ? 0.0f : 1e-31f;
    RowsIn in{x.data(), stride, trial % 2 ? index.data() : nullptr, nullptr};
    std::vector<std::byte> quantised;
    if (is_int(format)) {
      quantised.resize(static_cast<size_t>((m + 2) * IntRowLayout(format, k).bytes));
      quantise_rows(format, x.data(), stride, m + 2, k, quantised.data(), pool);
    }
    const float* b = trial % 4 < 2 ? bias.data() : nullptr;
    std::vector<float> expected(static_cast<size_t>(m * (n + 5)), -7.0f);
    gemm_ref(w.view(), b, in, m, {expected.data(), n + 5});
    for_each_target([&](int64_t target) {
      std::vector<float> y(expected.size(), -7.0f);
      // By index only rows that are quantised already; else gemm() does it.
      if (is_int(format) && in.index) in.quantised = quantised.data();
      gemm(w.view(), b, in, m, {y.data(), n + 5}, pool);
      for (size_t i = 0; i < y.size(); ++i) {
        const bool has_fma = target == HWY_AVX2 || target == HWY_AVX3 || target == HWY_AVX3_DL || target == HWY_NEON;
        if (has_fma) {
          ASSERT_EQ(y[i], expected[i]) << name_of(format) << " m" << m << " n" << n << " k" << k << " target " << hwy::TargetName(target) << " at " << i;
        } else {
          ASSERT_NEAR(y[i], expected[i], 1e-4f * (1 + std::abs(expected[i])) * (format == WeightFormat::kF16 ? 1e5f : 1.0f)) << hwy::TargetName(target);
        }
      }
    });
  }
}

TEST_P(Gemm, IsTheMatrixProductInDoublePrecision) {
  Rng rng(testing::seed(), 1);
  SCOPED_TRACE(testing::seed());
  const WeightFormat format = GetParam();
  if (is_int(format)) return;  // IntWeights
  if (format == WeightFormat::kF16) return;  // its random bit patterns span too wide a range for a tolerance
  const int64_t n = 96, k = 256, m = 5;
  const Case c = random_case(format, n, k, rng);
  const PackedMatrix w(c.source);
  std::vector<float> x(static_cast<size_t>(m * k)), y(static_cast<size_t>(m * n));
  for (float& v : x) v = rng.uniform() * 2 - 1;
  ThreadPool pool(1);
  gemm(w.view(), nullptr, {x.data(), k}, m, {y.data(), n}, pool);
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t j = 0; j < n; ++j) {
    unpack_row(w.view(), j, row.data());
    for (int64_t i = 0; i < m; ++i) {
      double sum = 0, magnitude = 0;
      for (int64_t q = 0; q < k; ++q) {
        // straight from the source's bytes, so that packing is checked too
        double v = 0;
        const size_t at = static_cast<size_t>(j * k + q);
        if (format == WeightFormat::kF32) { float f; std::memcpy(&f, c.data.data() + at * 4, 4); v = f; }
        if (format == WeightFormat::kBF16) { uint16_t u; std::memcpy(&u, c.data.data() + at * 2, 2); v = bf16_to_float(u); }
        if (format == WeightFormat::kFp8Block) v = double{f8e4m3_to_float(static_cast<uint8_t>(c.data[at]))} * c.fp8_scales[static_cast<size_t>(j / 128 * c.source.scale_columns + q / 128)];
        if (format == WeightFormat::kMxfp4) {
          const uint8_t byte = static_cast<uint8_t>(c.data[at / 2]);
          v = double{fp4_to_float(at % 2 ? byte >> 4 : byte & 15)} * e8m0_to_float(c.mx_scales[at / 32]);
        }
        ASSERT_NEAR(row[static_cast<size_t>(q)], v, 1e-6 * std::abs(v));
        sum += v * x[static_cast<size_t>(i * k + q)];
        magnitude += std::abs(v * x[static_cast<size_t>(i * k + q)]);
      }
      ASSERT_NEAR(y[static_cast<size_t>(i * n + j)], sum, 2e-6 * magnitude);
    }
  }
}

// What quantising takes away: of weights a few thousandths (int8) or hundredths (int4) of a block's largest, of inputs less; and what is
// kept exactly.
TEST(IntWeights, AreNearWhatTheyAreMadeOfAndExactWhereTheyCanBe) {
  Rng rng(testing::seed(), 2);
  SCOPED_TRACE(testing::seed());
  for (const WeightFormat from : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kFp8Block, WeightFormat::kMxfp4})
    for (const WeightFormat to : {WeightFormat::kInt8, WeightFormat::kInt4}) {
      const int64_t n = 70, k = 416;
      const Case c = random_case(from, n, k, rng);
      const PackedMatrix plain(c.source), w(c.source, to);
      EXPECT_LE(w.bytes(), static_cast<int64_t>(1.05 * static_cast<double>(96 * 448) * (to == WeightFormat::kInt8 ? 8.25 : 4.5) / 8)) << "with whole panels and blocks";
      std::vector<float> expected(static_cast<size_t>(k)), got(expected.size());
      double error = 0, power = 0;
      for (int64_t row = 0; row < n; ++row) {
        unpack_row(plain.view(), row, expected.data());
        unpack_row(w.view(), row, got.data());
        for (int64_t b = 0; b < k; b += block_k(to)) {
          float most = 0;
          for (int64_t i = b; i < std::min(k, b + block_k(to)); ++i) most = std::max(most, std::abs(expected[static_cast<size_t>(i)]));
          for (int64_t i = b; i < std::min(k, b + block_k(to)); ++i) {
            const float e = expected[static_cast<size_t>(i)], q = got[static_cast<size_t>(i)];
            ASSERT_NEAR(q, e, most * (to == WeightFormat::kInt8 ? 0.0042f : 0.2f)) << name_of(from) << " to " << name_of(to);
            if (e == 0) {
              ASSERT_EQ(q, 0);
            }
            error += std::pow(double{q} - e, 2), power += double{e} * e;
          }
        }
      }
      EXPECT_LT(std::sqrt(error / power), to == WeightFormat::kInt8 ? 0.008 : 0.1) << name_of(from) << " to " << name_of(to);
    }
}

TEST(IntRows, EqualTheDefinitionOnEveryTargetAndKeepNotANumber) {
  Rng rng(testing::seed(), 3);
  SCOPED_TRACE(testing::seed());
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4})
    for (int trial = 0; trial < 60; ++trial) {
      const int64_t k = rng.below(300);
      std::vector<float> x(static_cast<size_t>(k));
      const float magnitude = std::ldexp(1.0f, static_cast<int>(rng.below(200)) - 100);
      for (float& v : x) v = (rng.uniform() * 2 - 1) * magnitude;
      if (k > 0 && trial % 4 == 0) x[rng.below(static_cast<uint32_t>(k))] = trial % 8 ? NAN : -INFINITY;
      const IntRowLayout layout(format, k);
      std::vector<std::byte> expected(static_cast<size_t>(layout.bytes)), got(expected.size());
      quantise_row_ref(format, x.data(), k, expected.data());
      for_each_target([&](int64_t target) {
        std::fill(got.begin(), got.end(), std::byte{0});
        quantise_row(format, x.data(), k, got.data());
        ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size()), 0) << hwy::TargetName(target) << " k " << k;
      });
    }
  // One row with a NaN: its outputs are NaN, the others are not.
  const int64_t n = 40, k = 100;
  std::vector<float> values(static_cast<size_t>(n * k), 0.5f), x(static_cast<size_t>(3 * k), 0.25f), y(static_cast<size_t>(3 * n));
  x[static_cast<size_t>(k + 7)] = NAN;
  const PackedMatrix w({.format = WeightFormat::kF32, .data = reinterpret_cast<const std::byte*>(values.data()), .n = n, .k = k, .stride_n = k}, WeightFormat::kInt8);
  ThreadPool pool(1);
  gemm(w.view(), nullptr, {x.data(), k}, 3, {y.data(), n}, pool);
  for (int64_t i = 0; i < 3 * n; ++i) EXPECT_EQ(std::isnan(y[static_cast<size_t>(i)]), i / n == 1) << i;
}

INSTANTIATE_TEST_SUITE_P(AllFormats, Gemm,
                         ::testing::Values(WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16, WeightFormat::kFp8Block, WeightFormat::kMxfp4,
                                           WeightFormat::kInt8, WeightFormat::kInt4),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace cadre
