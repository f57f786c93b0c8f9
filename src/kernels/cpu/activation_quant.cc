#include "kernels/activation_quant.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation_quant.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cadre {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, 16>;
using I = hn::RebindToSigned<F>;
using V = hn::Vec<F>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(F()));

// The bits of magnitudes are in their order as integers, NaN and infinity above all finite ones: one maximum finds the
// largest value and whether all are finite.
int32_t largest_magnitude_bits(const float* x, int64_t n) {
  const F df;
  const I di;
  const auto magnitude = hn::Set(di, 0x7FFFFFFF);
  auto largest = hn::Zero(di);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) largest = hn::Max(largest, hn::And(hn::BitCast(di, hn::LoadU(df, x + i)), magnitude));
  if (i < n) {
    HWY_ALIGN float tail[kLanes] = {};
    std::copy(x + i, x + n, tail);
    largest = hn::Max(largest, hn::And(hn::BitCast(di, hn::Load(df, tail)), magnitude));
  }
  HWY_ALIGN int32_t lanes[kLanes];
  hn::Store(largest, di, lanes);
  return *std::max_element(lanes, lanes + kLanes);
}

float group_scale(const float* x, int64_t n) {
  constexpr int32_t kInfinityBits = 0x7F800000;
  const int32_t bits = largest_magnitude_bits(x, n);
  if (bits >= kInfinityBits) return std::numeric_limits<float>::quiet_NaN();
  return std::max(std::bit_cast<float>(bits) / 448.0f, std::numeric_limits<float>::min());
}

// The nearest e4m3 value, ties to even, saturating at 448. v is not NaN.
HWY_INLINE V round_e4m3(V v) {
  const F df;
  const I di;
  const V magnitude = hn::Min(hn::Abs(v), hn::Set(df, 448.0f));
  // Three mantissa bits stay; below 2^-6 values are steps of 2^-9, which is what the addition leaves in the last place.
  const auto bits = hn::BitCast(di, magnitude);
  const auto is_odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(di, 1));
  const auto rounded = hn::And(hn::Add(bits, hn::Add(is_odd, hn::Set(di, 0x7FFFF))), hn::Set(di, ~0xFFFFF));
  const V shift = hn::Set(df, 0x1.8p14f);
  const V subnormal = hn::Sub(hn::Add(magnitude, shift), shift);
  return hn::CopySign(hn::IfThenElse(hn::Lt(magnitude, hn::Set(df, 0x1p-6f)), subnormal, hn::BitCast(df, rounded)), v);
}

void round_impl(const float* x, int64_t n, float* out) {
  const F df;
  for (int64_t first = 0; first < n; first += kActivationGroup) {
    const int64_t end = std::min(n, first + kActivationGroup);
    const float scale = group_scale(x + first, end - first);
    if (scale != scale) {
      std::fill(out + first, out + end, scale);
      continue;
    }
    const V s = hn::Set(df, scale);
    int64_t i = first;
    for (; i + kLanes <= end; i += kLanes) hn::StoreU(hn::Mul(round_e4m3(hn::Div(hn::LoadU(df, x + i), s)), s), df, out + i);
    if (i == end) continue;
    HWY_ALIGN float tail[kLanes] = {};
    std::copy(x + i, x + end, tail);
    hn::Store(hn::Mul(round_e4m3(hn::Div(hn::Load(df, tail), s)), s), df, tail);
    std::copy(tail, tail + (end - i), out + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cadre
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cadre {

HWY_EXPORT(group_scale);
HWY_EXPORT(round_impl);

float fp8_group_scale(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(group_scale)(x, n); }
void round_to_fp8(const float* x, int64_t n, float* out) { HWY_DYNAMIC_DISPATCH(round_impl)(x, n, out); }

}  // namespace cadre
#endif  // HWY_ONCE
