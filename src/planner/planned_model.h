// A model as the planner weighs it: the classes of its tensors (parallel/rank_bytes.h) and the type its weights are served in.
// What the engine stores is counted by the engine's own functions; formats that it does not load have theirs here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/rank_bytes.h"

namespace cadre::planner {

// kCheckpoint: as the configuration says. The others as they are published: kFp8 128x128 blocks with a float scale; kMxfp4 4 bits
// and a byte a block of 32; kNvfp4 4 bits, a byte a block of 16 and two floats a matrix; kInt8 a float an output; kInt4 a bfloat16
// a group of 128. kMxfp4 and kNvfp4 leave attention as it is; all leave embedding, head, router and norms.
enum class WeightType : uint8_t { kCheckpoint, kBF16, kFp8, kMxfp4, kNvfp4, kInt8, kInt4 };
std::string_view weight_type_name(WeightType type);
// Throws Error with the nearest names. "auto" is kCheckpoint.
WeightType parse_weight_type(std::string_view name);

// Bytes of a matrix [n, k] in a type, scales included.
int64_t matrix_bytes(WeightType type, int64_t n, int64_t k);

class PlannedModel {
 public:
  // Throws Error where the type and the model do not go together.
  PlannedModel(const ModelConfig& config, WeightType type);

  const ModelConfig& config() const { return config_; }
  WeightType type() const { return type_; }
  // Served bytes of one rank, and its parameters (replicas counted as often as they are there).
  RankBytes rank_bytes(const Layout& layout, const ExpertPlacement& placement, int world_rank) const;
  // What this engine's memory takes of them (parallel/allocated_bytes.h); types that it does not load count as rank_bytes().
  RankBytes rank_allocated(const Layout& layout, const ExpertPlacement& placement, int world_rank) const;
  RankBytes rank_parameters(const Layout& layout, const ExpertPlacement& placement, int world_rank) const;
  // Of the whole model, everything once; the layers that predict further tokens apart.
  RankBytes bytes() const;
  RankBytes parameters() const;
  int64_t next_token_bytes() const { return next_token_bytes_; }
  int64_t next_token_parameters() const { return next_token_parameters_; }
  // Of one routed expert over all layers.
  int64_t expert_bytes() const;
  // Parameters that one token meets: everything but the experts it did not choose. (The embedding counts, as published
  // "activated" figures have it.)
  int64_t active_parameters() const;

 private:
  void add_next_token_layers();
  int64_t served_slice_bytes(const TensorClass& c, const Slice& slice) const;
  ModelConfig config_;  // with the quantisation that the classes are of
  WeightType type_;
  bool converts_ = false;  // classes are bfloat16 and matrices are converted
  std::vector<TensorClass> classes_;
  int64_t next_token_bytes_ = 0, next_token_parameters_ = 0;
};

// The placement a deployment starts with; empty for dense models.
ExpertPlacement initial_placement(const ModelConfig& config, const Layout& layout);

}  // namespace cadre::planner
