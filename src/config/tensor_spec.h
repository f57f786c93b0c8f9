// Every tensor a checkpoint of a configuration holds: published names, shapes and stored types. The one list behind
// loading checks, dummy weights, `cadre inspect` and the planner's weight bytes.
#pragma once

#include <string>
#include <vector>

#include "config/model_config.h"
#include "tensor/tensor.h"

namespace cadre {

enum class TensorKind { kEmbedding, kAttention, kDenseMlp, kRouter, kRoutedExpert, kSharedExpert, kNorm, kHead, kNextN };

struct TensorSpec {
  std::string name;
  TensorKind kind;
  DType dtype;      // as a checkpoint of this configuration stores it
  Shape shape;
  int64_t fan_in;   // inputs summed into one output; 0 for norms, biases and scales (dummy weights scale by it)
  bool is_scale = false;  // a quantisation scale: not a parameter
  int64_t parameters() const;  // logical parameters (an MXFP4 byte holds two), 0 for scales
};

std::vector<TensorSpec> checkpoint_tensors(const ModelConfig& config);

std::string_view tensor_kind_name(TensorKind kind);

}  // namespace cadre
