// From stored tensors to packed weights: one place that knows how FP8 scales, MXFP4 blocks and float types are stored.
// Each tensor leaves resident memory as soon as it is packed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention/mla.h"
#include "config/model_config.h"
#include "kernels/linear.h"
#include "moe/experts.h"
#include "parallel/expert_placement.h"
#include "parallel/shard.h"
#include "weights/weight_source.h"

namespace cadre {

class WeightLoader {
 public:
  // placement: of every sparse layer unless place_experts() says another; empty for dense models. rounds_activations: products whose weight is stored in FP8 blocks
  // take inputs rounded to FP8.
  // quantization: what weights of matrix products become, but those of routers and embeddings, latent projections and MXFP4.
  WeightLoader(WeightSource& source, const ModelConfig& config, const Shard& shard, ExpertPlacement placement, bool rounds_activations, std::optional<WeightFormat> quantization = {})
      : source_(source), config_(config), shard_(shard), placement_(std::move(placement)), rounds_activations_(rounds_activations), quantization_(quantization) {}

  // Of the layers that are loaded from now on.
  void place_experts(ExpertPlacement placement) { placement_ = std::move(placement); }

  const ModelConfig& config() const { return config_; }
  const Shard& shard() const { return shard_; }
  // The experts of this rank's slots, kEmptySlot where there is none.
  std::span<const int32_t> experts() const { return placement_.experts_of(shard_.ep_rank); }
  bool has(const std::string& name) const { return source_.has(name); }

  // A tensor of any float type as float32; must have `count` elements.
  std::vector<float> vector(const std::string& name, int64_t count);
  // prefix.weight [n, k] (and its FP8 scales); prefix.bias [n] when with_bias.
  Linear linear(const std::string& prefix, int64_t n, int64_t k, bool with_bias = false);
  // The same, never quantised.
  Linear linear_as_stored(const std::string& prefix, int64_t n, int64_t k, bool with_bias = false);
  // Outputs `rows` of it (column parallelism), with their biases.
  Linear linear_rows(const std::string& prefix, int64_t n, int64_t k, Slice rows, bool with_bias = false);
  // Its inputs `columns` (row parallelism): the parts' outputs add up. The bias belongs to the part with column 0.
  Linear linear_columns(const std::string& prefix, int64_t n, int64_t k, Slice columns, bool with_bias = false);
  // This rank's heads of kv_b_proj [heads * (nope + v), rank] as both forms of attention need them.
  void latent_projections(const std::string& prefix, MlaWeights& weights);
  // part: of the width.
  GatedMlp gated_mlp(const std::string& gate, const std::string& up, const std::string& down, int64_t intermediate, const Part& part);

  // Layout of this rank's part of the routed experts, named by one of their gates.
  ExpertLayout expert_layout(const std::string& gate, bool has_bias);
  // prefix.weight [n, k], rows and columns of it, straight into packed memory of `layout`.
  void pack_into(const std::string& prefix, int64_t n, int64_t k, Slice rows, Slice columns, const PackedLayout& layout, std::byte* dst);
  // gpt-oss: fused, interleaved expert tensors of a layer ("...mlp.experts"); this rank's slots.
  Experts gpt_oss_experts(const std::string& prefix);

  GatedActivation activation() const { return {config_.activation, static_cast<float>(config_.swiglu_limit)}; }

 private:
  struct Source;
  Source open(const std::string& prefix, int64_t n, int64_t k);
  void release(const Source& source);
  // Whether products with this weight round their input.
  bool rounds_input(const Source& source) const;
  static PackSource part_of(const Source& source, Slice rows, Slice columns, bool as_float, std::vector<float>* floats);
  ExpertLayout expert_layout(WeightFormat format, bool has_bias) const;
  WeightSource& source_;
  const ModelConfig& config_;
  const Shard shard_;
  ExpertPlacement placement_;
  const bool rounds_activations_;
  const std::optional<WeightFormat> quantization_;
};

}  // namespace cadre
