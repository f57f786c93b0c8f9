#include "kernels/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/ref/int_rows.h"

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

void int_gemm_ref(const PackedView& w, const float* bias, RowsIn x, int64_t num_rows, RowsOut y) {
  const WeightFormat format = w.layout.format;
  const IntRowLayout layout(format, w.k());
  std::vector<std::byte> row(static_cast<size_t>(layout.bytes));
  for (int64_t m = 0; m < num_rows; ++m) {
    quantise_row_ref(format, x.row(m), w.k(), row.data());
    const int8_t* values = reinterpret_cast<const int8_t*>(row.data());
    for (int64_t n = 0; n < w.n(); ++n) {
      float sum = bias ? bias[n] : 0.0f;
      for (int64_t b = 0; b < layout.num_blocks; ++b) {
        int64_t s = 0;
        for (int64_t k = b * layout.block; k < std::min(w.k(), (b + 1) * layout.block); ++k) s += values[k] * packed_integer(w, n, k);
        float input_scale;
        std::memcpy(&input_scale, row.data() + layout.scales_offset + b * 4, 4);
        sum = std::fma(static_cast<float>(s) * packed_scale(w, n, b), input_scale, sum);
      }
      y.row(m)[n] = sum;
    }
  }
}

}  // namespace

void gemm_ref(const PackedView& w, const float* bias, RowsIn x, int64_t num_rows, RowsOut y) {
  if (is_int(w.layout.format)) return int_gemm_ref(w, bias, x, num_rows, y);
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
