// Products of quantised rows with integer weights, for kernels/gemm.h alone.
#pragma once

#include "kernels/gemm.h"

namespace cadre {

// 32 columns of y for num_rows rows of x.quantised. initial: 32 floats that y starts from.
void int_gemm_panel(const PackedView& w, int64_t panel, const float* initial, RowsIn x, int64_t num_rows, float* y, int64_t y_stride);

}  // namespace cadre
