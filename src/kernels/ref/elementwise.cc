#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>

namespace cadre {

void rms_norm_ref(const float* x, const float* weight, float eps, int64_t n, float* out) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i] * scale * weight[i]);
}

void silu_mul_ref(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i]);
}

void gpt_oss_swiglu_ref(const float* gate, const float* up, float limit, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = std::min(gate[i], limit), u = std::clamp(up[i], -limit, limit);
    out[i] = static_cast<float>((u + 1.0) * g / (1.0 + std::exp(-1.702 * g)));
  }
}

}  // namespace cadre
