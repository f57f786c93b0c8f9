#include <fmt/format.h>

#include <algorithm>

#include "cli/layout_flags.h"
#include "cli/units.h"
#include "parallel/expert_placement.h"
#include "parallel/layer_plan.h"
#include "parallel/plan_text.h"
#include "parallel/rank_bytes.h"

namespace cadre::cli {
namespace {

std::string size_text(int64_t bytes) { return bytes_text(static_cast<uint64_t>(bytes)); }

const char* activation_dtype_name(DType t) { return t == DType::kF8E4M3 ? "fp8" : "float32"; }

std::string world_text(const ModelConfig& config, const ResolvedLayout& r) {
  const Layout& l = r.layout;
  std::string out = fmt::format("{} {}: attention dp {} x cp {} x tp {}", l.world, l.world == 1 ? "rank" : "ranks", l.attn_dp, l.attn_cp, l.attn_tp);
  if (config.moe.router.num_experts > 0) out += fmt::format("; experts ep {} x tp {}", l.ep, l.moe_tp);
  out += fmt::format("; dense layers tp {}", l.dense_tp);
  if (l.ep > 1)
    out += fmt::format("; placement {}, exchange {}, dispatch {}, combine {}", l.placement == PlacementStrategy::kLinear ? "linear" : "round_robin", exchange_name(l.exchange),
                       r.is_fp8_dispatch ? "fp8" : "float32", l.combine == CombineOrder::kExact ? "exact" : "per_rank");
  return out;
}

// Layers with the same plan.
struct LayerGroup {
  LayerPlan plan;
  std::vector<int32_t> ids;
};

std::vector<LayerGroup> layer_groups(const ModelConfig& config, const Layout& layout) {
  const std::vector<LayerPlan> plans = plan_layers(config, layout);
  std::vector<LayerGroup> out;
  for (const bool is_sparse : {false, true}) {
    LayerGroup group;
    for (size_t i = 0; i < plans.size(); ++i)
      if (plans[i].is_sparse == is_sparse) group.plan = plans[i], group.ids.push_back(static_cast<int32_t>(i));
    if (!group.ids.empty()) out.push_back(std::move(group));
  }
  return out;
}

void add_layers(const ModelConfig& config, const Layout& layout, std::string* out) {
  for (const LayerGroup& group : layer_groups(config, layout)) {
    *out += fmt::format("{} layers: {}\n", group.plan.is_sparse ? "sparse" : "dense", ids_text(group.ids));
    *out += fmt::format("  attention     {}\n  feed-forward  {}\n", half_text(group.plan.attention), half_text(group.plan.feed_forward));
  }
}

ExpertPlacement placement_of(const ModelConfig& config, const Layout& layout) {
  const int64_t num_experts = config.moe.router.num_experts;
  return num_experts > 0 ? ExpertPlacement::initial(num_experts, layout.ep, layout.placement, layout.redundant_experts) : ExpertPlacement{};
}

std::vector<int32_t> sorted_experts(const ExpertPlacement& placement, int ep_rank) {
  std::vector<int32_t> ids;
  for (const int32_t e : placement.experts_of(ep_rank))
    if (e != kEmptySlot) ids.push_back(e);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::string experts_of_rank(const ModelConfig& config, const Layout& layout, const ExpertPlacement& placement, int rank) {
  if (config.moe.router.num_experts == 0) return "-";
  const RankCoords c = layout.coords(rank);
  return ids_text(sorted_experts(placement, c.ep)) + (layout.moe_tp == 1 ? "" : fmt::format(", part {} of {}", c.moe_tp + 1, layout.moe_tp));
}

std::string kv_heads_of_rank(const ModelConfig& config, const Layout& layout, int rank) {
  if (config.attention.kind == AttentionKind::kMla) return "latent";
  const Slice s = rank_kv_heads(config, layout, rank);
  return s.count == 1 ? fmt::format("{}", s.first) : fmt::format("{}-{}", s.first, s.first + s.count - 1);
}

std::string table_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}", row[i], widths[i] + 2);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

void add_ranks(const ModelConfig& config, const Layout& layout, DType kv_dtype, std::string* out) {
  const int64_t num_experts = config.moe.router.num_experts;
  const ExpertPlacement placement = placement_of(config, layout);
  const std::vector<RankBytes> bytes = rank_bytes(config, layout, placement);
  std::vector<std::vector<std::string>> table{{"rank", "attn dp/cp/tp", "ep/moe-tp", "experts", "KV heads", "KV B/token", "weights", "attention", "dense", "shared", "routed",
                                               "router", "norms", "embedding", "head"}};
  for (int rank = 0; rank < layout.world; ++rank) {
    const RankCoords c = layout.coords(rank);
    const RankBytes& b = bytes[static_cast<size_t>(rank)];
    table.push_back({fmt::format("{}", rank), fmt::format("{}/{}/{}", c.attn_dp, c.attn_cp, c.attn_tp), num_experts > 0 ? fmt::format("{}/{}", c.ep, c.moe_tp) : "-",
                     experts_of_rank(config, layout, placement, rank), kv_heads_of_rank(config, layout, rank),
                     with_commas(static_cast<uint64_t>(rank_kv_bytes_per_token(config, layout, kv_dtype)))});
    for (const int64_t part : {b.total(), b.attention, b.dense, b.shared, b.routed, b.router, b.norms, b.embedding, b.head}) table.back().push_back(part == 0 ? "-" : size_text(part));
  }
  *out += table_text(table);
}

json::array numbers(const std::vector<int32_t>& ids) { return json::array(ids.begin(), ids.end()); }

json::array layers_json(const ModelConfig& config, const Layout& layout) {
  json::array out;
  for (const LayerGroup& group : layer_groups(config, layout))
    out.push_back({{"kind", group.plan.is_sparse ? "sparse" : "dense"}, {"layers", numbers(group.ids)},
                   {"attention", half_json(group.plan.attention)}, {"feed_forward", half_json(group.plan.feed_forward)}});
  return out;
}

json::array ranks_json(const ModelConfig& config, const Layout& layout, DType kv_dtype) {
  const ExpertPlacement placement = placement_of(config, layout);
  const std::vector<RankBytes> bytes = rank_bytes(config, layout, placement);
  json::array out;
  for (int rank = 0; rank < layout.world; ++rank) {
    const RankCoords c = layout.coords(rank);
    const RankBytes& b = bytes[static_cast<size_t>(rank)];
    json::object o{{"rank", rank}, {"attn_dp", c.attn_dp}, {"attn_cp", c.attn_cp}, {"attn_tp", c.attn_tp}, {"kv_bytes_per_token", rank_kv_bytes_per_token(config, layout, kv_dtype)}};
    if (config.moe.router.num_experts > 0) o.emplace("ep", c.ep), o.emplace("moe_tp", c.moe_tp), o.emplace("experts", numbers(sorted_experts(placement, c.ep)));
    if (config.attention.kind != AttentionKind::kMla) {
      const Slice heads = rank_kv_heads(config, layout, rank);
      o.emplace("kv_heads", json::object{{"first", heads.first}, {"count", heads.count}});
    }
    o.emplace("weight_bytes", json::object{{"total", b.total()}, {"attention", b.attention}, {"dense", b.dense}, {"shared", b.shared}, {"routed", b.routed}, {"router", b.router}, {"norms", b.norms},
                                           {"embedding", b.embedding}, {"head", b.head}});
    out.push_back(std::move(o));
  }
  return out;
}

}  // namespace

json::object explain_json(const ModelConfig& config, const ResolvedLayout& resolved, DType kv_dtype, DType activation_dtype) {
  const Layout& l = resolved.layout;
  json::array notes;
  for (const std::string& note : resolved.notes) notes.push_back(json::string(note));
  return {{"model", {{"family", family_name(config.family)}, {"layers", config.num_layers}, {"experts", config.moe.router.num_experts}, {"top_k", config.moe.router.top_k},
                     {"has_shared_expert", config.moe.shared_intermediate > 0}}},
          {"layout", {{"world", l.world}, {"attn_dp", l.attn_dp}, {"attn_cp", l.attn_cp}, {"attn_tp", l.attn_tp}, {"ep", l.ep}, {"moe_tp", l.moe_tp}, {"dense_tp", l.dense_tp},
                      {"exchange", exchange_name(l.exchange)}, {"dispatch", resolved.is_fp8_dispatch ? "fp8" : "float32"}, {"combine", l.combine == CombineOrder::kExact ? "exact" : "per_rank"},
                      {"placement", l.placement == PlacementStrategy::kLinear ? "linear" : "round_robin"}}},
          {"activation_dtype", activation_dtype_name(activation_dtype)},
          {"notes", std::move(notes)},
          {"layers", layers_json(config, l)},
          {"ranks", ranks_json(config, l, kv_dtype)}};
}

std::string ids_text(const std::vector<int32_t>& ids) {
  if (ids.empty()) return "none";
  if (ids.size() > 2 && ids[1] - ids[0] > 1) {
    const int32_t step = ids[1] - ids[0];
    bool is_regular = true;
    for (size_t i = 1; i < ids.size(); ++i) is_regular &= ids[i] - ids[i - 1] == step;
    if (is_regular) return fmt::format("{}-{} by {}", ids.front(), ids.back(), step);
  }
  std::string out;
  for (size_t first = 0; first < ids.size();) {
    size_t end = first + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    out += fmt::format("{}{}", out.empty() ? "" : ", ", ids[first]);
    if (end - first > 1) out += fmt::format("-{}", ids[end - 1]);
    first = end;
  }
  return out;
}

std::string explain_text(const ModelConfig& config, const ResolvedLayout& resolved, DType kv_dtype, DType activation_dtype) {
  std::string out = fmt::format("model   {}, {} layers", family_name(config.family), config.num_layers);
  if (config.moe.router.num_experts > 0) out += fmt::format(", {} experts, {} for each token", config.moe.router.num_experts, config.moe.router.top_k);
  out += fmt::format("\nlayout  {}\n", world_text(config, resolved));
  for (const std::string& note : resolved.notes) out += fmt::format("note    {}\n", note);
  out += '\n';
  add_layers(config, resolved.layout, &out);
  out += fmt::format("\nBytes as the checkpoint stores them; KV cache in {}; inputs of products in {}.\n", kv_dtype == DType::kBF16 ? "bfloat16" : "float32",
                     activation_dtype == DType::kF8E4M3 ? "fp8 where the weights are" : "float32");
  add_ranks(config, resolved.layout, kv_dtype, &out);
  return out;
}

}  // namespace cadre::cli
