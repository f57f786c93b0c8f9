// The scalar definition of quantise_row(), for tests and gemm_ref.
#pragma once

#include "kernels/int_rows.h"

namespace cadre {

// Blocks whose largest magnitude is below are all zeros: the reciprocal of their scale would not be finite.
inline constexpr float kLeastQuantised = 1e-30f;
inline constexpr float kLargestInput = 127;
int32_t weight_offset(WeightFormat weights);
void quantise_row_ref(WeightFormat weights, const float* x, int64_t k, std::byte* out);

}  // namespace cadre
