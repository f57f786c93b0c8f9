#include "kernels/gemm.h"

#include <algorithm>
#include <cmath>

namespace cadre {
namespace {

// Value without its block scale, and the scale: packed_element() is their product.
float unscaled(const PackedView& w, int64_t n, int64_t k) {
  const int64_t c = n % kPanelColumns;
  const std::byte* panel = w.panel(n / kPanelColumns);
  if (w.layout.format == WeightFormat::kFp8Block) return f8e4m3_to_float(static_cast<uint8_t>(panel[k * kPanelColumns + c]));
  if (w.layout.format == WeightFormat::kMxfp4) {
    const uint8_t byte = static_cast<uint8_t>(panel[k * 16 + c % 16]);
    return fp4_to_float(c < 16 ? byte & 15 : byte >> 4);
  }
  return packed_element(w, n, k);
}

float scale_of(const PackedView& w, int64_t n, int64_t block) {
  if (w.layout.format == WeightFormat::kFp8Block)
    return reinterpret_cast<const float*>(w.scales())[n / kFp8BlockN * w.layout.num_blocks_k() + block];
  if (w.layout.format == WeightFormat::kMxfp4)
    return e8m0_to_float(static_cast<uint8_t>(
        w.scales()[(n / kPanelColumns * w.layout.num_blocks_k() + block) * kPanelColumns + n % kPanelColumns]));
  return 1.0f;
}

}  // namespace

void gemm_ref(const PackedView& w, const float* bias, RowsIn x, int64_t num_rows, RowsOut y) {
  const int64_t step = block_k(w.layout.format);
  for (int64_t m = 0; m < num_rows; ++m) {
    for (int64_t n = 0; n < w.n(); ++n) {
      float sum = bias ? bias[n] : 0.0f;
      for (int64_t b = 0; b < w.layout.num_blocks_k(); ++b) {
        float s = 0;
        for (int64_t k = b * step; k < std::min(w.k(), (b + 1) * step); ++k) s = std::fma(x.row(m)[k], unscaled(w, n, k), s);
        sum = std::fma(s, scale_of(w, n, b), sum);
      }
      y.row(m)[n] = sum;
    }
  }
}

}  // namespace cadre
