#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "tests/testing.h"

namespace cadre {
namespace {

// The nearest representable value by exhaustive search over finite codes; ties go to the even code.
template <typename Code, typename Decode>
Code nearest(float f, Decode decode, unsigned num_codes) {
  unsigned best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (unsigned c = 0; c < num_codes; ++c) {
    const float value = decode(static_cast<Code>(c));
    if (!std::isfinite(value) || std::signbit(value) != std::signbit(f)) continue;
    const double distance = std::abs(static_cast<double>(value) - static_cast<double>(f));
    if (distance < best_distance || (distance == best_distance && c % 2 == 0)) best = c, best_distance = distance;
  }
  return static_cast<Code>(best);
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(dtype_bytes(DType::kF8E4M3), 1u);
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2u);
  EXPECT_EQ(dtype_bytes(DType::kF64), 8u);
  EXPECT_EQ(dtype_name(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(dtype_name(DType::kBool), "BOOL");
}

TEST(DType, F16RoundTripsEveryCode) {
  for (unsigned c = 0; c < 65536; ++c) {
    const float f = f16_to_float(static_cast<uint16_t>(c));
    if (std::isnan(f))
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(f))));
    else
      ASSERT_EQ(float_to_f16(f), c) << c;
  }
  EXPECT_EQ(float_to_f16(65519.0f), 0x7BFF);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_f16(-1e30f), 0xFC00);
  EXPECT_EQ(float_to_f16(0x1p-25f), 0);
  EXPECT_EQ(float_to_f16(0x1.8p-25f), 1);
}

TEST(DType, F16RoundsToNearestEven) {
  Rng rng(testing::seed(), 16);
  SCOPED_TRACE(testing::seed());
  for (int i = 0; i < 300; ++i) {
    const float f = (rng.uniform() - 0.5f) * std::ldexp(1.0f, static_cast<int>(rng.below(40)) - 24);
    ASSERT_EQ(float_to_f16(f), (nearest<uint16_t>(f, f16_to_float, 65536))) << f;
  }
}

TEST(DType, F8RoundTripsEveryCodeAndRoundsToNearestEven) {
  for (unsigned c = 0; c < 256; ++c) {
    const float f = f8e4m3_to_float(static_cast<uint8_t>(c));
    if (std::isnan(f))
      EXPECT_TRUE(std::isnan(f8e4m3_to_float(float_to_f8e4m3(f))));
    else
      ASSERT_EQ(float_to_f8e4m3(f), c);
  }
  EXPECT_EQ(f8e4m3_to_float(float_to_f8e4m3(1e9f)), 448.0f);
  EXPECT_EQ(f8e4m3_to_float(float_to_f8e4m3(-449.0f)), -448.0f);
  Rng rng(testing::seed(), 8);
  SCOPED_TRACE(testing::seed());
  for (int i = 0; i < 20000; ++i) {
    const float f = (rng.uniform() - 0.5f) * std::ldexp(1.0f, static_cast<int>(rng.below(22)) - 12);
    ASSERT_EQ(float_to_f8e4m3(f), (nearest<uint8_t>(f, f8e4m3_to_float, 256))) << f;
  }
}

TEST(DType, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3F80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);  // a tie goes to even
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_TRUE(std::isinf(bf16_to_float(float_to_bf16(3.4028235e38f))));
}

TEST(DType, MicroscalingFormats) {
  EXPECT_EQ(fp4_to_float(0x7), 6.0f);
  EXPECT_EQ(fp4_to_float(0x9), -0.5f);
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(0), 0x1p-127f);
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(Buffer, AlignedZeroedAndMovable) {
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{4096}, size_t{3} << 20}) {
    Buffer buffer(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_EQ(buffer.size(), bytes);
    for (const std::byte b : buffer.as<std::byte>()) ASSERT_EQ(b, std::byte{0});
    buffer.data()[bytes - 1] = std::byte{7};
    Buffer moved(std::move(buffer));
    EXPECT_EQ(moved.data()[bytes - 1], std::byte{7});
    EXPECT_EQ(buffer.data(), nullptr);  // NOLINT(bugprone-use-after-move): what a moved-from buffer holds is promised
    moved = Buffer(8);
    EXPECT_EQ(moved.size(), 8u);
  }
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer(0).size(), 0u);
}

TEST(Tensor, ShapeText) {
  EXPECT_EQ(shape_text(Shape{256, 7168}), "[256, 7168]");
  EXPECT_EQ(shape_text(Shape{}), "[]");
  EXPECT_EQ(num_elements(Shape{}), 1);
  EXPECT_EQ(num_elements(Shape{3, 0}), 0);
}

}  // namespace
}  // namespace cadre
