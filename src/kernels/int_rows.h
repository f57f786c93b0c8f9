// Rows of float32 as integers -127 to 127, for products with integer weights: one scale for each block of K (64 inputs with kInt8, 32
// with kInt4), rounded to the nearest, ties to even. The same integers on every machine, so that products are too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/packed_matrix.h"

namespace cadre {

// A quantised row: int8 values up to whole blocks (zeros beyond K), then for each block a float scale, then for each block an int32:
// the sum of its values times the offset of weights (128 or 8), which a product of offset weights has too much.
struct IntRowLayout {
  IntRowLayout(WeightFormat weights, int64_t k)
      : block(block_k(weights)), num_blocks((k + block - 1) / block), scales_offset(num_blocks * block), sums_offset(scales_offset + num_blocks * 4),
        bytes((sums_offset + num_blocks * 4 + 63) / 64 * 64) {}
  int64_t block, num_blocks, scales_offset, sums_offset, bytes;
};

void quantise_row(WeightFormat weights, const float* x, int64_t k, std::byte* out);
// x: [num_rows, stride] floats; out: num_rows of IntRowLayout::bytes.
void quantise_rows(WeightFormat weights, const float* x, int64_t stride, int64_t num_rows, int64_t k, std::byte* out, ThreadPool& pool);

// The same into the pool's scratch memory, for products with these weights.
const std::byte* quantise_into_scratch(const PackedLayout& weights, const float* x, int64_t stride, int64_t num_rows, ThreadPool& pool);

}  // namespace cadre
