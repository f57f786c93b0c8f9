#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
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
constexpr int kTile = static_cast<int>(kTileTokens);
constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr int kMaxQueries = 4;

HWY_INLINE V load(const float* p) { return hn::LoadU(F(), p); }
HWY_INLINE V load(const uint16_t* p) {
  const hn::Rebind<uint16_t, F> du;
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<F>(), hn::LoadU(du, p))));
}
HWY_INLINE float load_one(const float* p) { return *p; }
HWY_INLINE float load_one(const uint16_t* p) { return bf16_to_float(*p); }

struct Softmax {
  float max, sum;
};

// Turns the scores of one tile into weights in place and returns the factor for what was summed before.
HWY_INLINE float softmax_step(float* s, int count_from, int count_to, Softmax& state) {
  for (int t = 0; t < count_from; ++t) s[t] = kNegInf;
  for (int t = count_to; t < kTile; ++t) s[t] = kNegInf;
  float top = state.max;
  for (int t = 0; t < kTile; ++t) top = std::max(top, s[t]);
  if (top == kNegInf) top = 0;  // every score -inf: weights all zero
  const F df;
  const V shift = hn::Set(df, top);
  HWY_ALIGN float factor[16];
  hn::Store(hn::Exp(df, hn::Set(df, state.max - top)), df, factor);
  for (int v = 0; v < kVecs; ++v) {
    const V x = hn::Sub(load(s + v * kLanes), shift);
    hn::StoreU(hn::IfThenElseZero(hn::Gt(x, hn::Set(df, -1e30f)), hn::Exp(df, x)), df, s + v * kLanes);
  }
  float sum = 0;
  for (int t = 0; t < kTile; ++t) sum += s[t];
  const float correction = state.max == kNegInf ? 0.0f : factor[0];
  state.sum = state.sum * correction + sum;
  state.max = top;
  return correction;
}

template <int kQ, class T>
HWY_INLINE void score_tile(const HeadCache& kv, const T* keys, float scale, const AttentionQuery* queries, float (*s)[kTile]) {
  const F df;
  V acc[kQ][kVecs];
  for (int q = 0; q < kQ; ++q)
    for (int v = 0; v < kVecs; ++v) acc[q][v] = hn::Zero(df);
  for (int64_t d = 0; d < kv.head_dim; ++d) {
    V k[kVecs];
    for (int v = 0; v < kVecs; ++v) k[v] = load(keys + d * kTile + v * kLanes);
    for (int q = 0; q < kQ; ++q) {
      const V x = hn::Set(df, queries[q].q[d]);
      for (int v = 0; v < kVecs; ++v) acc[q][v] = hn::MulAdd(x, k[v], acc[q][v]);
    }
  }
  for (int q = 0; q < kQ; ++q)
    for (int v = 0; v < kVecs; ++v) hn::StoreU(hn::Mul(acc[q][v], hn::Set(df, scale)), df, s[q] + v * kLanes);
}

template <int kQ, class T>
HWY_INLINE void value_tile(const HeadCache& kv, const T* values, const float (*p)[kTile], const float* correction, const AttentionQuery* queries) {
  const F df;
  int64_t d = 0;
  for (; d + kLanes <= kv.value_dim; d += kLanes) {
    V o[kQ];
    for (int q = 0; q < kQ; ++q) o[q] = hn::Mul(load(queries[q].out + d), hn::Set(df, correction[q]));
    for (int t = 0; t < kTile; ++t) {
      const V v = load(values + t * kv.value_dim + d);
      for (int q = 0; q < kQ; ++q) o[q] = hn::MulAdd(hn::Set(df, p[q][t]), v, o[q]);
    }
    for (int q = 0; q < kQ; ++q) hn::StoreU(o[q], df, queries[q].out + d);
  }
  for (; d < kv.value_dim; ++d)
    for (int q = 0; q < kQ; ++q) {
      float o = queries[q].out[d] * correction[q];
      for (int t = 0; t < kTile; ++t) o = std::fma(p[q][t], load_one(values + t * kv.value_dim + d), o);
      queries[q].out[d] = o;
    }
}

