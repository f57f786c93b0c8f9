#include "models/activation_dtype.h"

#include "base/check.h"
#include "base/error.h"
#include "kernels/activation_quant.h"
#include "parallel/rank_bytes.h"

namespace cadre {
namespace {

std::string_view format_name(const ModelConfig& config) {
  switch (config.quant) {
    case WeightQuant::kNone: return "no quantisation";
    case WeightQuant::kFp8Block: return "FP8";
    case WeightQuant::kMxfp4: return "MXFP4";
  }
  return "";
}

}  // namespace

void check_activation_dtype(const ModelConfig& config, const Layout& layout, DType activation_dtype) {
  if (activation_dtype == DType::kF32) return;
  CADRE_CHECK(activation_dtype == DType::kF8E4M3, "activations of type {}", dtype_name(activation_dtype));
  if (config.quant != WeightQuant::kFp8Block)
    throw unsupported("--activation-dtype fp8: expected weights in FP8 blocks of 128x128, whose products ask for it, found {}; leave it at float32", format_name(config));
  if (config.has_power_of_two_scales)
    throw unsupported("--activation-dtype fp8: expected scales of activations in float, found scale_fmt ue8m0 (powers of two), which is not served yet; leave it at float32");
  constexpr int kInputs = 1;  // dimension of a stored weight
  for (const TensorSpec& spec : checkpoint_tensors(config)) {
    if (spec.dtype != DType::kF8E4M3 || spec.kind == TensorKind::kNextN) continue;
    const TensorShard shard = tensor_shard_of(spec, config);
    if (shard.by == ShardBy::kNothing || shard.dim != kInputs) continue;
    for (int rank = 0; rank < layout.world; ++rank) {
      const Slice inputs = shard_slice(shard, spec, config, layout, rank);
      if (inputs.first % kActivationGroup == 0) continue;
      throw unsupported("--activation-dtype fp8: expected every rank's inputs of {} to begin on a group of {} that share a scale, found rank {} at {} of {}; "
                        "use fewer ranks for this part (data parallelism, whole experts) or leave it at float32",
                        spec.name, kActivationGroup, rank, inputs.first, spec.shape[kInputs]);
    }
  }
}

}  // namespace cadre
