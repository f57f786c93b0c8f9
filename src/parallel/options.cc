#include "parallel/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "parallel/layout_rules.h"

namespace cadre {
namespace {

constexpr ExchangeName kExchanges[] = {{"auto", ExchangeKind::kAuto},
                                       {"none", ExchangeKind::kNone},
                                       {"allgather_reducescatter", ExchangeKind::kAllGatherReduceScatter},
                                       {"alltoall", ExchangeKind::kAllToAll},
                                       {"deepep", ExchangeKind::kAllToAll},
                                       {"deepep_high_throughput", ExchangeKind::kAllToAll},
                                       {"alltoall_low_latency", ExchangeKind::kAllToAllLowLatency},
                                       {"deepep_low_latency", ExchangeKind::kAllToAllLowLatency},
                                       {"naive", ExchangeKind::kAllGatherReduceScatter, true},
                                       {"pplx", ExchangeKind::kAllGatherReduceScatter, true}};

// A size for the draft's arithmetic; the rules refuse what was out of range.
int64_t draft_size(const std::optional<int>& written) { return std::clamp(written.value_or(1), 1, kMaxRanks); }

ExchangeKind effective_exchange(const LayoutDraft& draft) {
  if (draft.layout.ep == 1) return ExchangeKind::kNone;
  if (!draft.exchange) return ExchangeKind::kAuto;
  return draft.exchange->kind == ExchangeKind::kNone ? ExchangeKind::kAllGatherReduceScatter : draft.exchange->kind;
}

}  // namespace

const ExchangeName* find_exchange(std::string_view name) {
  const auto* found = std::find_if(std::begin(kExchanges), std::end(kExchanges), [&](const ExchangeName& e) { return e.name == name; });
  return found == std::end(kExchanges) ? nullptr : found;
}

std::string exchange_names() {
  std::string out;
  for (const ExchangeName& e : kExchanges)
    if (!e.is_removed) out += fmt::format("{}{}", out.empty() ? "" : ", ", e.name);
  return out;
}

LayoutDraft::LayoutDraft(const ParallelOptions& o, const ModelConfig& c, DType dtype) : options(o), config(c), kv_dtype(dtype) {
  int64_t dp, cp, tp;
  if (is_vllm()) {
    dp = draft_size(o.data_parallel_size), cp = draft_size(o.prefill_context_parallel_size), tp = draft_size(o.tensor_parallel_size);
    asked_world = dp * cp * tp;
  } else {
    asked_world = draft_size(o.tp_size);
    dp = o.enable_dp_attention ? draft_size(o.dp_size) : 1, cp = draft_size(o.attn_cp_size), tp = std::max<int64_t>(1, asked_world / dp / cp);
  }
  layout.world = static_cast<int>(std::min<int64_t>(asked_world, kMaxRanks));
  layout.attn_dp = static_cast<int>(dp), layout.attn_cp = static_cast<int>(cp), layout.attn_tp = static_cast<int>(tp);
  layout.ep = is_vllm() ? (o.enable_expert_parallel ? layout.world : 1) : static_cast<int>(draft_size(o.ep_size));
  layout.moe_tp = std::max(1, layout.world / layout.ep);
  layout.dense_tp = o.moe_dense_tp_size ? static_cast<int>(draft_size(o.moe_dense_tp_size)) : layout.attn_tp;
  wants_ep = o.enable_expert_parallel || o.ep_size.value_or(1) > 1;
  if (exchange_text()) exchange = find_exchange(*exchange_text());
  layout.exchange = effective_exchange(*this);
  if (o.expert_placement_strategy == "round_robin") layout.placement = PlacementStrategy::kRoundRobin;
  if (layout.ep > 1) layout.redundant_experts = std::clamp<int64_t>(o.num_redundant_experts, 0, int64_t{config.moe.router.num_experts} * (layout.ep - 1));
  if (o.combine_order == "per_rank") layout.combine = CombineOrder::kPerRank;
}

bool LayoutDraft::is_vllm() const {
  return options.tensor_parallel_size || options.data_parallel_size || options.prefill_context_parallel_size || options.enable_expert_parallel || options.all2all_backend;
}

std::string_view LayoutDraft::attn_tp_flag() const { return is_vllm() ? "--tensor-parallel-size" : "--tp-size"; }

std::string_view LayoutDraft::world_flag() const {
  if (!is_vllm() || options.tensor_parallel_size.value_or(1) > 1) return attn_tp_flag();
  return options.data_parallel_size.value_or(1) > 1 ? "--data-parallel-size" : "--prefill-context-parallel-size";
}

std::string_view LayoutDraft::ep_flag() const { return is_vllm() ? "--enable-expert-parallel" : "--ep-size"; }
std::string_view LayoutDraft::exchange_flag() const { return is_vllm() ? "--all2all-backend" : "--moe-a2a-backend"; }
std::string_view LayoutDraft::dense_tp_flag() const { return options.moe_dense_tp_size ? "--moe-dense-tp-size" : attn_tp_flag(); }
const std::optional<std::string>& LayoutDraft::exchange_text() const { return is_vllm() ? options.all2all_backend : options.moe_a2a_backend; }

bool LayoutDraft::has_dense_layers() const {
  return std::any_of(config.layers.begin(), config.layers.end(), [](const LayerConfig& l) { return !l.is_sparse; });
}

ResolvedLayout resolve_layout(const ParallelOptions& options, const ModelConfig& config, DType kv_dtype) {
  const LayoutDraft draft(options, config, kv_dtype);
  ResolvedLayout out;
  for (const LayoutRule& rule : layout_rules()) {
    const LayoutFinding finding = rule.find(draft);
    if (finding.flag.empty()) continue;
    std::string sentence = fmt::format("{}: {}{}{}", finding.flag, finding.what, rule.reason.empty() ? "" : "; ", rule.reason);
    if (rule.effect == LayoutRule::Effect::kRefusal) throw Error(ErrorKind::kInvalidInput, std::move(sentence), std::string(finding.flag));
    out.notes.push_back(std::move(sentence));
  }
  out.layout = draft.layout;
  out.is_fp8_dispatch = out.layout.ep > 1 && options.dispatch_dtype == "fp8";
  out.is_eplb_enabled = out.layout.ep > 1 && options.enable_eplb;
  return out;
}

void refuse_unrunnable(const ResolvedLayout& resolved) {
  if (resolved.layout.attn_cp > 1)
    throw unsupported("expected attention whose rows are not split along the context, found {} context-parallel ranks; their layout can be printed (--explain), not run yet",
                      resolved.layout.attn_cp);
}

}  // namespace cadre