template <int kQ, class T>
void attend_queries(const HeadCache& kv, float scale, int64_t window, const AttentionQuery* queries) {
  Softmax state[kQ];
  int64_t first_key[kQ], first_tile = INT64_MAX, last_tile = 0;
  for (int q = 0; q < kQ; ++q) {
    const bool has_sink = queries[q].sink != kNegInf;
    state[q] = {queries[q].sink, has_sink ? 1.0f : 0.0f};
    std::fill(queries[q].out, queries[q].out + kv.value_dim, 0.0f);
    first_key[q] = window > 0 ? std::max<int64_t>(0, queries[q].position - window + 1) : 0;
    first_tile = std::min(first_tile, first_key[q] / kTile);
    last_tile = std::max(last_tile, queries[q].position / kTile);
  }
  HWY_ALIGN float p[kQ][kTile];
  for (int64_t tile = first_tile; tile <= last_tile; ++tile) {
    const std::byte* base = kv.tiles.tile(tile);
    score_tile<kQ>(kv, reinterpret_cast<const T*>(base + kv.key_offset), scale, queries, p);
    float correction[kQ];
    for (int q = 0; q < kQ; ++q) {
      const int64_t from = std::clamp<int64_t>(first_key[q] - tile * kTile, 0, kTile);
      const int64_t to = std::clamp<int64_t>(queries[q].position + 1 - tile * kTile, 0, kTile);
      if (from >= to) {  // this tile is another query's: nothing changes, to the bit
        std::fill(p[q], p[q] + kTile, 0.0f);
        correction[q] = 1.0f;
      } else {
        correction[q] = softmax_step(p[q], static_cast<int>(from), static_cast<int>(to), state[q]);
      }
    }
    value_tile<kQ>(kv, reinterpret_cast<const T*>(base + kv.value_offset), p, correction, queries);
  }
  for (int q = 0; q < kQ; ++q) {
    const float inverse = 1.0f / state[q].sum;
    for (int64_t d = 0; d < kv.value_dim; ++d) queries[q].out[d] *= inverse;
  }
}

template <class T>
void attend_typed(const HeadCache& kv, float scale, int64_t window, const AttentionQuery* queries, int64_t count) {
  int64_t i = 0;
  for (; i + kMaxQueries <= count; i += kMaxQueries) attend_queries<kMaxQueries, T>(kv, scale, window, queries + i);
  switch (count - i) {
    case 3: return attend_queries<3, T>(kv, scale, window, queries + i);
    case 2: return attend_queries<2, T>(kv, scale, window, queries + i);
    case 1: return attend_queries<1, T>(kv, scale, window, queries + i);
    default: return;
  }
}

void attend_impl(const HeadCache& kv, float scale, int64_t window, const AttentionQuery* queries, int64_t count) {
  if (kv.dtype == DType::kBF16) attend_typed<uint16_t>(kv, scale, window, queries, count);
  else attend_typed<float>(kv, scale, window, queries, count);
}

// Scores of kT tokens for the 16 heads.
template <int kT, class T>
HWY_INLINE void latent_scores(const T* c, int64_t width, const float* q_t, V scale, float* s) {
  const F df;
  V acc[kT][kVecs];
  for (int t = 0; t < kT; ++t)
    for (int v = 0; v < kVecs; ++v) acc[t][v] = hn::Zero(df);
  for (int64_t d = 0; d < width; ++d) {
    V q[kVecs];
    for (int v = 0; v < kVecs; ++v) q[v] = load(q_t + d * 16 + v * kLanes);
    for (int t = 0; t < kT; ++t) {
      const V x = hn::Set(df, load_one(c + t * width + d));
      for (int v = 0; v < kVecs; ++v) acc[t][v] = hn::MulAdd(x, q[v], acc[t][v]);
    }
  }
  for (int t = 0; t < kT; ++t)
    for (int v = 0; v < kVecs; ++v) hn::StoreU(hn::Mul(acc[t][v], scale), df, s + t * 16 + v * kLanes);
}

// out_t rows [d, d + kD) = out_t * correction + sum over tokens of c[t][d] * p[t].
template <int kD, class T>
HWY_INLINE void latent_values(const T* c, int64_t width, int count, const float* p, const V* correction, float* out_t) {
  V acc[kD][kVecs];
  for (int d = 0; d < kD; ++d)
    for (int v = 0; v < kVecs; ++v) acc[d][v] = hn::Mul(load(out_t + d * 16 + v * kLanes), correction[v]);
  for (int t = 0; t < count; ++t) {
    V w[kVecs];
    for (int v = 0; v < kVecs; ++v) w[v] = load(p + t * 16 + v * kLanes);
    for (int d = 0; d < kD; ++d) {
      const V x = hn::Set(F(), load_one(c + t * width + d));
      for (int v = 0; v < kVecs; ++v) acc[d][v] = hn::MulAdd(x, w[v], acc[d][v]);
    }
  }
  for (int d = 0; d < kD; ++d)
    for (int v = 0; v < kVecs; ++v) hn::StoreU(acc[d][v], F(), out_t + d * 16 + v * kLanes);
}

