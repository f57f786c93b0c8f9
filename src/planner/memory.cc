#include "planner/memory.h"

#include <algorithm>
#include <cmath>

#include "parallel/layer_plan.h"
#include "parallel/shard.h"
#include "parallel/traffic_cost.h"
#include "planner/saturate.h"

namespace cadre::planner {
namespace {

// Devices keep the stored form; on CPUs this engine packs it.
RankBytes fullest(const PlannedModel& model, const Layout& layout, const ExpertPlacement& placement, bool is_cpu, int ranks_weighed) {
  RankBytes out;
  for (int rank = 0; rank < std::min(layout.world, std::max(1, ranks_weighed)); ++rank) {
    const RankBytes bytes = is_cpu ? model.rank_allocated(layout, placement, rank) : model.rank_bytes(layout, placement, rank);
    if (bytes.total() > out.total()) out = bytes;
  }
  return out;
}

int64_t exchange_kind_bytes(const ModelConfig& config, const Layout& layout, ExchangeKind kind, int64_t activation_bytes,
                            bool is_fp8_dispatch) {
  const int64_t chunk = exchange_chunk_rows(kind, layout.world), rows = chunk * layout.world, pairs = rows * config.moe.router.top_k;
  const int64_t hidden = config.hidden_size * activation_bytes, wire = row_bytes(config.hidden_size, is_fp8_dispatch, activation_bytes);
  const int64_t outgoing = std::min<int64_t>(layout.ep, config.moe.router.top_k) * chunk * wire;
  const int64_t incoming = (kind == ExchangeKind::kAllToAllLowLatency ? pairs : rows) * hidden;
  // Outputs that come back for this rank's own rows.
  return outgoing + incoming + chunk * config.moe.router.top_k * hidden;
}

}  // namespace

int64_t exchange_bytes(const ModelConfig& config, const Layout& layout, int64_t activation_bytes, bool is_fp8_dispatch) {
  if (config.moe.router.num_experts == 0) return 0;
  const ExchangeKind first = layout.ep == 1                           ? ExchangeKind::kNone
                             : layout.exchange == ExchangeKind::kAuto ? ExchangeKind::kAllToAll
                                                                      : layout.exchange;
  // What the experts compute on and leave.
  const int64_t chunk = first == ExchangeKind::kNone ? 0 : exchange_chunk_rows(first, layout.world);
  const int64_t pairs = chunk * layout.world * config.moe.router.top_k;
  int64_t out = pairs * (config.hidden_size + config.moe.expert_intermediate / layout.moe_tp) * activation_bytes;
  if (first != ExchangeKind::kNone) out += exchange_kind_bytes(config, layout, first, activation_bytes, is_fp8_dispatch);
  if (layout.ep > 1 && layout.exchange == ExchangeKind::kAuto)
    out += exchange_kind_bytes(config, layout, ExchangeKind::kAllToAllLowLatency, activation_bytes, is_fp8_dispatch);
  return out;
}

int64_t workspace_bytes(const ModelConfig& config, const Layout& layout, int64_t max_rows, int64_t max_sequences,
                        int64_t activation_bytes) {
  const std::vector<LayerPlan> plans = plan_layers(config, layout);
  const bool is_wide = std::any_of(plans.begin(), plans.end(), [](const LayerPlan& p) {
    return p.attention.gather != GroupKind::kNone || p.feed_forward.gather != GroupKind::kNone;
  });
  // In floating point: of absurd sizes the products leave 64 bits.
  const auto d = [](int64_t v) { return static_cast<double>(v); };
  const double hidden = d(config.hidden_size), rows = d(max_rows), world = layout.world;
  const double own_rows = layout.attn_tp == 1 ? rows : d(max_rows / layout.attn_tp + 1);
  const double wide_rows = layout.world == 1 ? rows : std::max(rows * layout.attn_dp, own_rows * layout.attn_tp);
  const double ffn_rows = is_wide ? wide_rows : rows;
  double values = 3 * rows * hidden;  // residual stream, its norm, what a half adds
  if (layout.world > 1) values += own_rows * world * hidden * 2;
  if (is_wide) values += wide_rows * hidden;
  const AttentionConfig a = attention_part(config.attention, shard_of(layout, 0).heads);
  if (a.kind == AttentionKind::kMla)
    values += rows * (d(a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim) + d(a.num_heads) * d(a.head_dim + a.v_head_dim));
  else
    values += 2 * rows * d(a.num_heads + a.num_kv_heads) * d(a.head_dim);
  const MoeConfig& moe = config.moe;
  if (moe.router.num_experts > 0) {
    values += ffn_rows * (d(moe.router.num_experts + moe.shared_intermediate) + (moe.shared_intermediate > 0 ? hidden : 0));
    if (layout.ep == 1)
      values += std::min(ffn_rows, d(kLocalExchangeRows)) * d(moe.router.top_k) * (d(moe.expert_intermediate / layout.moe_tp) + hidden);
  }
  values += ffn_rows * d(config.dense_intermediate);
  return static_cast<int64_t>(std::min(values * d(activation_bytes) + 4 * d(max_sequences) * d(config.vocab_size), 0x1p60));
}

int64_t tokens_in(int64_t pool_bytes, int64_t bytes_per_token) {
  return pool_bytes <= 0 || bytes_per_token <= 0 ? 0 : pool_bytes / bytes_per_token;
}

MemoryBudget plan_memory(const PlannedModel& model, const Layout& layout, const HardwareSpec& hardware, const MemoryOptions& options) {
  const ModelConfig& config = model.config();
  MemoryBudget out;
  out.memory = static_cast<int64_t>(hardware.memory_bytes);
  out.reserve = static_cast<int64_t>(hardware.reserve_bytes);
  out.weights = fullest(model, layout, initial_placement(config, layout), hardware.is_cpu, options.ranks_weighed);
  if (layout.redundant_experts > 0) {
    Layout once = layout;
    once.redundant_experts = 0;
    out.replicas = std::max<int64_t>(
        0, out.weights.routed - fullest(model, once, initial_placement(config, once), hardware.is_cpu, options.ranks_weighed).routed);
  }
  out.exchange = layout.world > 1 ? exchange_bytes(config, layout, options.activation_bytes, options.is_fp8_dispatch) : 0;
  out.workspace = workspace_bytes(config, layout, options.max_rows, options.max_sequences, options.activation_bytes);
  out.kv_bytes_per_token = options.kv_bytes_per_token;
  // In bytes of one value first, so that types below a byte would not round to nothing.
  if (out.kv_bytes_per_token == 0)
    out.kv_bytes_per_token = static_cast<int64_t>(
        std::llround(static_cast<double>(rank_kv_bytes_per_token(config, layout, DType::kU8)) * options.kv_value_bytes));
  const int64_t left = out.memory - out.fixed();
  out.kv_pool = std::max<int64_t>(0, left);
  out.missing = std::max<int64_t>(0, -left);
  out.tokens = tokens_in(out.kv_pool, out.kv_bytes_per_token);
  out.cluster_tokens = multiply_counts(out.tokens, layout.attn_dp);
  return out;
}

AttentionComparison compare_attention(double weights_bytes, double attention_bytes, int ranks, double budget_bytes, bool is_cache_split) {
  AttentionComparison out;
  const double n = std::max(1, ranks);
  out.split.weights_bytes = weights_bytes / n;
  out.replicated.weights_bytes = (weights_bytes - attention_bytes) / n + attention_bytes;
  for (AttentionChoice* c : {&out.split, &out.replicated}) c->pool_bytes = std::max(0.0, budget_bytes - c->weights_bytes);
  out.split.cluster_pool_bytes = out.split.pool_bytes * (is_cache_split ? n : 1);
  out.replicated.cluster_pool_bytes = out.replicated.pool_bytes * n;
  return out;
}

}  // namespace cadre::planner
