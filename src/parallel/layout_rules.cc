#include "parallel/layout_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "config/bytes.h"
#include "parallel/layer_plan.h"
#include "parallel/traffic_cost.h"

namespace cadre {
namespace {

using Draft = LayoutDraft;
using Finding = LayoutFinding;

constexpr int64_t kFp8Block = 128;
constexpr int64_t kMxfp4Block = 32;  // values under one scale, which ranks cannot share

struct WrittenSize {
  std::string_view flag;
  const std::optional<int>& value;
};

std::array<WrittenSize, 8> sizes(const ParallelOptions& o) {
  return {{{"--tp-size", o.tp_size},
           {"--dp-size", o.dp_size},
           {"--ep-size", o.ep_size},
           {"--attn-cp-size", o.attn_cp_size},
           {"--moe-dense-tp-size", o.moe_dense_tp_size},
           {"--tensor-parallel-size", o.tensor_parallel_size},
           {"--data-parallel-size", o.data_parallel_size},
           {"--prefill-context-parallel-size", o.prefill_context_parallel_size}}};
}

// A written option of SGLang's spelling, and one of vLLM's; empty: none is.
std::pair<std::string_view, std::string_view> spellings(const ParallelOptions& o) {
  std::string_view sglang, vllm;
  const auto written = sizes(o);
  for (size_t i = 0; i < written.size(); ++i)
    if (written[i].value) (i < 5 ? sglang : vllm) = written[i].flag;
  if (o.enable_dp_attention) sglang = "--enable-dp-attention";
  if (o.moe_a2a_backend) sglang = "--moe-a2a-backend";
  if (o.enable_expert_parallel) vllm = "--enable-expert-parallel";
  if (o.all2all_backend) vllm = "--all2all-backend";
  return {sglang, vllm};
}

Finding one_of(std::string_view flag, const std::optional<std::string>& value, std::string_view first, std::string_view second) {
  if (!value || *value == first || *value == second) return {};
  return {flag, fmt::format("expected {} or {}, found {}", first, second, cadre::quoted(*value))};
}

// ---- Refusals: what was written.

Finding mixed_spellings(const Draft& d) {
  const auto [sglang, vllm] = spellings(d.options);
  if (sglang.empty() || vllm.empty()) return {};
  return {vllm, fmt::format("expected options in one engine's spelling, found this one of vLLM's beside {} of SGLang's", sglang)};
}

Finding size_below_one(const Draft& d) {
  for (const auto& [flag, value] : sizes(d.options))
    if (value && *value < 1) return {flag, fmt::format("expected a number of ranks from 1, found {}", *value)};
  return {};
}

Finding too_many_ranks(const Draft& d) {
  for (const auto& [flag, value] : sizes(d.options))
    if (value && *value > kMaxRanks) return {flag, fmt::format("expected at most {} ranks, found {}", kMaxRanks, *value)};
  if (d.asked_world > kMaxRanks) return {d.world_flag(), fmt::format("expected at most {} ranks in all, found {}", kMaxRanks, d.asked_world)};
  return {};
}

Finding unknown_exchange(const Draft& d) {
  if (!d.exchange_text() || d.exchange) return {};
  return {d.exchange_flag(), fmt::format("expected one of {}; found {}", exchange_names(), cadre::quoted(*d.exchange_text()))};
}
Finding unknown_placement(const Draft& d) { return one_of("--expert-placement-strategy", d.options.expert_placement_strategy, "linear", "round_robin"); }
Finding unknown_dispatch_dtype(const Draft& d) { return one_of("--dispatch-dtype", d.options.dispatch_dtype, "auto", "fp8"); }
Finding unknown_combine_order(const Draft& d) { return one_of("--combine-order", d.options.combine_order, "exact", "per_rank"); }

// ---- Refusals: the grid.

Finding replicas(const Draft& d) {
  if (d.options.enable_dp_attention || d.options.dp_size.value_or(1) == 1) return {};
  return {"--dp-size", fmt::format("expected --enable-dp-attention beside it, found {} data-parallel ranks alone", *d.options.dp_size)};
}

Finding world_not_divided(const Draft& d) {
  const int64_t parts = int64_t{d.layout.attn_dp} * d.layout.attn_cp;
  if (d.is_vllm() || d.layout.world % parts == 0) return {};
  return {"--tp-size", fmt::format("expected a multiple of --dp-size {} x --attn-cp-size {}, found {}", d.layout.attn_dp, d.layout.attn_cp, d.layout.world)};
}

Finding world_not_divided_by_ep(const Draft& d) {
  if (d.layout.world % d.layout.ep == 0) return {};
  return {"--ep-size", fmt::format("expected a divisor of the {} ranks, found {}", d.layout.world, d.layout.ep)};
}

Finding dense_tp_of_no_group(const Draft& d) {
  const int tp = d.layout.dense_tp;
  if (tp == 1 || tp == d.layout.attn_tp || tp == d.layout.world) return {};
  return {"--moe-dense-tp-size", fmt::format("expected 1, attention's tensor parallelism ({}) or all ranks ({}), found {}", d.layout.attn_tp, d.layout.world, tp)};
}

// ---- Refusals: the model.

Finding ep_without_experts(const Draft& d) {
  if (!d.wants_ep || d.has_experts()) return {};
  return {d.ep_flag(), fmt::format("expected a model with experts, found {}, which has none", d.config.model_type)};
}

Finding ranks_without_experts(const Draft& d) {
  if (!d.has_experts() || d.layout.ep <= d.config.moe.router.num_experts) return {};
  return {d.ep_flag(), fmt::format("expected at most as many expert-parallel ranks as the model's {} experts, found {}", d.config.moe.router.num_experts, d.layout.ep)};
}

Finding eplb_without_ep(const Draft& d) {
  if (!d.options.enable_eplb || d.wants_ep) return {};
  return {"--enable-eplb", fmt::format("expected expert parallelism ({}), found none", d.is_vllm() ? "--enable-expert-parallel" : "--ep-size")};
}

Finding all_to_all_without_ep(const Draft& d) {
  if (!d.exchange || d.layout.world == 1 || d.layout.ep > 1 || !d.has_experts()) return {};
  if (d.exchange->kind != ExchangeKind::kAllToAll && d.exchange->kind != ExchangeKind::kAllToAllLowLatency) return {};
  return {d.exchange_flag(), fmt::format("expected whole experts on each rank ({}) for {}, found experts split over {} ranks",
                                         d.is_vllm() ? "--enable-expert-parallel" : "--ep-size", d.exchange->name, d.layout.moe_tp)};
}

Finding heads_not_divided(const Draft& d) {
  if (d.config.attention.num_heads % d.layout.attn_tp == 0) return {};
  return {d.attn_tp_flag(), fmt::format("expected attention's tensor parallelism to divide the model's {} query heads, found {}", d.config.attention.num_heads, d.layout.attn_tp)};
}

Finding kv_heads_not_divided(const Draft& d) {
  const int64_t heads = d.config.attention.num_kv_heads, tp = d.layout.attn_tp;
  if (d.config.attention.kind == AttentionKind::kMla || heads % tp == 0 || tp % heads == 0) return {};
  return {d.attn_tp_flag(), fmt::format("expected attention's tensor parallelism to divide the model's {} KV heads or be a multiple of them, found {}", heads, tp)};
}

Finding dense_width_not_divided(const Draft& d) {
  if (!d.has_dense_layers() || d.config.dense_intermediate % d.layout.dense_tp == 0) return {};
  return {d.dense_tp_flag(), fmt::format("expected a divisor of the dense feed-forwards' width {}, found {}", d.config.dense_intermediate, d.layout.dense_tp)};
}

Finding expert_width_not_divided(const Draft& d) {
  if (!d.has_experts() || d.config.moe.expert_intermediate % d.layout.moe_tp == 0) return {};
  return {d.world_flag(), fmt::format("expected a divisor of the experts' width {}, found {} ranks that share an expert", d.config.moe.expert_intermediate, d.layout.moe_tp)};
}

Finding mxfp4_block_split(const Draft& d) {
  if (!d.has_experts() || d.layout.moe_tp == 1 || d.config.quant != WeightQuant::kMxfp4) return {};
  const int64_t each = d.config.moe.expert_intermediate / d.layout.moe_tp;
  if (each % kMxfp4Block == 0) return {};
  return {d.world_flag(), fmt::format("expected slices of MXFP4 experts in blocks of {} values, found {} ranks that share an expert and slices of {}", kMxfp4Block,
                                      d.layout.moe_tp, each)};
}

Finding shared_width_not_divided(const Draft& d) {
  if (!d.has_experts() || d.layout.ep > 1 || d.config.moe.shared_intermediate % d.layout.moe_tp == 0) return {};
  return {d.world_flag(), fmt::format("expected a divisor of the shared experts' width {}, found {} ranks that share them", d.config.moe.shared_intermediate, d.layout.moe_tp)};
}

// ---- Notes: the exchange.

Finding removed_exchange(const Draft& d) {
  if (!d.exchange || !d.exchange->is_removed) return {};
  return {d.exchange_flag(), fmt::format("{} is gone from the engine that had it; allgather_reducescatter takes its place", d.exchange->name)};
}

Finding exchange_alias(const Draft& d) {
  if (!d.exchange || d.exchange->is_removed || d.exchange->name == exchange_name(d.exchange->kind)) return {};
  return {d.exchange_flag(), fmt::format("{} is read as {}", d.exchange->name, exchange_name(d.exchange->kind))};
}

Finding exchange_for_nobody(const Draft& d) {
  if (!d.exchange || d.exchange->kind == ExchangeKind::kNone || d.layout.ep > 1) return {};
  if (!d.has_experts()) return {d.exchange_flag(), fmt::format("{} does nothing for a model without experts", d.exchange->name)};
  if (d.layout.world == 1) return {d.exchange_flag(), fmt::format("{} does nothing on one rank", d.exchange->name)};
  return {d.exchange_flag(), fmt::format("{} without expert parallelism means none: experts split over {} ranks, rows gathered before and reduced and scattered after",
                                         d.exchange->name, d.layout.moe_tp)};
}

Finding exchange_chosen(const Draft& d) {
  if (d.exchange || d.layout.ep == 1) return {};
  return {d.exchange_flag(), fmt::format("not given, so auto: alltoall_low_latency while no rank has more than {} rows in a step, else alltoall",
                                         exchange_chunk_rows(ExchangeKind::kAllToAllLowLatency, d.layout.world))};
}

Finding none_with_ep(const Draft& d) {
  if (!d.exchange || d.exchange->kind != ExchangeKind::kNone || d.layout.ep == 1) return {};
  return {d.exchange_flag(), "none with expert parallelism means that all ranks get all rows: it runs as allgather_reducescatter"};
}

Finding all_gather_cost(const Draft& d) {
  if (d.layout.exchange != ExchangeKind::kAllGatherReduceScatter || d.layout.world < 4) return {};
  const int64_t top_k = d.config.moe.router.top_k, full = row_bytes(d.config.hidden_size, false), wire = row_bytes(d.config.hidden_size, d.options.dispatch_dtype == "fp8");
  const bool is_exact = d.layout.combine == CombineOrder::kExact;
  const ExpectedDispatch e = expected_dispatch(d.layout, d.config.moe.router.num_experts, top_k);
  // In exact order the same rows come back in both.
  const double others = d.layout.world - 1.0, back = is_exact ? e.pairs_to_others * static_cast<double>(full) : 0;
  const double gathered = others * static_cast<double>(wire + top_k * (kDispatchSlotBytes + kDispatchWeightBytes) + (is_exact ? 0 : full)) + back;
  const double sent = e.rows_to_others * static_cast<double>(wire + kDispatchRowBytes + (is_exact ? 0 : full)) +
                      e.pairs_to_others * static_cast<double>(kDispatchSlotBytes + (is_exact ? 0 : kDispatchWeightBytes)) + back;
  return {d.exchange_flag(), fmt::format("allgather_reducescatter sends each row to all {} other ranks, {:.0f} bytes in a sparse layer with what comes back; alltoall to {:.2f} of them "
                                         "when experts are equally likely, {:.0f} bytes, {:.0f} % less",
                                         d.layout.world - 1, gathered, e.rows_to_others, sent, 100 * (1 - sent / gathered))};
}

// ---- Notes: what does nothing here, and what something costs.

Finding ep_on_one_rank(const Draft& d) {
  if (!d.wants_ep || d.layout.world > 1) return {};
  return {d.ep_flag(), "does nothing on one rank, which has all experts anyway"};
}

Finding eplb_on_one_rank(const Draft& d) {
  if (!d.options.enable_eplb || d.layout.world > 1) return {};
  return {"--enable-eplb", "does nothing on one rank: there is nobody to balance with"};
}

Finding eplb_per_rank(const Draft& d) {
  if (!d.options.enable_eplb || d.layout.ep == 1 || d.layout.combine != CombineOrder::kPerRank) return {};
  return {"--enable-eplb", "with --combine-order per_rank the last bits of logits change whenever experts move"};
}

Finding too_many_replicas(const Draft& d) {
  const int64_t found = d.options.num_redundant_experts, most = d.config.moe.router.num_experts * int64_t{d.layout.ep - 1};
  if (found >= 0 && (found == 0 || d.layout.ep == 1 || found <= most)) return {};
  return {"--ep-num-redundant-experts", fmt::format("expected 0 to {}, which is every expert on every rank, found {}", most, found)};
}

Finding replicas_without_ep(const Draft& d) {
  if (d.options.num_redundant_experts <= 0 || d.layout.ep > 1) return {};
  return {"--ep-num-redundant-experts", "does nothing without expert parallelism: every rank has all experts, or a part of each"};
}

Finding dp_attention_of_one(const Draft& d) {
  if (!d.options.enable_dp_attention || d.layout.attn_dp > 1) return {};
  return {"--enable-dp-attention", "does nothing with one data-parallel rank (--dp-size)"};
}

Finding placement_without_ep(const Draft& d) {
  if (!d.options.expert_placement_strategy || d.layout.ep > 1) return {};
  return {"--expert-placement-strategy", "does nothing without expert parallelism: every rank has all experts, or a part of each"};
}

Finding dispatch_dtype_without_ep(const Draft& d) {
  if (d.options.dispatch_dtype != "fp8" || d.layout.ep > 1) return {};
  return {"--dispatch-dtype", "fp8 does nothing without expert parallelism: no rows are dispatched"};
}

Finding dispatch_in_fp8(const Draft& d) {
  if (d.options.dispatch_dtype != "fp8" || d.layout.ep == 1) return {};
  return {"--dispatch-dtype", fmt::format("fp8 sends {} bytes a row instead of {} and rounds what experts see; answers may differ from one rank's unless --activation-dtype fp8 rounds "
                                          "activations the same way",
                                          row_bytes(d.config.hidden_size, true), row_bytes(d.config.hidden_size, false))};
}

Finding combine_without_ep(const Draft& d) {
  if (!d.options.combine_order || d.layout.ep > 1) return {};
  return {"--combine-order", "does nothing without expert parallelism: no rows are combined"};
}

Finding combine_per_rank(const Draft& d) {
  if (d.layout.combine != CombineOrder::kPerRank || d.layout.ep == 1) return {};
  if (d.layout.exchange == ExchangeKind::kAllToAllLowLatency) return {"--combine-order", "per_rank does nothing with alltoall_low_latency, which returns a row for each expert"};
  return {"--combine-order", "per_rank returns one row for each rank instead of each expert; the last bits of logits then depend on where experts are"};
}

Finding dense_tp_of_nothing(const Draft& d) {
  if (!d.options.moe_dense_tp_size || d.has_dense_layers()) return {};
  return {"--moe-dense-tp-size", "does nothing for a model whose layers are all sparse"};
}

Finding experts_uneven(const Draft& d) {
  if (!d.has_experts() || d.config.moe.router.num_experts % d.layout.ep == 0) return {};
  const int64_t experts = d.config.moe.router.num_experts;
  return {d.ep_flag(), fmt::format("{} experts over {} ranks: {} on each of the first {}, {} on the others",
                                   experts, d.layout.ep, experts / d.layout.ep + 1, experts % d.layout.ep, experts / d.layout.ep)};
}

Finding kv_heads_replicated(const Draft& d) {
  const AttentionConfig& a = d.config.attention;
  if (a.kind == AttentionKind::kMla || d.layout.attn_tp <= a.num_kv_heads) return {};
  const int64_t once = kv_bytes_per_token(d.config, d.kv_dtype), all = once / a.num_kv_heads * d.layout.attn_tp;
  return {d.attn_tp_flag(), fmt::format("{} KV heads over {} ranks: each head is cached on {} of them, {} bytes a token in all instead of {}", a.num_kv_heads, d.layout.attn_tp,
                                        d.layout.attn_tp / a.num_kv_heads, all, once)};
}

Finding latent_replicated(const Draft& d) {
  if (d.config.attention.kind != AttentionKind::kMla || d.layout.attn_tp == 1) return {};
  const int64_t once = kv_bytes_per_token(d.config, d.kv_dtype);
  return {d.attn_tp_flag(), fmt::format("each of {} ranks caches the same latents, {} bytes a token in all instead of {}; data-parallel attention caches each once", d.layout.attn_tp,
                                        once * d.layout.attn_tp, once)};
}

Finding fp8_blocks_cut(const Draft& d) {
  if (d.config.quant != WeightQuant::kFp8Block) return {};
  const AttentionConfig& a = d.config.attention;
  const Layout& l = d.layout;
  const auto is_cut = [](int64_t total, int64_t parts) { return parts > 1 && total / parts % kFp8Block != 0; };
  const bool is_mla = a.kind == AttentionKind::kMla;
  std::string parts;
  const auto add = [&](bool is_so, std::string_view what) {
    if (is_so) parts += fmt::format("{}{}", parts.empty() ? "" : ", ", what);
  };
  const int64_t kv_parts = std::min<int64_t>(l.attn_tp, a.num_kv_heads);
  add(is_cut(a.num_heads * a.head_dim, l.attn_tp) || (is_mla ? is_cut(a.num_heads * a.v_head_dim, l.attn_tp) : is_cut(a.num_kv_heads * a.head_dim, kv_parts)), "attention");
  add(d.has_dense_layers() && is_cut(d.config.dense_intermediate, l.dense_tp), "dense layers");
  add(d.has_experts() && is_cut(d.config.moe.expert_intermediate, l.moe_tp), "experts");
  add(d.has_experts() && l.ep == 1 && is_cut(d.config.moe.shared_intermediate, l.moe_tp), "shared experts");
  if (parts.empty()) return {};
  return {d.world_flag(), fmt::format("cuts {} inside FP8 blocks of {} values with one scale; ranks hold such parts as float32, four times the bytes stored", parts, kFp8Block)};
}

Finding context_parallel(const Draft& d) {
  if (d.layout.attn_cp == 1) return {};
  return {d.is_vllm() ? "--prefill-context-parallel-size" : "--attn-cp-size", fmt::format("the layout of {} context-parallel ranks is worked out here, but cannot run yet", d.layout.attn_cp)};
}

constexpr auto kRefusal = LayoutRule::Effect::kRefusal;
constexpr auto kNote = LayoutRule::Effect::kNote;

constexpr LayoutRule kRules[] = {
    {"one spelling", kRefusal, "the same number would mean the world in one and attention's share in the other, so write all of them in one spelling", mixed_spellings},
    {"sizes from one", kRefusal, "leave it out for 1", size_below_one},
    {"bounded world", kRefusal, "lower it", too_many_ranks},
    {"known exchange", kRefusal, "name one of these", unknown_exchange},
    {"known placement", kRefusal, "name one of these", unknown_placement},
    {"known dispatch type", kRefusal, "name one of these", unknown_dispatch_dtype},
    {"known combine order", kRefusal, "name one of these", unknown_combine_order},
    {"replicas are servers", kRefusal, "without it data parallelism means independent replicas: start one server for each, or add the flag", replicas},
    {"attention groups of one size", kRefusal, "every data-parallel rank has equally many ranks, so change one of them", world_not_divided},
    {"expert groups of one size", kRefusal, "every rank belongs to one expert-parallel rank and these have equally many, so change one of them", world_not_divided_by_ep},
    {"dense groups", kRefusal, "dense layers gather rows over one of these groups, so name one", dense_tp_of_no_group},
    {"expert parallelism needs experts", kRefusal, "leave it out", ep_without_experts},
    {"an expert for every rank", kRefusal, "lower it", ranks_without_experts},
    {"balancing needs expert parallelism", kRefusal, "only whole experts can move between ranks, so add that or leave this out", eplb_without_ep},
    {"replicas for every rank at most", kRefusal, "a second replica on a rank has no use, so lower it", too_many_replicas},
    {"dispatch needs expert parallelism", kRefusal, "every rank computes a part of every expert, so every row has to reach all; add that or leave this out", all_to_all_without_ep},
    {"whole query heads", kRefusal, "a head is not split, so choose a divisor", heads_not_divided},
    {"whole KV heads", kRefusal, "every rank has equally many, or one that several ranks have alike", kv_heads_not_divided},
    {"dense width", kRefusal, "every rank computes an equal share, so choose another degree (--moe-dense-tp-size beside --tp-size)", dense_width_not_divided},
    {"expert width", kRefusal, "every rank computes an equal share, so choose more expert parallelism or fewer ranks", expert_width_not_divided},
    {"MXFP4 blocks", kRefusal, "a block has one scale, so choose more expert parallelism or fewer ranks", mxfp4_block_split},
    {"shared width", kRefusal, "every rank computes an equal share, so choose expert parallelism or fewer ranks", shared_width_not_divided},

    {"removed exchange", kNote, "", removed_exchange},
    {"exchange alias", kNote, "", exchange_alias},
    {"exchange for nobody", kNote, "", exchange_for_nobody},
    {"exchange chosen", kNote, "", exchange_chosen},
    {"all rows everywhere", kNote, "", none_with_ep},
    {"cost of all rows everywhere", kNote, "", all_gather_cost},
    {"expert parallelism on one rank", kNote, "", ep_on_one_rank},
    {"balancing on one rank", kNote, "", eplb_on_one_rank},
    {"balancing without the exact order", kNote, "", eplb_per_rank},
    {"replicas without expert parallelism", kNote, "", replicas_without_ep},
    {"data-parallel attention of one", kNote, "", dp_attention_of_one},
    {"placement without expert parallelism", kNote, "", placement_without_ep},
    {"dispatch type without dispatch", kNote, "", dispatch_dtype_without_ep},
    {"dispatch in fp8", kNote, "", dispatch_in_fp8},
    {"combine order without combine", kNote, "", combine_without_ep},
    {"combine per rank", kNote, "", combine_per_rank},
    {"dense degree without dense layers", kNote, "", dense_tp_of_nothing},
    {"uneven experts", kNote, "", experts_uneven},
    {"replicated KV heads", kNote, "", kv_heads_replicated},
    {"replicated latents", kNote, "", latent_replicated},
    {"FP8 blocks", kNote, "", fp8_blocks_cut},
    {"context parallelism", kNote, "", context_parallel},
};

}  // namespace

std::span<const LayoutRule> layout_rules() { return kRules; }

}  // namespace cadre
