// Where weights come from: a checkpoint on disk (memory-mapped safetensors) or seeded random ones for any
// configuration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"
#include "config/tensor_spec.h"
#include "tensor/tensor.h"

namespace cadre {

// What a header says of a tensor; costs no byte of it.
struct TensorInfo {
  DType dtype = DType::kF32;
  Shape shape;
};

// May be used from several threads; a tensor that one thread releases must not be in use by another.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool has(std::string_view name) const = 0;
  // Throws Error when there is no such tensor.
  virtual TensorInfo info(std::string_view name) const = 0;
  // The stored tensor, aligned to its element size; its bytes stay valid until release(name). Throws Error when there
  // is no such tensor.
  virtual StoredTensor tensor(std::string_view name) = 0;
  // The bytes are not needed any more: they leave resident memory.
  virtual void release(std::string_view name) = 0;
  virtual std::vector<std::string> names() const = 0;
  // Bytes of all tensors together.
  virtual uint64_t total_bytes() const = 0;
};

// Opens model.safetensors, or the shards that model.safetensors.index.json names. Every header is checked against its
// file (offsets, overlaps, holes, element sizes, duplicate names) before anything is used. Throws Error.
std::unique_ptr<WeightSource> open_checkpoint(const std::filesystem::path& model_dir);

// Checks names, shapes and types of a source against checkpoint_tensors(config): missing, unexpected and misshapen
// tensors are refused by name. Unquantised tensors and FP8 scales may be BF16, F16 or F32 whatever the configuration
// says. Tensors of multi-token-prediction layers, the head of a tied model, and known non-parameters
// (rotary_emb.inv_freq) may be absent or present.
void check_tensors(const WeightSource& source, const ModelConfig& config);

// Seeded random weights of the right shapes and stored types; the same seed gives the same bytes. Each tensor is made
// when asked for and freed by release(). Values are as a trained model's in size: projections keep the variance of what
// they multiply, norms are 1.
std::unique_ptr<WeightSource> make_dummy_weights(const ModelConfig& config, uint64_t seed);

}  // namespace cadre
