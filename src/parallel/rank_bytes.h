// Which part of each checkpoint tensor a rank holds, and what that comes to: bytes of weights as stored, bytes of KV cache
// a token. The one answer for `--explain`, the loader and the planner; it reads no file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "config/tensor_spec.h"
#include "parallel/expert_placement.h"
#include "parallel/layout.h"

namespace cadre {

// What ranks share a tensor by. Each kind of width is in values of the feed-forward's intermediate size.
enum class ShardBy : uint8_t { kNothing, kQueryHeads, kKvHeads, kDenseWidth, kSharedWidth, kExpertWidth };

struct TensorShard {
  static constexpr int64_t kNoExpert = -1, kAllExperts = -2, kEachExpert = -3;
  ShardBy by = ShardBy::kNothing;
  int dim = 0;           // which it is cut along
  int64_t per_unit = 1;  // values along dim of one head, or of one value of width
  int64_t block = 1;     // values along dim under one stored element (scales, MXFP4 blocks)
  int64_t expert = kNoExpert;  // kAllExperts: dimension 0 counts routed experts; kEachExpert: of a class, any of them
  bool operator==(const TensorShard&) const = default;
};
TensorShard tensor_shard_of(const TensorSpec& spec, const ModelConfig& config);

// The elements along shard.dim that a rank holds (of an expert: if it holds that expert at all). Elements under which two
// ranks have values, as FP8 scales of 128 rows can be, are in both slices.
Slice shard_slice(const TensorShard& shard, const TensorSpec& spec, const ModelConfig& config, const Layout& layout, int world_rank);

// Stored bytes of a rank, layers that predict further tokens left out (they are not loaded).
struct RankBytes {
  int64_t embedding = 0, head = 0, norms = 0, attention = 0, dense = 0, router = 0, shared = 0, routed = 0;
  int64_t total() const { return embedding + head + norms + attention + dense + router + shared + routed; }
  bool operator==(const RankBytes&) const = default;
};
int64_t& rank_bytes_of(RankBytes& bytes, TensorKind kind);
// [world]. The placement holds for all layers.
std::vector<RankBytes> rank_bytes(const ModelConfig& config, const Layout& layout, const ExpertPlacement& placement);

// Tensors that differ in nothing but layer and expert, and how many of them there are: a checkpoint of 90,000 tensors is a
// few dozen classes, so that a planner can weigh many layouts. Layers that predict further tokens are left out.
struct TensorClass {
  TensorSpec spec;           // one of them
  TensorShard shard;         // expert: kNoExpert, kAllExperts, kEachExpert, or one expert that is not as the others are
  std::string module, part;  // "q_proj", "weight"
  int64_t count = 0;         // of kEachExpert: for each expert
};
std::vector<TensorClass> tensor_classes(const ModelConfig& config);

// Bytes of a class's slice (along shard.dim; of one expert where there are experts) in whatever form is meant.
using SliceBytes = FunctionRef<int64_t(const TensorClass&, const Slice&)>;
int64_t stored_slice_bytes(const TensorClass& c, const Slice& slice);  // as the checkpoint has it
// Of one rank, in that form.
RankBytes rank_bytes(const std::vector<TensorClass>& classes, const ModelConfig& config, const Layout& layout, const ExpertPlacement& placement, int world_rank, SliceBytes bytes);

// KV heads whose cache a rank has; of latent attention, which has none, no heads.
Slice rank_kv_heads(const ModelConfig& config, const Layout& layout, int world_rank);
// Of its own data-parallel rank's tokens.
int64_t rank_kv_bytes_per_token(const ModelConfig& config, const Layout& layout, DType kv_dtype);

}  // namespace cadre
