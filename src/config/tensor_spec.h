// Every tensor a checkpoint of a configuration holds: published names, shapes and stored types. The one list behind
// loading checks, dummy weights, `cadre inspect` and the planner's weight bytes.
#pragma once

#include <string>
#include <vector>

#include "config/model_config.h"
#include "tensor/tensor.h"

namespace cadre {

enum class TensorKind {
  kEmbedding,
  kAttention,
  kDenseMlp,
  kRouter,
  kRoutedExpert,
  kSharedExpert,
  kNorm,
  kHead,
  kNextN
};

struct TensorSpec {
  std::string name;
  TensorKind kind;
  DType dtype;  // as a checkpoint of this configuration stores it
  Shape shape;
  int64_t fan_in;         // inputs summed into one output; 0 for norms, biases and scales (dummy weights scale by it)
  bool is_scale = false;  // a quantisation scale: not a parameter
  bool required = true;   // false: may be missing from a checkpoint (multi-token-prediction layers)
  int64_t parameters() const;  // logical parameters (an MXFP4 byte holds two), 0 for scales
  int64_t bytes() const;
};

// In checkpoint order, layer by layer. The head of a model with tied embeddings is not listed; the layers that predict
// further tokens (kNextN) are, as not required.
std::vector<TensorSpec> checkpoint_tensors(const ModelConfig& config);

// The tensors of all routed experts of sparse layer `layer_idx`, scales and biases included.
std::vector<TensorSpec> routed_expert_tensors(const ModelConfig& config, int64_t layer_idx);

std::string_view tensor_kind_name(TensorKind kind);

}  // namespace cadre
