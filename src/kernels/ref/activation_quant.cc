#include "kernels/activation_quant.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/dtype.h"

namespace cadre {

float fp8_group_scale_ref(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::abs(x[i]));
  }
  return std::max(largest / 448.0f, std::numeric_limits<float>::min());
}

void round_to_fp8_ref(const float* x, int64_t n, float* out) {
  for (int64_t first = 0; first < n; first += kActivationGroup) {
    const int64_t end = std::min(n, first + kActivationGroup);
    const float scale = fp8_group_scale_ref(x + first, end - first);
    for (int64_t i = first; i < end; ++i) out[i] = f8e4m3_to_float(float_to_f8e4m3(x[i] / scale)) * scale;
  }
}

}  // namespace cadre
