// Where the parts of a packed weight matrix lie, and so how many bytes it takes: for the kernels that fill and read it
// (kernels/packed_matrix.h) and for whoever counts memory before it is there.
#pragma once

#include <cstdint>
#include <optional>

#include "tensor/dtype.h"

namespace cadre {

enum class WeightFormat : uint8_t { kF32, kF16, kBF16, kFp8Block, kMxfp4, kInt8, kInt4 };

inline constexpr int64_t kPanelColumns = 32;
// Inputs whose products are summed before the scale is applied and the sum joins the output: 128 for all formats but
// MXFP4, whose scales cover 32. This grouping is part of the definition of the result (kernels/gemm.h).
inline constexpr int64_t kBlockK = 128;
inline constexpr int64_t kMxBlockK = 32;
inline constexpr int64_t kFp8BlockN = 128;

inline constexpr int64_t kInt8BlockK = 64, kInt4BlockK = 32;

constexpr bool is_int(WeightFormat f) { return f == WeightFormat::kInt8 || f == WeightFormat::kInt4; }
constexpr int64_t block_k(WeightFormat f) {
  switch (f) {
    case WeightFormat::kMxfp4: return kMxBlockK;
    case WeightFormat::kInt8: return kInt8BlockK;
    case WeightFormat::kInt4: return kInt4BlockK;
    default: return kBlockK;
  }
}

// Where the parts of a packed matrix lie inside its memory; a value computed from (format, n, k) alone.
// data: [panels][k][32] elements (MXFP4: 16 bytes per k, low nibbles columns 0-15, high nibbles 16-31).
// kInt8: uint8 [panels][k / 4][32][4], 128 + the integer; kInt4: [panels][k / 8][32][4 bytes], 8 + the integer of inputs 0-3 in the
// low nibbles and of 4-7 in the high ones; both up to a whole block of k, with zeros there.
// scales: FP8 float [ceil(n / 128)][ceil(k / 128)]; MXFP4 e8m0 [panels][k / 32][32]; kInt8 and kInt4 bfloat16
// [panels][blocks of k][32].
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

// The format that a stored type is packed in, if it has one.
constexpr bool is_packable(DType t) { return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16 || t == DType::kF8E4M3; }
constexpr WeightFormat packed_format(DType t) {
  switch (t) {
    case DType::kF16: return WeightFormat::kF16;
    case DType::kBF16: return WeightFormat::kBF16;
    case DType::kF8E4M3: return WeightFormat::kFp8Block;
    default: return WeightFormat::kF32;
  }
}

// What a matrix that is stored so becomes when it is loaded: MXFP4 stays, it has fewer bits already.
constexpr WeightFormat loaded_format(WeightFormat stored, std::optional<WeightFormat> quantization) {
  return quantization && stored != WeightFormat::kMxfp4 ? *quantization : stored;
}

}  // namespace cadre
