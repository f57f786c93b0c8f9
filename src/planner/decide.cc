#include "planner/decide.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/bytes.h"
#include "parallel/traffic_cost.h"

namespace cadre::planner {
namespace {

std::string gb(double bytes) { return bytes >= 1e9 ? fmt::format("{:.2f} GB", bytes / 1e9) : fmt::format("{:.1f} MB", bytes / 1e6); }

int largest_divisor(int world, int64_t most, int64_t also_divides) {
  for (int d = static_cast<int>(std::min<int64_t>(world, most)); d > 1; --d)
    if (world % d == 0 && also_divides % d == 0) return d;
  return 1;
}

DecisionStep pipeline_step(const PlanRequest& r) {
  const int domain = ranks_per_domain(r);
  if (r.devices <= domain)
    return {"pipeline parallelism", "none",
            fmt::format("all {} devices are in one link domain of {}: stages would only add idle time", r.devices, domain)};
  return {"pipeline parallelism", "none",
          fmt::format("the {} devices lie in {} domains, which stages could cross with few bytes; but whole experts cross with few as "
                      "well, and without idle stages",
                      r.devices, (r.devices + domain - 1) / domain)};
}

DecisionStep expert_step(const PlannedModel& model, const PlanRequest& r, int ep) {
  const ModelConfig& c = model.config();
  const int64_t experts = c.moe.router.num_experts;
  if (experts == 0) return {"expert parallelism", "none", "the model has no experts"};
  const double sparse =
      static_cast<double>(std::count_if(c.layers.begin(), c.layers.end(), [](const LayerConfig& l) { return l.is_sparse; }));
  const double expert = static_cast<double>(model.expert_bytes()) / std::max(1.0, sparse);
  if (ep == 1)
    return {"expert parallelism", "none",
            r.devices == 1 ? "one device holds all experts"
                           : fmt::format("no degree above 1 goes with {} devices and {} experts", r.devices, experts)};
  const int64_t slots = experts + r.redundant_experts;
  const std::string each = slots % ep == 0 ? fmt::format("{}", slots / ep) : fmt::format("{} or {}", slots / ep, slots / ep + 1);
  std::string reason = fmt::format("{} experts{} over {} ranks: {} each, {} of {} a layer and rank, which a large batch reads once a step",
                                   experts, r.redundant_experts > 0 ? fmt::format(" and {} replicas", r.redundant_experts) : "", ep, each,
                                   gb(expert * static_cast<double>(experts) / ep), gb(expert * static_cast<double>(experts)));
  const ExpectedDispatch e =
      expected_dispatch({.world = ep, .attn_dp = ep, .ep = ep, .exchange = ExchangeKind::kAllToAll}, experts, c.moe.router.top_k);
  reason +=
      fmt::format("; a row reaches {:.2f} ranks when experts are equally likely, {:.2f} of them others", e.ranks_hit, e.rows_to_others);
  const int bound = destination_bound(c.moe.router, ep);
  if (bound < std::min<int64_t>(ep, c.moe.router.top_k)) reason += fmt::format(" (at most {} with this model's expert groups)", bound);
  return {"expert parallelism", fmt::format("{}", ep), reason};
}

DecisionStep attention_step(const PlannedModel& model, const PlanRequest& r, int attn_tp) {
  const AttentionConfig& a = model.config().attention;
  const int dp = r.devices / attn_tp;
  if (r.devices == 1) return {"attention", "one rank", "there is nothing to share"};
  const RankBytes bytes = model.bytes();
  const double room = r.hardware.memory_bytes - r.hardware.reserve_bytes;
  const AttentionComparison c = compare_attention(static_cast<double>(bytes.total()), static_cast<double>(bytes.attention), r.devices, room,
                                                  a.kind != AttentionKind::kMla);
  const std::string cost = fmt::format("replicating it costs {} more weights a rank", gb(c.more_weights()));
  if (a.kind == AttentionKind::kMla) {
    std::string reason = fmt::format("the latent cache ({} bytes a token) would be the same on every rank that splits heads; {}",
                                     kv_bytes_per_token(model.config(), DType::kBF16), cost);
    if (c.split.pool_bytes > 0 && c.replicated.pool_bytes > 0)
      reason += fmt::format(", takes {:.0f} % of the KV pool and holds {:.1f} times the tokens", 100 * c.pool_loss(), c.more_tokens());
    return {"attention", fmt::format("data-parallel over {}", dp), reason};
  }
  return {"attention",
          attn_tp == 1 ? fmt::format("data-parallel over {}", dp)
                       : fmt::format("split by heads over {}{}", attn_tp, dp > 1 ? fmt::format(", data-parallel over {}", dp) : ""),
          fmt::format("grouped-query attention with {} KV heads: up to {} ranks each cache other heads, so splitting shares the cache and "
                      "the weights; {}{}",
                      a.num_kv_heads, a.num_kv_heads, cost,
                      r.devices > attn_tp ? fmt::format(", and beyond {} ranks heads would be cached twice", attn_tp) : "")};
}

DecisionStep tensor_step(const PlannedModel& model, int attn_tp, int moe_tp) {
  const ModelConfig& c = model.config();
  const bool has_dense = std::any_of(c.layers.begin(), c.layers.end(), [](const LayerConfig& l) { return !l.is_sparse; });
  std::string choice, reason;
  if (has_dense)
    choice = fmt::format("dense layers {}", attn_tp), reason = "dense layers follow attention, so that their rows are already there";
  if (c.moe.router.num_experts > 0) {
    choice += fmt::format("{}experts {}", choice.empty() ? "" : ", ", moe_tp);
    reason += fmt::format("{}{}", reason.empty() ? "" : "; ",
                          moe_tp == 1 ? "experts are whole" : "what expert parallelism leaves over splits each expert's width");
  }
  return {"tensor parallelism for the rest", choice.empty() ? "none" : choice, reason.empty() ? "nothing is left" : reason};
}

DecisionStep balance_step(const PlannedModel& model, const PlanRequest& r, int ep) {
  if (ep == 1) return {"expert load balancing", "none", "experts do not differ by rank"};
  const double one = static_cast<double>(model.expert_bytes());
  if (r.redundant_experts > 0)
    return {"expert load balancing", fmt::format("on, {} redundant experts", r.redundant_experts),
            fmt::format("{} more slots a rank cost {}; measure balancedness before and after", (r.redundant_experts + ep - 1) / ep,
                        gb(one * static_cast<double>((r.redundant_experts + ep - 1) / ep)))};
  return {"expert load balancing", "measure first",
          fmt::format(
              "settle the ranks, record the load (--enable-eplb), then give it slots: one more a rank costs {} (--redundant-experts {})",
              gb(one), ep)};
}

// Degrees of expert parallelism to try, the procedure's first: the widest that gives every rank as many experts, then all ranks
// with uneven ones, then narrower ones.
std::vector<int> expert_degrees(int world, int64_t experts, int64_t redundant) {
  if (experts == 0) return {1};
  std::vector<int> out{largest_divisor(world, experts, experts + redundant)};
  for (int d = static_cast<int>(std::min<int64_t>(world, experts)); d > 1; --d)
    if (world % d == 0) out.push_back(d);
  out.push_back(1);
  return out;
}

ParallelOptions options_of(const PlannedModel& model, const PlanRequest& request, int attn_tp, int ep) {
  ParallelOptions o;
  o.tp_size = request.devices;
  if (request.devices / attn_tp > 1) o.dp_size = request.devices / attn_tp, o.enable_dp_attention = true;
  if (ep > 1) {
    o.ep_size = ep, o.moe_a2a_backend = "auto";
    if (!request.hardware.is_cpu) o.combine_order = "per_rank";
    if (!request.hardware.is_cpu && (model.config().quant == WeightQuant::kFp8Block || request.weight_type == WeightType::kNvfp4))
      o.dispatch_dtype = "fp8";
    if (request.redundant_experts > 0) o.num_redundant_experts = request.redundant_experts, o.enable_eplb = true;
  }
  return o;
}

}  // namespace

Decision decide(const PlannedModel& model, const PlanRequest& request) {
  const ModelConfig& c = model.config();
  const int world = request.devices;
  const bool is_mla = c.attention.kind == AttentionKind::kMla;
  const int attn_tp = is_mla ? 1 : largest_divisor(world, c.attention.num_kv_heads, c.attention.num_kv_heads);
  Decision out;
  std::string refusal;
  int ep = 1;
  for (const int degree : expert_degrees(world, c.moe.router.num_experts, request.redundant_experts)) {
    try {
      out.options = options_of(model, request, attn_tp, degree);
      out.resolved = resolve_layout(out.options, c, DType::kBF16);
      ep = degree;
      break;
    } catch (const Error& e) {
      if (refusal.empty()) refusal = e.what();
    }
  }
  out.steps = {pipeline_step(request), expert_step(model, request, ep), attention_step(model, request, attn_tp),
               tensor_step(model, attn_tp, world / ep), balance_step(model, request, ep)};
  if (!out.resolved)
    out.steps.push_back({"check", "refused", refusal});
  else if (!refusal.empty())
    out.steps[1].reason += fmt::format(" (the widest even degree is refused: {})", refusal);
  return out;
}

}  // namespace cadre::planner
