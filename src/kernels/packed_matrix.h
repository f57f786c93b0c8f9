// A weight matrix [N, K] (y = W x) laid out for the micro-kernels: panels of 32 output columns, inside a panel the 32
// values of one k together. The stored type is kept (float32, float16, bfloat16, FP8 e4m3, MXFP4); only the order
// changes. kInt8 and kInt4 are quantised here, from any of those: symmetric, one bfloat16 scale for 64 or 32 inputs of a
// column, 8.25 and 4.5 bits a weight. Views do not own; PackedMatrix does.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/packed_layout.h"
#include "tensor/tensor.h"

namespace cadre {

struct PackedView {
  PackedLayout layout;
  const std::byte* base = nullptr;
  int64_t n() const { return layout.n; }
  int64_t k() const { return layout.k; }
  const std::byte* panel(int64_t p) const { return base + p * layout.panel_bytes; }
  const std::byte* scales() const { return base + layout.scales_offset; }
};

// What a matrix is packed from: element (n, k) at data[n * stride_n + k * stride_k], strides in elements.
// kFp8Block: fp8_scales [.., scale_columns], one per 128 x 128 block of (n + n_offset, k).
// kMxfp4: data are blocks of 32 values (16 bytes, value 2i in the low nibble of byte i), row n at n * stride_n bytes;
// mx_scales one byte per block, row n at n * mx_scale_stride.
struct PackSource {
  WeightFormat format = WeightFormat::kF32;
  const std::byte* data = nullptr;
  int64_t n = 0, k = 0;
  int64_t stride_n = 0, stride_k = 1;
  const float* fp8_scales = nullptr;
  int64_t scale_columns = 0;
  const uint8_t* mx_scales = nullptr;
  int64_t mx_scale_stride = 0;
};

// Packs into dst (layout(source).total_bytes, 64-byte aligned). Columns beyond n are zero.
void pack(const PackSource& source, std::byte* dst);
// The same into another format, of what the source's values are, scales applied: kF32, kBF16 (to the nearest), kInt8 or kInt4.
// kInt8: scale = largest magnitude / 127, rounded up to bfloat16. kInt4: the scale, of some near the largest magnitude / 8, with the
// least squared error.
void pack_as(WeightFormat format, const PackSource& source, std::byte* dst);

// One element of a packed matrix as float, scale applied.
float packed_element(const PackedView& w, int64_t n, int64_t k);

// Of the integer formats: an element without its scale, and the scale of a block of k.
int32_t packed_integer(const PackedView& w, int64_t n, int64_t k);
float packed_scale(const PackedView& w, int64_t n, int64_t block);

// Row n of W as float32: out[0..k). This is how an embedding is looked up.
void unpack_row(const PackedView& w, int64_t n, float* out);

class PackedMatrix {
 public:
  PackedMatrix() = default;
  explicit PackedMatrix(const PackSource& source) : PackedMatrix(source, source.format) {}
  PackedMatrix(const PackSource& source, WeightFormat format);
  const PackedView& view() const { return view_; }
  bool empty() const { return view_.base == nullptr; }
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }

 private:
  Buffer memory_;
  PackedView view_;
};

}  // namespace cadre
