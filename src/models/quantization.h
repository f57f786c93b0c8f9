// Weights that are converted when they are loaded: --quantization.
#pragma once

#include <optional>
#include <string_view>

#include "config/model_config.h"
#include "kernels/packed_matrix.h"
#include "parallel/layout.h"
#include "tensor/dtype.h"

namespace cadre {

// none (nullopt), float32, bfloat16, int8, int4. Throws Error with the names there are.
std::optional<WeightFormat> parse_quantization(std::string_view name);

// Throws Error where a rank's inputs of a product would not begin with a block under one scale, so that no layout changes what a weight
// becomes; and with activations that are rounded to FP8, which the quantised inputs of integer weights are not.
void check_quantization(const ModelConfig& config, const Layout& layout, WeightFormat format, DType activation_dtype);

}  // namespace cadre
