#include "models/quantization.h"

#include "base/error.h"
#include "parallel/rank_bytes.h"

namespace cadre {

std::optional<WeightFormat> parse_quantization(std::string_view name) {
  if (name == "none") return std::nullopt;
  if (name == "float32") return WeightFormat::kF32;
  if (name == "bfloat16") return WeightFormat::kBF16;
  if (name == "int8") return WeightFormat::kInt8;
  if (name == "int4") return WeightFormat::kInt4;
  throw invalid_input("--quantization: expected none, float32, bfloat16, int8 or int4, found {}; give one of them", quoted(name));
}

void check_quantization(const ModelConfig& config, const Layout& layout, WeightFormat format, DType activation_dtype) {
  if (activation_dtype != DType::kF32) throw unsupported("--quantization: expected activations in float32, found fp8, which is for weights as they are stored; leave one of the two out");
  if (!is_int(format)) return;
  constexpr int kInputs = 1;  // dimension of a stored weight
  for (const TensorSpec& spec : checkpoint_tensors(config)) {
    if (spec.shape.size() != 2 || spec.kind == TensorKind::kNextN) continue;
    const TensorShard shard = tensor_shard_of(spec, config);
    if (shard.by == ShardBy::kNothing || shard.dim != kInputs) continue;
    for (int rank = 0; rank < layout.world; ++rank) {
      const Slice inputs = shard_slice(shard, spec, config, layout, rank);
      if (inputs.first % block_k(format) == 0) continue;
      throw unsupported("--quantization: expected every rank's inputs of {} to begin on a block of {} that share a scale, found rank {} at {} of {}; use fewer ranks for this part "
                        "(data parallelism, whole experts) or leave it out",
                        spec.name, block_k(format), rank, inputs.first, spec.shape[kInputs]);
    }
  }
}

}  // namespace cadre
