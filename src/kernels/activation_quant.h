// Activations rounded to FP8 e4m3 with one float scale for each 128 values of a row, as block-FP8 checkpoints quantise the
// inputs of their matrix products (`activation_scheme: dynamic`; DeepSeek-V3 report, section 3.3). Values stay float32:
// a product over them is the FP8 product up to float32 rounding. To the bit the same in scalar and vector code, and rounding
// what is rounded changes no bit, so a row may cross an FP8 wire on its way.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace cadre {

inline constexpr int64_t kActivationGroup = 128;

// Of one group, n <= 128: its largest magnitude / 448, so that the largest value uses the whole range. At least 2^-126:
// scales below would themselves be rounded coarsely, and rounding twice would then differ from rounding once. NaN when a
// value is not finite.
float fp8_group_scale(const float* x, int64_t n);

// out[i] = e4m3(x[i] / scale) * scale, by groups from x[0] on; the last may be shorter. A group with a value that is not
// finite becomes NaN. out may be x.
void round_to_fp8(const float* x, int64_t n, float* out);

// Rows of n values, spread over the pool.
inline void round_rows_to_fp8(const float* x, int64_t num_rows, int64_t n, float* out, ThreadPool& pool) {
  pool.parallel_for(num_rows, [&](int64_t row, int) { round_to_fp8(x + row * n, n, out + row * n); });
}

// The definition, scalar, for tests.
float fp8_group_scale_ref(const float* x, int64_t n);
void round_to_fp8_ref(const float* x, int64_t n, float* out);

}  // namespace cadre
