#include "engine/logit_math.h"

#include <cmath>
#include <cstring>
#include <limits>

// Compiled twice, for the machine's base instructions and for AVX2; the choice is made at run time.
#define CADRE_INLINE inline __attribute__((always_inline))
#define CADRE_AVX2 __attribute__((target("avx2")))

namespace cadre {
namespace {

using Lanes = float __attribute__((vector_size(32)));
using IntLanes = int32_t __attribute__((vector_size(32)));
constexpr size_t kLanes = 8;

bool has_avx2() {
  static const bool value = __builtin_cpu_supports("avx2") > 0;
  return value;
}

CADRE_INLINE Lanes load(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

CADRE_INLINE Lanes splat(float x) { return Lanes{x, x, x, x, x, x, x, x}; }

// Range reduction by ln 2 in two parts (Cody and Waite), then the Taylor polynomial of degree 7 on [-ln2/2, ln2/2]:
// its remainder, (ln2/2)^8 / 8!, is below half a unit in the last place.
CADRE_INLINE Lanes exp_lanes(Lanes x) {
  const Lanes low = splat(-87.3f);
  const IntLanes keep = x >= low;  // false for NaN too
  x = keep ? x : low;
  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
  const Lanes magic = splat(12582912.0f);
  const Lanes shifted = x * splat(1.44269504f) + magic;
  const Lanes n = shifted - magic;
  const Lanes r = (x - n * splat(0.693145751953125f)) - n * splat(1.42860682e-6f);
  Lanes p = splat(1.0f / 5040);
  p = p * r + splat(1.0f / 720);
  p = p * r + splat(1.0f / 120);
  p = p * r + splat(1.0f / 24);
  p = p * r + splat(1.0f / 6);
  p = p * r + splat(0.5f);
  p = p * r + splat(1.0f);
  p = p * r + splat(1.0f);
  const IntLanes exponent = (__builtin_convertvector(n, IntLanes) + 127) << 23;
  Lanes scale;
  std::memcpy(&scale, &exponent, sizeof(scale));
  const Lanes value = p * scale;
  return keep ? value : splat(0.0f);
}

CADRE_INLINE RowSummary summarize_body(std::span<const float> logits) {
  const float infinity = std::numeric_limits<float>::infinity();
  Lanes best = splat(-infinity);
  IntLanes bad = {};
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const Lanes x = load(logits.data() + i);
    best = x > best ? x : best;
    bad |= !(x < infinity);
  }
  RowSummary out{.best = -infinity};
  for (size_t lane = 0; lane < kLanes; ++lane) {
    out.best = best[lane] > out.best ? best[lane] : out.best;
    if (bad[lane]) out.is_finite = false;
  }
  for (; i < logits.size(); ++i) {
    out.best = logits[i] > out.best ? logits[i] : out.best;
    if (!(logits[i] < infinity)) out.is_finite = false;
  }
  return out;
}

CADRE_INLINE double sum_weights_body(std::span<const float> logits, float best, float scale) {
  // Floats are added up over short stretches only, then in double: 64 terms lose at most a few units in the last place.
  constexpr size_t kStretch = 8 * kLanes;
  double total = 0;
  size_t i = 0;
  for (; i + kStretch <= logits.size(); i += kStretch) {
    Lanes sum = {};
    for (size_t j = 0; j < kStretch; j += kLanes)
      sum += exp_lanes((load(logits.data() + i + j) - splat(best)) * splat(scale));
    total += ((double{sum[0]} + double{sum[1]}) + (double{sum[2]} + double{sum[3]})) +
             ((double{sum[4]} + double{sum[5]}) + (double{sum[6]} + double{sum[7]}));
  }
  for (; i < logits.size(); ++i) total += double{exp_lanes(splat((logits[i] - best) * scale))[0]};
  return total;
}

CADRE_INLINE void fill_weights_body(std::span<const float> logits, float best, float scale, float* out) {
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const Lanes weights = exp_lanes((load(logits.data() + i) - splat(best)) * splat(scale));
    std::memcpy(out + i, &weights, sizeof(weights));
  }
  for (; i < logits.size(); ++i) out[i] = exp_lanes(splat((logits[i] - best) * scale))[0];
}

CADRE_INLINE bool any_above_body(std::span<const float> logits, float limit) {
  IntLanes any = {};
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) any |= load(logits.data() + i) > splat(limit);
  for (size_t lane = 0; lane < kLanes; ++lane)
    if (any[lane]) return true;
  for (; i < logits.size(); ++i)
    if (logits[i] > limit) return true;
  return false;
}

CADRE_AVX2 RowSummary summarize_avx2(std::span<const float> logits) { return summarize_body(logits); }
CADRE_AVX2 double sum_weights_avx2(std::span<const float> logits, float best, float scale) {
  return sum_weights_body(logits, best, scale);
}
CADRE_AVX2 void fill_weights_avx2(std::span<const float> logits, float best, float scale, float* out) {
  fill_weights_body(logits, best, scale, out);
}
CADRE_AVX2 bool any_above_avx2(std::span<const float> logits, float limit) { return any_above_body(logits, limit); }

}  // namespace

RowSummary summarize(std::span<const float> logits) {
  RowSummary out = has_avx2() ? summarize_avx2(logits) : summarize_body(logits);
  if (!out.is_finite) return out;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] != out.best) continue;
    out.best_id = static_cast<int32_t>(i);
    break;
  }
  return out;
}

float exp_nonpositive(float x) { return exp_lanes(splat(x))[0]; }

double sum_weights(std::span<const float> logits, float best, float scale) {
  return has_avx2() ? sum_weights_avx2(logits, best, scale) : sum_weights_body(logits, best, scale);
}

void fill_weights(std::span<const float> logits, float best, float scale, float* out) {
  has_avx2() ? fill_weights_avx2(logits, best, scale, out) : fill_weights_body(logits, best, scale, out);
}

bool any_above(std::span<const float> logits, float limit) {
  return has_avx2() ? any_above_avx2(logits, limit) : any_above_body(logits, limit);
}

}  // namespace cadre
