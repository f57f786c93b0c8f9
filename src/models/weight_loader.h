// From stored tensors to packed weights: one place that knows how FP8 scales, MXFP4 blocks and float types are stored.
// Each tensor leaves resident memory as soon as it is packed.
#pragma once

#include <string>
#include <vector>

#include "attention/mla.h"
#include "config/model_config.h"
#include "kernels/linear.h"
#include "moe/experts.h"
#include "weights/weight_source.h"

namespace cadre {

class WeightLoader {
 public:
  WeightLoader(WeightSource& source, const ModelConfig& config) : source_(source), config_(config) {}

  const ModelConfig& config() const { return config_; }
  bool has(const std::string& name) const { return source_.has(name); }

  // A tensor of any float type as float32; must have `count` elements.
  std::vector<float> vector(const std::string& name, int64_t count);
  // prefix.weight [n, k] (and its FP8 scales); prefix.bias [n] when with_bias.
  Linear linear(const std::string& prefix, int64_t n, int64_t k, bool with_bias = false);
  // The whole matrix prefix.weight [n, k] as float32, scales applied.
  std::vector<float> dequantized(const std::string& prefix, int64_t n, int64_t k);
  // kv_b_proj [heads * (nope + v), rank] as both forms of attention need it, per head.
  void latent_projections(const std::string& prefix, MlaWeights& weights);
  GatedMlp gated_mlp(const std::string& gate, const std::string& up, const std::string& down, int64_t intermediate);

  // Format of routed expert matrices named by one of them (prefix of gate_proj, w1 ...).
  WeightFormat format_of(const std::string& prefix);
  // prefix.weight [n, k] straight into packed memory of `layout`.
  void pack_into(const std::string& prefix, const PackedLayout& layout, std::byte* dst);
  // gpt-oss: fused, interleaved expert tensors of a layer ("...mlp.experts").
  Experts gpt_oss_experts(const std::string& prefix);

  GatedActivation activation() const { return {config_.activation, static_cast<float>(config_.swiglu_limit)}; }

 private:
  struct Source;
  Source open(const std::string& prefix, int64_t n, int64_t k);
  void release(const Source& source);
  WeightSource& source_;
  const ModelConfig& config_;
};

}  // namespace cadre
