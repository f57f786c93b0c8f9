#include "parallel/rank_bytes.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <tuple>

#include "base/check.h"
#include "config/bytes.h"
#include "parallel/shard.h"

namespace cadre {
namespace {

constexpr int64_t kFp8Block = 128, kMxfp4Block = 32;

// "a.b.q_proj.weight" -> "q_proj"; the fused experts' "a.experts.down_proj_bias" has its part in the name's end.
struct NameParts {
  std::string_view module, part;
};
NameParts parts_of(std::string_view name) {
  for (const std::string_view part : {".weight", ".bias", ".weight_scale_inv"}) {
    if (!name.ends_with(part)) continue;
    name.remove_suffix(part.size());
    return {name.substr(name.rfind('.') + 1), part.substr(1)};
  }
  name = name.substr(name.rfind('.') + 1);
  for (const std::string_view part : {"_blocks", "_scales", "_bias"}) {
    if (name.ends_with(part)) return {name.substr(0, name.size() - part.size()), part.substr(1)};
  }
  return {name, ""};
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) { return std::find(names.begin(), names.end(), name) != names.end(); }

int64_t expert_in(std::string_view name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return TensorShard::kNoExpert;
  int64_t expert = TensorShard::kAllExperts;
  std::from_chars(name.data() + at + kExperts.size(), name.data() + name.size(), expert);
  return expert;
}

TensorShard attention_shard(const NameParts& name, const ModelConfig& config) {
  const AttentionConfig& a = config.attention;
  const bool is_mla = a.kind == AttentionKind::kMla;
  if (is_one_of(name.module, {"q_proj", "q_b_proj"})) return {ShardBy::kQueryHeads, 0, a.head_dim};
  if (name.module == "kv_b_proj") return {ShardBy::kQueryHeads, 0, a.qk_nope_head_dim + a.v_head_dim};
  if (is_one_of(name.module, {"k_proj", "v_proj"})) return {ShardBy::kKvHeads, 0, a.head_dim};
  if (name.module == "o_proj" && name.part != "bias") return {ShardBy::kQueryHeads, 1, is_mla ? a.v_head_dim : a.head_dim};
  if (name.module == "sinks") return {ShardBy::kQueryHeads, 0, 1};
  return {};
}

// The all-heads norms (OLMoE) follow the heads that they scale.
TensorShard norm_shard(const NameParts& name, const ModelConfig& config) {
  if (config.attention.qk_norm != QkNorm::kAllHeads) return {};
  if (name.module == "q_norm") return {ShardBy::kQueryHeads, 0, config.attention.head_dim};
  if (name.module == "k_norm") return {ShardBy::kKvHeads, 0, config.attention.head_dim};
  return {};
}

TensorShard gated_shard(const NameParts& name, ShardBy by) {
  if (is_one_of(name.module, {"gate_proj", "up_proj", "w1", "w3"})) return {by, 0};
  if (is_one_of(name.module, {"down_proj", "w2"})) return {by, 1};
  return {};  // shared_expert_gate
}

// gpt-oss: gate and up interleaved, so that a value of width is two neighbours.
TensorShard fused_experts_shard(const NameParts& name) {
  const bool is_plain = name.part.empty();
  TensorShard out{.expert = TensorShard::kAllExperts};
  if (name.module == "gate_up_proj") out.by = ShardBy::kExpertWidth, out.dim = is_plain ? 2 : 1, out.per_unit = 2;
  else if (is_plain) out.by = ShardBy::kExpertWidth, out.dim = 1;
  else if (name.part != "bias") out.by = ShardBy::kExpertWidth, out.dim = 2, out.block = kMxfp4Block;
  return out;
}

struct Units {
  int64_t total;
  Slice own;
};
Units units_of(ShardBy by, const ModelConfig& config, const Layout& layout, int world_rank) {
  const Shard shard = shard_of(layout, world_rank);
  const auto share = [](const Part& part, int64_t total) { return Units{total, part.of_total(total)}; };
  switch (by) {
    case ShardBy::kQueryHeads: return share(shard.heads, config.attention.num_heads);
    case ShardBy::kKvHeads: return {config.attention.num_kv_heads, rank_kv_heads(config, layout, world_rank)};
    case ShardBy::kDenseWidth: return share(shard.dense, config.dense_intermediate);
    case ShardBy::kSharedWidth: return share(shard.shared, config.moe.shared_intermediate);
    case ShardBy::kExpertWidth: return share(shard.expert, config.moe.expert_intermediate);
    case ShardBy::kNothing: break;
  }
  return {1, {0, 1}};
}

}  // namespace

int64_t& rank_bytes_of(RankBytes& bytes, TensorKind kind) {
  switch (kind) {
    case TensorKind::kEmbedding: return bytes.embedding;
    case TensorKind::kAttention: return bytes.attention;
    case TensorKind::kDenseMlp: return bytes.dense;
    case TensorKind::kRouter: return bytes.router;
    case TensorKind::kSharedExpert: return bytes.shared;
    case TensorKind::kNorm: return bytes.norms;
    case TensorKind::kHead: return bytes.head;
    case TensorKind::kRoutedExpert: return bytes.routed;
    case TensorKind::kNextN: break;
  }
  CADRE_CHECK(false, "no rank holds {}", tensor_kind_name(kind));
}

TensorShard tensor_shard_of(const TensorSpec& spec, const ModelConfig& config) {
  const NameParts name = parts_of(spec.name);
  TensorShard out;
  switch (spec.kind) {
    case TensorKind::kAttention: out = attention_shard(name, config); break;
    case TensorKind::kNorm: out = norm_shard(name, config); break;
    case TensorKind::kDenseMlp: out = gated_shard(name, ShardBy::kDenseWidth); break;
    case TensorKind::kSharedExpert: out = gated_shard(name, ShardBy::kSharedWidth); break;
    case TensorKind::kRoutedExpert:
      if (expert_in(spec.name) == TensorShard::kAllExperts || config.family == Family::kGptOss) return fused_experts_shard(name);
      out = gated_shard(name, ShardBy::kExpertWidth);
      out.expert = expert_in(spec.name);
      break;
    default: break;
  }
  if (spec.is_scale && out.by != ShardBy::kNothing) out.block = kFp8Block;
  return out;
}

Slice shard_slice(const TensorShard& shard, const TensorSpec& spec, const ModelConfig& config, const Layout& layout, int world_rank) {
  const int64_t along = spec.shape[static_cast<size_t>(shard.dim)];
  if (shard.by == ShardBy::kNothing) return {0, along};
  const Units units = units_of(shard.by, config, layout, world_rank);
  CADRE_CHECK((units.total * shard.per_unit + shard.block - 1) / shard.block == along, "{}: {} units of {} over {} elements", spec.name, units.total, shard.per_unit, along);
  const int64_t first = units.own.first * shard.per_unit / shard.block;
  const int64_t end = ((units.own.first + units.own.count) * shard.per_unit + shard.block - 1) / shard.block;
  return {first, units.own.count == 0 ? 0 : end - first};
}

std::vector<TensorClass> tensor_classes(const ModelConfig& config) {
  // Of routed experts, how many each one has.
  struct Group {
    TensorClass first;
    std::vector<int64_t> of_expert;
  };
  using Key = std::tuple<TensorKind, DType, bool, Shape, std::string_view, std::string_view>;
  std::map<Key, size_t> index;
  std::vector<Group> groups;
  const std::vector<TensorSpec> specs = checkpoint_tensors(config);
  const size_t num_experts = static_cast<size_t>(config.moe.router.num_experts);
  for (const TensorSpec& spec : specs) {
    if (spec.kind == TensorKind::kNextN) continue;
    const NameParts name = parts_of(spec.name);
    const auto [it, is_new] = index.try_emplace(Key{spec.kind, spec.dtype, spec.is_scale, spec.shape, name.module, name.part}, groups.size());
    if (is_new) groups.push_back({{spec, tensor_shard_of(spec, config), std::string(name.module), std::string(name.part)}, {}});
    Group& group = groups[it->second];
    if (group.first.shard.expert < 0) {
      ++group.first.count;
    } else {
      group.of_expert.resize(num_experts);
      ++group.of_expert[static_cast<size_t>(expert_in(spec.name))];
    }
  }
  std::vector<TensorClass> out;
  for (Group& group : groups) {
    TensorClass& c = group.first;
    const auto& counts = group.of_expert;
    if (counts.empty() || std::all_of(counts.begin(), counts.end(), [&](int64_t n) { return n == counts[0]; })) {
      if (!counts.empty()) c.count = counts[0], c.shard.expert = TensorShard::kEachExpert;
      out.push_back(std::move(c));
      continue;
    }
    for (size_t e = 0; e < counts.size(); ++e) {
      if (counts[e] == 0) continue;
      c.count = counts[e], c.shard.expert = static_cast<int64_t>(e);
      out.push_back(c);
    }
  }
  return out;
}

int64_t stored_slice_bytes(const TensorClass& c, const Slice& slice) {
  const int64_t along = c.spec.shape[static_cast<size_t>(c.shard.dim)];
  if (along == 0) return 0;
  const int64_t bytes = c.spec.bytes() / along * slice.count;
  return c.shard.expert == TensorShard::kAllExperts ? bytes / c.spec.shape[0] : bytes;
}

RankBytes rank_bytes(const std::vector<TensorClass>& classes, const ModelConfig& config, const Layout& layout, const ExpertPlacement& placement, int world_rank, SliceBytes bytes) {
  RankBytes out;
  const auto held = config.moe.router.num_experts > 0 ? placement.experts_of(layout.coords(world_rank).ep) : std::span<const int32_t>{};
  const int64_t num_held = std::count_if(held.begin(), held.end(), [](int32_t e) { return e != kEmptySlot; });
  for (const TensorClass& c : classes) {
    int64_t count = c.count;
    if (c.shard.expert == TensorShard::kAllExperts || c.shard.expert == TensorShard::kEachExpert) count *= num_held;
    else if (c.shard.expert >= 0) count *= std::count(held.begin(), held.end(), static_cast<int32_t>(c.shard.expert));
    if (count > 0) rank_bytes_of(out, c.spec.kind) += count * bytes(c, shard_slice(c.shard, c.spec, config, layout, world_rank));
  }
  return out;
}

std::vector<RankBytes> rank_bytes(const ModelConfig& config, const Layout& layout, const ExpertPlacement& placement) {
  const std::vector<TensorClass> classes = tensor_classes(config);
  std::vector<RankBytes> out;
  const auto stored = [](const TensorClass& c, const Slice& slice) { return stored_slice_bytes(c, slice); };
  for (int rank = 0; rank < layout.world; ++rank) out.push_back(rank_bytes(classes, config, layout, placement, rank, stored));
  return out;
}

Slice rank_kv_heads(const ModelConfig& config, const Layout& layout, int world_rank) {
  if (config.attention.kind == AttentionKind::kMla) return {};
  const Part heads = shard_of(layout, world_rank).heads;
  return kv_head_slice(config.attention.num_kv_heads, heads.of, heads.index);
}

int64_t rank_kv_bytes_per_token(const ModelConfig& config, const Layout& layout, DType kv_dtype) {
  ModelConfig part = config;
  part.attention = attention_part(config.attention, shard_of(layout, 0).heads);  // ranks have as many heads each
  return kv_bytes_per_token(part, kv_dtype);
}

}  // namespace cadre
