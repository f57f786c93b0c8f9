#include "tests/support/layouts.h"

#include <algorithm>

#include <fmt/format.h>

#include "parallel/options.h"
#include "tests/testing.h"

namespace cadre::testing {
namespace {

Layout dense_over_world(Layout l) {
  l.dense_tp = l.world;
  return l;
}

}  // namespace

const std::vector<std::string>& reference_models() {
  static const std::vector<std::string> kModels{"deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "deepseek_v3_fp8", "glm4_moe", "gpt_oss", "gpt_oss_mxfp4",
                                                "llama", "mixtral", "olmoe", "qwen2_moe", "qwen3", "qwen3_moe", "demo"};
  return kModels;
}

std::vector<std::string> matrix_models() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return {"deepseek_v3_fp8", "gpt_oss_mxfp4", "qwen2_moe", "llama"};
#else
  return reference_models();
#endif
}

std::filesystem::path model_dir(const std::string& name) {
  return name == "demo" ? source_dir() / "models" / "demo" : source_dir() / "tests" / "reference" / name;
}

Layout make_layout(int dp, int attn_tp, int ep, ExchangeKind exchange) {
  Layout l;
  l.attn_dp = dp, l.attn_tp = attn_tp, l.world = dp * attn_tp;
  l.ep = ep, l.moe_tp = l.world / ep, l.dense_tp = attn_tp;
  l.exchange = ep > 1 ? exchange : ExchangeKind::kNone;
  return l;
}

const std::vector<LayoutCase>& layout_cases() {
  static const std::vector<LayoutCase> kCases{{"tp2", make_layout(1, 2, 1)}, {"dp2", make_layout(2, 1, 1)}, {"dp2_ep2", make_layout(2, 1, 2)},
                                              {"tp4_dp2_ep4", make_layout(2, 2, 4)}, {"dp4_ep4", make_layout(4, 1, 4)}, {"dp3_ep3", make_layout(3, 1, 3)},
                                              {"dp4_ep2_moetp2", make_layout(4, 1, 2)}, {"tp2_ep2", make_layout(1, 2, 2)}, {"dp2_ep2_dense2", dense_over_world(make_layout(2, 1, 2))}};
  return kCases;
}

std::vector<NamedLayout> with_every_exchange(const LayoutCase& c) {
  if (c.layout.ep == 1) return {{c.name, c.layout}};
  std::vector<NamedLayout> out;
  for (const ExchangeKind exchange : {ExchangeKind::kAllGatherReduceScatter, ExchangeKind::kAllToAll, ExchangeKind::kAllToAllLowLatency, ExchangeKind::kAuto}) {
    out.push_back({fmt::format("{} {}", c.name, exchange_name(exchange)), c.layout});
    out.back().layout.exchange = exchange;
    out.back().layout.placement = seed() % 2 ? PlacementStrategy::kRoundRobin : PlacementStrategy::kLinear;
  }
  return out;
}

bool can_run(const ModelConfig& c, const Layout& l) {
  const bool heads = c.attention.num_heads % l.attn_tp == 0 &&
                     (c.attention.kind == AttentionKind::kMla || c.attention.num_kv_heads % l.attn_tp == 0 || l.attn_tp % c.attention.num_kv_heads == 0);
  if (c.moe.router.num_experts == 0) return heads && l.ep == 1;
  const bool widths = c.moe.expert_intermediate % l.moe_tp == 0 && (c.quant != WeightQuant::kMxfp4 || c.moe.expert_intermediate / l.moe_tp % 32 == 0);
  return heads && widths && c.moe.router.num_experts >= l.ep;
}

bool splits_no_sum(const ModelConfig& config, const Layout& l) {
  const bool has_dense = std::any_of(config.layers.begin(), config.layers.end(), [](const LayerConfig& layer) { return !layer.is_sparse; });
  const bool has_sparse = config.moe.router.num_experts > 0;
  return l.attn_tp == 1 && (!has_sparse || (l.moe_tp == 1 && l.combine == CombineOrder::kExact)) && (!has_dense || l.dense_tp == 1);
}

}  // namespace cadre::testing
