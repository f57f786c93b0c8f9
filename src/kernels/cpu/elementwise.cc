#include "kernels/elementwise.h"

#include <cmath>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cadre {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, 16>;
using V = hn::Vec<F>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(F()));
constexpr int kVecs = 16 / kLanes;

// op on whole vectors, then on a zero-padded copy of the tail.
template <class Op>
HWY_INLINE void map2(const float* a, const float* b, int64_t n, float* out, const Op& op) {
  const F df;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(op(hn::LoadU(df, a + i), hn::LoadU(df, b + i)), df, out + i);
  if (i == n) return;
  HWY_ALIGN float ta[kLanes] = {}, tb[kLanes] = {};
  for (int64_t j = i; j < n; ++j) ta[j - i] = a[j], tb[j - i] = b[j];
  hn::Store(op(hn::Load(df, ta), hn::Load(df, tb)), df, ta);
  for (int64_t j = i; j < n; ++j) out[j] = ta[j - i];
}

HWY_INLINE V sigmoid(V x) {
  const F df;
  const V one = hn::Set(df, 1.0f);
  // exp overflows to infinity past 88: the quotient is then 0, as it should be. NaN passes through.
  return hn::Div(one, hn::Add(one, hn::Exp(df, hn::Min(hn::Neg(x), hn::Set(df, 88.0f)))));
}

float sum_of_squares(const float* x, int64_t n) {
  const F df;
  V acc[kVecs];
  for (int v = 0; v < kVecs; ++v) acc[v] = hn::Zero(df);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int v = 0; v < kVecs; ++v) {
      const V a = hn::LoadU(df, x + i + v * kLanes);
      acc[v] = hn::MulAdd(a, a, acc[v]);
    }
  HWY_ALIGN float lanes[16];
  for (int v = 0; v < kVecs; ++v) hn::Store(acc[v], df, lanes + v * kLanes);
  for (int64_t j = i; j < n; ++j) lanes[j - i] = std::fma(x[j], x[j], lanes[j - i]);
  for (int half = 8; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}

void rms_norm_impl(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const V scale = hn::Set(F(), 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps));
  map2(x, weight, n, out, [&](V a, V w) { return hn::Mul(hn::Mul(a, scale), w); });
}

void silu_mul_impl(const float* gate, const float* up, int64_t n, float* out) {
  map2(gate, up, n, out, [](V g, V u) { return hn::Mul(hn::Mul(g, sigmoid(g)), u); });
}

void gpt_oss_swiglu_impl(const float* gate, const float* up, float limit, int64_t n, float* out) {
  const F df;
  const V high = hn::Set(df, limit), low = hn::Set(df, -limit), one = hn::Set(df, 1.0f), alpha = hn::Set(df, 1.702f);
  map2(gate, up, n, out, [&](V g, V u) {
    g = hn::Min(g, high);
    u = hn::Max(hn::Min(u, high), low);
    return hn::Mul(hn::Add(u, one), hn::Mul(g, sigmoid(hn::Mul(g, alpha))));
  });
}

void add_impl(const float* x, int64_t n, float* y) {
  map2(x, y, n, y, [](V a, V b) { return hn::Add(b, a); });
}

void add_scaled_impl(float a, const float* x, int64_t n, float* y) {
  const V factor = hn::Set(F(), a);
  map2(x, y, n, y, [&](V v, V b) { return hn::MulAdd(factor, v, b); });
}

}  // namespace HWY_NAMESPACE
}  // namespace cadre
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cadre {

HWY_EXPORT(rms_norm_impl);
HWY_EXPORT(silu_mul_impl);
HWY_EXPORT(gpt_oss_swiglu_impl);
HWY_EXPORT(add_impl);
HWY_EXPORT(add_scaled_impl);

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) { HWY_DYNAMIC_DISPATCH(rms_norm_impl)(x, weight, eps, n, out); }
void silu_mul(const float* gate, const float* up, int64_t n, float* out) { HWY_DYNAMIC_DISPATCH(silu_mul_impl)(gate, up, n, out); }
void gpt_oss_swiglu(const float* gate, const float* up, float limit, int64_t n, float* out) { HWY_DYNAMIC_DISPATCH(gpt_oss_swiglu_impl)(gate, up, limit, n, out); }
void add(const float* x, int64_t n, float* y) { HWY_DYNAMIC_DISPATCH(add_impl)(x, n, y); }
void add_scaled(float a, const float* x, int64_t n, float* y) { HWY_DYNAMIC_DISPATCH(add_scaled_impl)(a, x, n, y); }

}  // namespace cadre
#endif  // HWY_ONCE
