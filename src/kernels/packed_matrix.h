// A weight matrix [N, K] (y = W x) laid out for the micro-kernels: panels of 32 output columns, inside a panel the 32
// values of one k together. The stored type is kept (float32, float16, bfloat16, FP8 e4m3, MXFP4); only the order
// changes. Views do not own; PackedMatrix does.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace cadre {

enum class WeightFormat : uint8_t { kF32, kF16, kBF16, kFp8Block, kMxfp4 };

inline constexpr int64_t kPanelColumns = 32;
// Inputs whose products are summed before the scale is applied and the sum joins the output: 128 for all formats but
// MXFP4, whose scales cover 32. This grouping is part of the definition of the result (kernels/gemm.h).
inline constexpr int64_t kBlockK = 128;
inline constexpr int64_t kMxBlockK = 32;
inline constexpr int64_t kFp8BlockN = 128;

constexpr int64_t block_k(WeightFormat f) { return f == WeightFormat::kMxfp4 ? kMxBlockK : kBlockK; }

// Where the parts of a packed matrix lie inside its memory; a value computed from (format, n, k) alone.
// data: [panels][k][32] elements (MXFP4: 16 bytes per k, low nibbles columns 0-15, high nibbles 16-31).
// scales: FP8 float [ceil(n / 128)][ceil(k / 128)]; MXFP4 e8m0 [panels][k / 32][32].
struct PackedLayout {
  PackedLayout() = default;
  PackedLayout(WeightFormat format, int64_t n, int64_t k);
  WeightFormat format = WeightFormat::kF32;
  int64_t n = 0, k = 0;
  int64_t panel_bytes = 0;   // of data
  int64_t scales_offset = 0;
  int64_t total_bytes = 0;   // a multiple of 64
  int64_t num_panels() const { return (n + kPanelColumns - 1) / kPanelColumns; }
  int64_t num_blocks_k() const { return (k + block_k(format) - 1) / block_k(format); }
};

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

// One element of a packed matrix as float, scale applied.
float packed_element(const PackedView& w, int64_t n, int64_t k);

// Row n of W as float32: out[0..k). This is how an embedding is looked up.
void unpack_row(const PackedView& w, int64_t n, float* out);

class PackedMatrix {
 public:
  PackedMatrix() = default;
  explicit PackedMatrix(const PackSource& source);
  const PackedView& view() const { return view_; }
  bool empty() const { return view_.base == nullptr; }
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }

 private:
  Buffer memory_;
  PackedView view_;
};

}  // namespace cadre