template <class T>
void attend_latent_typed(const LatentCache& kv, float scale, int64_t position, const float* q_t, float* out_t) {
  const F df;
  const int64_t width = kv.latent_dim + kv.rope_dim;
  const V vscale = hn::Set(df, scale);
  V top[kVecs], sum[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    top[v] = hn::Set(df, -1e30f);  // below any score; finite, so that the first correction is exp(-huge) = 0, not NaN
    sum[v] = hn::Zero(df);
  }
  std::fill(out_t, out_t + kv.latent_dim * 16, 0.0f);
  HWY_ALIGN float s[kTile * 16];
  for (int64_t tile = 0; tile <= position / kTile; ++tile) {
    const T* c = reinterpret_cast<const T*>(kv.tiles.tile(tile) + kv.offset);
    const int count = static_cast<int>(std::min<int64_t>(kTile, position + 1 - tile * kTile));
    int t = 0;
    for (; t + 4 <= count; t += 4) latent_scores<4>(c + t * width, width, q_t, vscale, s + t * 16);
    for (; t < count; ++t) latent_scores<1>(c + t * width, width, q_t, vscale, s + t * 16);
    V correction[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      V next = top[v];
      for (int i = 0; i < count; ++i) next = hn::Max(next, load(s + i * 16 + v * kLanes));
      const V difference = hn::Sub(top[v], next);
      correction[v] = hn::IfThenElseZero(hn::Gt(difference, hn::Set(df, -80.0f)), hn::Exp(df, difference));
      sum[v] = hn::Mul(sum[v], correction[v]);
      for (int i = 0; i < count; ++i) {
        const V w = hn::Exp(df, hn::Sub(load(s + i * 16 + v * kLanes), next));
        sum[v] = hn::Add(sum[v], w);
        hn::StoreU(w, df, s + i * 16 + v * kLanes);
      }
      top[v] = next;
    }
    int64_t d = 0;
    for (; d + 4 <= kv.latent_dim; d += 4) latent_values<4>(c + d, width, count, s, correction, out_t + d * 16);
    for (; d < kv.latent_dim; ++d) latent_values<1>(c + d, width, count, s, correction, out_t + d * 16);
  }
  for (int64_t d = 0; d < kv.latent_dim; ++d)
    for (int v = 0; v < kVecs; ++v) hn::StoreU(hn::Div(load(out_t + d * 16 + v * kLanes), sum[v]), df, out_t + d * 16 + v * kLanes);
}

void attend_latent_impl(const LatentCache& kv, float scale, int64_t position, const float* q_t, float* out_t) {
  if (kv.dtype == DType::kBF16) attend_latent_typed<uint16_t>(kv, scale, position, q_t, out_t);
  else attend_latent_typed<float>(kv, scale, position, q_t, out_t);
}

}  // namespace HWY_NAMESPACE
}  // namespace cadre
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cadre {

HWY_EXPORT(attend_impl);
HWY_EXPORT(attend_latent_impl);

void attend(const HeadCache& kv, float scale, int64_t window, std::span<const AttentionQuery> queries) {
  CADRE_CHECK(kv.dtype == DType::kF32 || kv.dtype == DType::kBF16, "{}", dtype_name(kv.dtype));
  HWY_DYNAMIC_DISPATCH(attend_impl)(kv, scale, window, queries.data(), static_cast<int64_t>(queries.size()));
}

void attend_latent(const LatentCache& kv, float scale, int64_t position, const float* q_t, float* out_t) {
  CADRE_CHECK(kv.dtype == DType::kF32 || kv.dtype == DType::kBF16, "{}", dtype_name(kv.dtype));
  HWY_DYNAMIC_DISPATCH(attend_latent_impl)(kv, scale, position, q_t, out_t);
}

}  // namespace cadre
#endif  // HWY_ONCE
