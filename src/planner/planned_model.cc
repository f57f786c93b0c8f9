#include "planner/planned_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "parallel/allocated_bytes.h"
#include "planner/hardware.h"

namespace cadre::planner {
namespace {

constexpr std::string_view kTypeNames[] = {"auto", "bf16", "fp8", "mxfp4", "nvfp4", "int8", "int4"};

int64_t blocks(int64_t values, int64_t block) { return (values + block - 1) / block; }

bool is_converted(WeightType type, const TensorClass& c) {
  // Matrices only: gates of one output and biases stay.
  const bool is_fused = c.shard.expert == TensorShard::kAllExperts;
  if (c.spec.is_scale || c.part == "bias" || c.spec.shape.size() < 2 || (!is_fused && c.spec.shape[0] == 1)) return false;
  switch (c.spec.kind) {
    case TensorKind::kAttention:
      return type != WeightType::kMxfp4 && type != WeightType::kNvfp4;
    case TensorKind::kDenseMlp:
    case TensorKind::kSharedExpert:
    case TensorKind::kRoutedExpert:
      return true;
    default:
      return false;
  }
}

int64_t slice_parameters(const TensorClass& c, const Slice& slice) {
  const int64_t along = c.spec.shape[static_cast<size_t>(c.shard.dim)];
  if (along == 0) return 0;
  const int64_t count = c.spec.parameters() / along * slice.count;
  return c.shard.expert == TensorShard::kAllExperts ? count / c.spec.shape[0] : count;
}

}  // namespace

std::string_view weight_type_name(WeightType type) { return kTypeNames[static_cast<size_t>(type)]; }

WeightType parse_weight_type(std::string_view name) {
  if (name == "bfloat16") return WeightType::kBF16;
  for (size_t i = 0; i < std::size(kTypeNames); ++i)
    if (kTypeNames[i] == name) return static_cast<WeightType>(i);
  const std::vector<std::string> names(std::begin(kTypeNames), std::end(kTypeNames));
  throw Error(ErrorKind::kInvalidInput,
              fmt::format("--dtype: expected one of {}; found {}; nearest: {}", fmt::join(names, ", "), cadre::quoted(name),
                          nearest_names(name, names, 1)[0]),
              "--dtype");
}

int64_t matrix_bytes(WeightType type, int64_t n, int64_t k) {
  const int64_t values = n * k;
  switch (type) {
    case WeightType::kCheckpoint:
    case WeightType::kBF16:
      return values * 2;
    case WeightType::kFp8:
      return values + blocks(n, 128) * blocks(k, 128) * 4;
    case WeightType::kMxfp4:
      return (values + 1) / 2 + n * blocks(k, 32);
    case WeightType::kNvfp4:
      return (values + 1) / 2 + n * blocks(k, 16) + 8;
    case WeightType::kInt8:
      return values + n * 4;
    case WeightType::kInt4:
      return (values + 1) / 2 + n * blocks(k, 128) * 2;
  }
  CADRE_CHECK(false, "type {}", static_cast<int>(type));
}

PlannedModel::PlannedModel(const ModelConfig& config, WeightType type) : config_(config), type_(type) {
  const bool is_gpt_oss = config.family == Family::kGptOss;
  const bool is_stored = type == WeightType::kCheckpoint || type == WeightType::kBF16 || (type == WeightType::kFp8 && !is_gpt_oss) ||
                         (type == WeightType::kMxfp4 && is_gpt_oss);
  if (type == WeightType::kBF16)
    config_.quant = WeightQuant::kNone, config_.dtype = DType::kBF16;
  else if (type == WeightType::kFp8 && is_stored)
    config_.quant = WeightQuant::kFp8Block;
  else if (type == WeightType::kMxfp4 && is_stored)
    config_.quant = WeightQuant::kMxfp4;
  converts_ = !is_stored;
  if (converts_) config_.quant = WeightQuant::kNone;
  classes_ = tensor_classes(config_);
  if (config.num_nextn_layers > 0) add_next_token_layers();
}

// A layer of prediction is a decoder layer with an embedding, a projection and a head around it. Unless patterns of names say
// otherwise, one is like another, and none depends on the layers before it.
void PlannedModel::add_next_token_layers() {
  ModelConfig alone = config_;
  int64_t times = 1;
  if (config_.unquantized_modules.empty()) {
    alone.num_layers = 0, alone.num_nextn_layers = 1, times = config_.num_nextn_layers;
    alone.layers.clear();
  }
  for (const TensorSpec& spec : checkpoint_tensors(alone)) {
    if (spec.kind != TensorKind::kNextN) continue;
    next_token_bytes_ += spec.bytes() * times;
    next_token_parameters_ += spec.parameters() * times;
  }
}

int64_t PlannedModel::served_slice_bytes(const TensorClass& c, const Slice& slice) const {
  if (!converts_ || !is_converted(type_, c)) return stored_slice_bytes(c, slice);
  Shape shape = c.spec.shape;
  shape[static_cast<size_t>(c.shard.dim)] = slice.count;
  if (c.shard.expert != TensorShard::kAllExperts) return matrix_bytes(type_, shape[0], shape[1]);
  return matrix_bytes(type_, shape[2], shape[1]);  // fused: [experts, inputs, outputs]
}

RankBytes PlannedModel::rank_bytes(const Layout& layout, const ExpertPlacement& placement, int world_rank) const {
  return cadre::rank_bytes(classes_, config_, layout, placement, world_rank,
                           [this](const TensorClass& c, const Slice& slice) { return served_slice_bytes(c, slice); });
}

RankBytes PlannedModel::rank_allocated(const Layout& layout, const ExpertPlacement& placement, int world_rank) const {
  return converts_ ? rank_bytes(layout, placement, world_rank)
                   : allocated_bytes(classes_, config_, layout, placement.slots_per_rank(), world_rank);
}

RankBytes PlannedModel::rank_parameters(const Layout& layout, const ExpertPlacement& placement, int world_rank) const {
  return cadre::rank_bytes(classes_, config_, layout, placement, world_rank,
                           [](const TensorClass& c, const Slice& slice) { return slice_parameters(c, slice); });
}

RankBytes PlannedModel::bytes() const { return rank_bytes({}, initial_placement(config_, {}), 0); }
RankBytes PlannedModel::parameters() const { return rank_parameters({}, initial_placement(config_, {}), 0); }

int64_t PlannedModel::expert_bytes() const {
  const int64_t experts = config_.moe.router.num_experts;
  return experts == 0 ? 0 : bytes().routed / experts;
}

int64_t PlannedModel::active_parameters() const {
  const RankBytes all = parameters();
  const RouterConfig& router = config_.moe.router;
  if (router.num_experts == 0) return all.total();
  return all.total() - all.routed + all.routed / router.num_experts * router.top_k;
}

ExpertPlacement initial_placement(const ModelConfig& config, const Layout& layout) {
  const int64_t experts = config.moe.router.num_experts;
  return experts > 0 ? ExpertPlacement::initial(experts, layout.ep, layout.placement, layout.redundant_experts) : ExpertPlacement{};
}

}  // namespace cadre::planner
