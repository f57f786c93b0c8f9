#include "parallel/rank_bytes.h"

#include <algorithm>
#include <charconv>
#include <string_view>

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

// Bytes of the elements along shard.dim, all of the other dimensions.
int64_t slice_bytes(const TensorShard& shard, const TensorSpec& spec, const Slice& slice) {
  const int64_t along = spec.shape[static_cast<size_t>(shard.dim)];
  return along == 0 ? 0 : spec.bytes() / along * slice.count;
}

int64_t& field(RankBytes& bytes, TensorKind kind) {
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

}  // namespace

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

std::vector<RankBytes> rank_bytes(const ModelConfig& config, const Layout& layout, const ExpertPlacement& placement) {
  std::vector<RankBytes> out(static_cast<size_t>(layout.world));
  // Of each expert and each part of its width, over all layers.
  const int64_t num_experts = config.moe.router.num_experts;
  std::vector<int64_t> expert_bytes(static_cast<size_t>(num_experts * layout.moe_tp));
  for (const TensorSpec& spec : checkpoint_tensors(config)) {
    if (spec.kind == TensorKind::kNextN) continue;
    const TensorShard shard = tensor_shard_of(spec, config);
    if (spec.kind != TensorKind::kRoutedExpert) {
      for (int rank = 0; rank < layout.world; ++rank)
        field(out[static_cast<size_t>(rank)], spec.kind) += slice_bytes(shard, spec, shard_slice(shard, spec, config, layout, rank));
      continue;
    }
    for (int part = 0; part < layout.moe_tp; ++part) {
      const int64_t bytes = slice_bytes(shard, spec, shard_slice(shard, spec, config, layout, part));  // ranks 0 .. moe_tp - 1 are its parts
      if (shard.expert >= 0) expert_bytes[static_cast<size_t>(shard.expert * layout.moe_tp + part)] += bytes;
      else
        for (int64_t e = 0; e < num_experts; ++e) expert_bytes[static_cast<size_t>(e * layout.moe_tp + part)] += bytes / num_experts;
    }
  }
  if (num_experts == 0) return out;
  for (int rank = 0; rank < layout.world; ++rank) {
    const RankCoords c = layout.coords(rank);
    for (const int32_t e : placement.experts_of(c.ep))
      if (e != kEmptySlot) out[static_cast<size_t>(rank)].routed += expert_bytes[static_cast<size_t>(e * layout.moe_tp + c.moe_tp)];
  }
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
