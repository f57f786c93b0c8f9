#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/int_rows.h"
#include "kernels/ref/int_rows.h"

namespace cadre {

int32_t weight_offset(WeightFormat weights) { return weights == WeightFormat::kInt8 ? 128 : 8; }

void quantise_row_ref(WeightFormat weights, const float* x, int64_t k, std::byte* out) {
  const IntRowLayout layout(weights, k);
  int8_t* values = reinterpret_cast<int8_t*>(out);
  for (int64_t b = 0; b < layout.num_blocks; ++b) {
    const int64_t first = b * layout.block, count = std::min(layout.block, k - first);
    float most = 0, scale;
    bool is_finite = true;
    for (int64_t i = 0; i < count; ++i) {
      is_finite &= std::isfinite(x[first + i]);
      most = std::max(most, std::abs(x[first + i]));
    }
    int32_t sum = 0;
    std::memset(values + first, 0, static_cast<size_t>(layout.block));
    if (!is_finite) {
      scale = std::numeric_limits<float>::quiet_NaN();
    } else if (most < kLeastQuantised) {
      scale = 0;
    } else {
      scale = most / kLargestInput;
      const float inverse = kLargestInput / most;
      for (int64_t i = 0; i < count; ++i) {
        values[first + i] = static_cast<int8_t>(std::nearbyint(x[first + i] * inverse));
        sum += values[first + i];
      }
    }
    sum *= weight_offset(weights);
    std::memcpy(out + layout.scales_offset + b * 4, &scale, 4);
    std::memcpy(out + layout.sums_offset + b * 4, &sum, 4);
  }
}

}  // namespace cadre
