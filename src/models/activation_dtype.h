// What may be computed with activations of which type.
#pragma once

#include "config/model_config.h"
#include "parallel/layout.h"
#include "tensor/dtype.h"

namespace cadre {

// kF32 always goes. kF8E4M3 needs weights in FP8 blocks, and a layout that cuts no group of 128 inputs of a product: such a
// group's parts would get scales of their own, and answers would depend on the layout. Throws Error with the reason. Reads no
// weights.
void check_activation_dtype(const ModelConfig& config, const Layout& layout, DType activation_dtype);

}  // namespace cadre
