// y = W x for rows of float32 activations against a packed weight matrix.
//
// The result is defined to the bit, the same for any number of rows, threads and vector width:
//   y[n] = bias[n] (or 0); for each block of k in order: s = 0; for k in the block in order: s = fma(x[k], w[n,k], s);
//   y[n] = fma(s, scale[n, block], y[n])          (scale 1 for float formats; FP8 and MXFP4 values enter unscaled)
// kInt8 and kInt4 take inputs quantised (kernels/int_rows.h); per block of k, with exact integer sums s of integer inputs times integer
// weights: y[n] = fma(float(s) * scale[n, block], input scale[row, block], y[n]).
// kernels/ref states it in scalar code, kernels/cpu computes it 32 columns at a time. Machines without fused
// multiply-add (before AVX2) round each product: results are then close, not equal.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/packed_matrix.h"

namespace cadre {

// M rows of K float32 each: row m at base + (index ? index[m] : m) * stride. `quantised`, for panels of integer formats: the same rows
// as quantise_rows() makes them, in its stride.
struct RowsIn {
  const float* base = nullptr;
  int64_t stride = 0;
  const int32_t* index = nullptr;
  const std::byte* quantised = nullptr;
  const float* row(int64_t m) const { return base + (index ? index[m] : m) * stride; }
  // Rows from m on.
  RowsIn from(int64_t m, int64_t quantised_stride) const {
    if (index) return {base, stride, index + m, quantised};
    return {base + m * stride, stride, nullptr, quantised ? quantised + m * quantised_stride : nullptr};
  }
};

// M rows of float32, row m at base + m * stride; base stands for output column first_column.
struct RowsOut {
  float* base = nullptr;
  int64_t stride = 0;
  int64_t first_column = 0;
  float* row(int64_t m) const { return base + m * stride; }
};

// Columns [32 panel, 32 panel + 32) of y for num_rows rows; writes only columns below N. bias: [N] or null.
// One panel is the unit of work that is spread over threads. Integer formats need x.quantised.
void gemm_panel(const PackedView& w, int64_t panel, const float* bias, RowsIn x, int64_t num_rows, RowsOut y);

// All panels, spread over the pool; integer formats quantise x first, into the pool's scratch memory. x: [num_rows, K], y: [num_rows, N]; empty for num_rows == 0.
void gemm(const PackedView& w, const float* bias, RowsIn x, int64_t num_rows, RowsOut y, ThreadPool& pool);

// The definition, scalar, for tests.
void gemm_ref(const PackedView& w, const float* bias, RowsIn x, int64_t num_rows, RowsOut y);

}  // namespace cadre
