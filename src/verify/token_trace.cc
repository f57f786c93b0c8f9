#include "verify/token_trace.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "config/bytes.h"

namespace cadre {
namespace {

// One prompt on its rank.
struct Running {
  int dp_rank = 0;
  std::vector<int32_t> tokens;  // prompt and answer
  int64_t prompt = 0, done = 0;
  std::vector<BlockId> blocks;
  bool has_ended = false;
  int64_t new_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt; }
};

// Rows that a sequence gets in a step.
struct StepShare {
  size_t sequence = 0;
  int64_t rows = 0, first_row = 0;  // first_row: among its data-parallel rank's rows
  bool is_prefill = false;
};

// Fewest tokens, then fewest sequences, then the lowest number: as the server spreads requests unless told otherwise
// (total_tokens).
int choose_rank(const std::vector<TracedDpRank>& ranks) {
  const auto load = [](const TracedDpRank& r) { return std::pair(r.tokens_before, r.sequences_before); };
  return static_cast<int>(
      std::min_element(ranks.begin(), ranks.end(), [&](const auto& a, const auto& b) { return load(a) < load(b); }) -
      ranks.begin());
}

std::vector<Running> place(ModelRunner& runner, const TraceRequest& request, TokenTrace* trace) {
  std::vector<TracedDpRank> loads(static_cast<size_t>(runner.layout().attn_dp));
  std::vector<Running> out;
  for (const std::vector<int32_t>& prompt : request.prompts) {
    CADRE_CHECK(!prompt.empty(), "prompt {} is empty", out.size());
    const int rank = choose_rank(loads);
    if (out.empty()) {
      trace->dp_rank = rank;
      trace->dp_ranks = loads;
      trace->why_rank =
          loads.size() == 1
              ? "the only data-parallel rank"
              : "total_tokens: fewest tokens, then fewest requests; all ranks were empty when this prompt came first";
    }
    loads[static_cast<size_t>(rank)].sequences_before += 1;
    loads[static_cast<size_t>(rank)].tokens_before += static_cast<int64_t>(prompt.size());
    out.push_back({rank, prompt, static_cast<int64_t>(prompt.size()), 0,
                   runner.take_blocks(rank, static_cast<int64_t>(prompt.size()) + request.new_token + 1), false});
  }
  return out;
}

// Every sequence decodes one token or takes as much of its prompt as the step has room for on its rank.
std::vector<StepShare> share_step(const std::vector<Running>& running, int dp, int64_t budget) {
  std::vector<int64_t> used(static_cast<size_t>(dp));
  std::vector<StepShare> out;
  for (const bool prefill : {false, true})
    for (size_t i = 0; i < running.size(); ++i) {
      const Running& r = running[i];
      const bool is_prefill = r.done < r.prompt;
      int64_t& rank_used = used[static_cast<size_t>(r.dp_rank)];
      const int64_t rows = std::min(static_cast<int64_t>(r.tokens.size()) - r.done, budget - rank_used);
      if (is_prefill != prefill || r.has_ended || rows < 1) continue;
      out.push_back({i, rows, rank_used, is_prefill});
      rank_used += rows;
    }
  return out;
}

int32_t likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void run_step(ModelRunner& runner, std::vector<Running>& running, const std::vector<StepShare>& shares) {
  std::vector<RankedRows> rows;
  for (const StepShare& s : shares) {
    const Running& r = running[s.sequence];
    const bool is_whole = r.done + s.rows == static_cast<int64_t>(r.tokens.size());
    rows.push_back({r.dp_rank,
                    {std::span(r.tokens).subspan(static_cast<size_t>(r.done), static_cast<size_t>(s.rows)), r.done,
                     r.blocks, is_whole ? 1 : 0, r.prompt}});
  }
  const std::vector<float> logits = runner.step(rows);
  const size_t vocab = static_cast<size_t>(runner.vocab_size());
  const auto& eos = runner.config().eos_ids;
  size_t at = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (runner.failed()[i] != 0)
      throw Error(ErrorKind::kInternal, "expected finite router scores and logits, found a NaN; check the weights");
    Running& r = running[shares[i].sequence];
    r.done += shares[i].rows;
    if (rows[i].rows.num_logit_rows == 0) continue;
    const int32_t next = likeliest(std::span(logits).subspan(at, vocab));
    at += vocab;
    r.tokens.push_back(next);
    // Its blocks are for as many new tokens as the followed one gets.
    const bool is_full = static_cast<int64_t>(r.tokens.size()) > static_cast<int64_t>(r.blocks.size()) * kKvBlockTokens;
    r.has_ended = is_full || std::find(eos.begin(), eos.end(), next) != eos.end();
  }
}

std::string describe_rule(const RouterConfig& c, bool has_shared) {
  std::string out =
      c.score == RouterScore::kSoftmax   ? fmt::format("softmax over the logits of {} experts", c.num_experts)
      : c.score == RouterScore::kSigmoid ? fmt::format("sigmoid of the logit of each of {} experts", c.num_experts)
                                         : fmt::format("the logits of {} experts", c.num_experts);
  if (c.has_correction_bias) out += "; a learned bias is added for choosing only";
  if (c.group_score != GroupScore::kNone && c.num_groups > 1)
    out += fmt::format("; only the best {} of {} groups take part, a group counts by its {}", c.topk_groups,
                       c.num_groups, c.group_score == GroupScore::kMax ? "best expert" : "two best experts");
  out += fmt::format("; the best {} are taken", c.top_k);
  if (c.score == RouterScore::kSoftmaxOfTopK) out += ", their weights are the softmax over those";
  if (c.renormalize) out += "; weights are divided by their sum";
  if (c.scaling_factor != 1.0) out += fmt::format("; times {}", c.scaling_factor);
  if (has_shared) out += "; the shared expert takes every row";
  return out;
}

// Rows and pairs that each rank sends to each other one.
std::vector<std::vector<DispatchRows>> dispatch_flow(const ModelRunner& runner, const ExpertPlacement& placement,
                                                     int64_t layer) {
  const Layout& l = runner.layout();
  const size_t world = static_cast<size_t>(l.world), top_k = static_cast<size_t>(runner.config().moe.router.top_k);
  std::vector flow(world, std::vector<DispatchRows>(world));
  for (size_t source = 0; source < world; ++source) {
    const auto& routes = runner.last_routes(static_cast<int>(source));
    const auto found = routes.find(layer);
    if (found == routes.end()) continue;
    const std::vector<int32_t>& ids = found->second.ids;
    for (size_t row = 0; row < ids.size(); row += top_k) {
      std::vector<int64_t> pairs(static_cast<size_t>(l.ep));
      for (size_t j = row; j < row + top_k; ++j)
        ++pairs[static_cast<size_t>(placement.rank_of_slot(placement.expert_to_slots(ids[j])[0]))];
      for (size_t d = 0; d < world; ++d)
        if (const int64_t p = pairs[static_cast<size_t>(l.coords(static_cast<int>(d)).ep)]; p > 0 && d != source)
          flow[source][d] += {1, p};
    }
  }
  return flow;
}

void add_traffic(ModelRunner& runner, const ExpertPlacement& placement, const std::vector<int64_t>& dp_rows,
                 bool is_fp8, TokenTrace* trace) {
  const auto flow = dispatch_flow(runner, placement, trace->layer);
  for (int r = 0; r < trace->layout.world; ++r) {
    if (!runner.counters(r)) continue;
    LayerTrafficInput input{.dp_rows = dp_rows, .world_rank = r, .is_fp8_dispatch = is_fp8};
    for (size_t other = 0; other < flow.size(); ++other)
      input.out += flow[static_cast<size_t>(r)][other], input.in += flow[other][static_cast<size_t>(r)];
    TracedWorldRank& rank = trace->ranks[static_cast<size_t>(r)];
    rank.predicted = predict_layer_traffic(runner.config(), trace->layout, trace->plan, input);
    rank.counted = runner.counters(r)->layer(trace->layer);
  }
}

void add_work(const ModelRunner& runner, const ExpertPlacement& placement, TokenTrace* trace) {
  int64_t first_us = INT64_MAX, last_us = INT64_MIN;
  for (int r = 0; r < trace->layout.world; ++r) first_us = std::min(first_us, runner.expert_work(r).finished_us);
  for (int r = 0; r < trace->layout.world; ++r) {
    const ExpertWork& work = runner.expert_work(r);
    TracedWorldRank& rank = trace->ranks[static_cast<size_t>(r)];
    const auto held = placement.experts_of(trace->layout.coords(r).ep);
    rank.experts.assign(held.begin(), held.end());
    rank.rows_of_slot = work.rows_of_slot;
    rank.rows = std::accumulate(work.rows_of_slot.begin(), work.rows_of_slot.end(), int64_t{0});
    rank.compute_us = work.compute_us;
    rank.finished_after_us = work.finished_us - first_us;
    if (work.finished_us > last_us) last_us = work.finished_us, trace->last_rank = r;
  }
}

// What this row alone sends, and what comes back for it.
void add_row_bytes(const ModelConfig& config, bool is_fp8, TokenTrace* trace) {
  const Layout& l = trace->layout;
  const int64_t hidden = config.hidden_size * kActivationBytes, wire = row_bytes(config.hidden_size, is_fp8),
                top_k = config.moe.router.top_k, others = l.world - 1;
  const bool is_exact = l.combine == CombineOrder::kExact || trace->exchange == ExchangeKind::kAllToAllLowLatency;
  int64_t remote_pairs = 0;
  for (const TracedExpert& e : trace->experts)
    remote_pairs += l.moe_tp - (e.ep_rank == l.coords(trace->owner).ep ? 1 : 0);
  trace->rows_back = is_exact ? top_k * l.moe_tp : static_cast<int64_t>(trace->destinations.size());
  trace->remote_rows_back = is_exact ? remote_pairs : trace->num_remote();
  trace->combine_order =
      is_exact
          ? "one row for each of its experts, added at the owner in top-k order with the router's weights, in float32"
          : "one row for each destination rank, which has added its experts with the router's weights; the owner adds "
            "the ranks, in float32";
  switch (trace->exchange) {
    case ExchangeKind::kAllToAllLowLatency:
      trace->sent_bytes = remote_pairs * wire;
      break;
    case ExchangeKind::kAllToAll:
      trace->sent_bytes = trace->num_remote() * (wire + kDispatchRowBytes) +
                          remote_pairs * (kDispatchSlotBytes + (is_exact ? 0 : kDispatchWeightBytes));
      break;
    case ExchangeKind::kAllGatherReduceScatter:
      trace->sent_bytes = others * (wire + top_k * (kDispatchSlotBytes + kDispatchWeightBytes));
      if (is_exact) break;
      [[fallthrough]];
    default:  // a reduce-scatter: every rank has a part of every row's sum
      if (trace->exchange == ExchangeKind::kNone) trace->sent_bytes = others * hidden;
      trace->rows_back = l.world;
      trace->remote_rows_back = others;
      trace->combine_order = l.world == 1
                                 ? "its experts' outputs are added in top-k order with the router's weights, in float32"
                                 : "every rank adds what it has of the row's experts; the reduce-scatter adds the "
                                   "ranks' parts, in float32";
  }
  trace->back_bytes = trace->remote_rows_back * hidden;
  if (config.moe.shared_intermediate == 0) return;
  if (l.world > 1 && trace->exchange == ExchangeKind::kNone)
    trace->combine_order += ", the shared expert's among them";
  else
    trace->combine_order += "; then the shared expert's output";
}

void add_route(const ModelRunner& runner, const ExpertPlacement& placement, int64_t row_of_owner, TokenTrace* trace) {
  const Layout& l = trace->layout;
  const SeenRoutes& seen = runner.last_routes(trace->owner).at(trace->layer);
  const size_t top_k = static_cast<size_t>(runner.config().moe.router.top_k),
               first = static_cast<size_t>(row_of_owner) * top_k;
  CADRE_CHECK(first + top_k <= seen.ids.size(), "row {} of {}", row_of_owner, seen.ids.size() / top_k);
  for (size_t j = first; j < first + top_k; ++j) {
    const int32_t slot = placement.expert_to_slots(seen.ids[j])[0];
    const int ep_rank = placement.rank_of_slot(slot);
    trace->experts.push_back({seen.ids[j], seen.weights[j], slot, placement.local_slot(slot), ep_rank});
    for (int k = 0; k < l.moe_tp; ++k) trace->destinations.push_back(ep_rank * l.moe_tp + k);
  }
  std::sort(trace->destinations.begin(), trace->destinations.end());
  trace->destinations.erase(std::unique(trace->destinations.begin(), trace->destinations.end()),
                            trace->destinations.end());
}

// The step that takes the token, run already, into the trace.
void fill_in(ModelRunner& runner, const TraceRequest& request, const std::vector<StepShare>& shares,
             TokenTrace* trace) {
  const ModelConfig& config = runner.config();
  const Layout& l = trace->layout;
  std::vector<int64_t> dp_rows(static_cast<size_t>(l.attn_dp)), world_rows(static_cast<size_t>(l.world));
  for (size_t r = 0; r < dp_rows.size(); ++r) dp_rows[r] = trace->dp_ranks[r].rows;
  scattered_rows(l, dp_rows, world_rows);
  trace->ranks.resize(world_rows.size());
  for (size_t r = 0; r < world_rows.size(); ++r) trace->ranks[r].own_rows = world_rows[r];
  const auto followed = std::find_if(shares.begin(), shares.end(), [](const StepShare& s) { return s.sequence == 0; });
  int64_t row = followed->first_row;
  trace->owner = l.leader_of(trace->dp_rank);
  for (; row >= world_rows[static_cast<size_t>(trace->owner)]; ++trace->owner)
    row -= world_rows[static_cast<size_t>(trace->owner)];
  const ExpertPlacement placement = ExpertPlacement::initial(config.moe.router.num_experts, l.ep, l.placement, l.redundant_experts);
  trace->exchange = l.ep == 1 ? ExchangeKind::kNone : exchange_for_step(l.exchange, world_rows);
  trace->routing_rule = describe_rule(config.moe.router, config.moe.shared_intermediate > 0);
  add_route(runner, placement, row, trace);
  add_traffic(runner, placement, dp_rows, request.is_fp8_dispatch, trace);
  add_work(runner, placement, trace);
  add_row_bytes(config, request.is_fp8_dispatch, trace);
}

}  // namespace

int TokenTrace::num_remote() const {
  return static_cast<int>(destinations.size()) -
         (std::find(destinations.begin(), destinations.end(), owner) == destinations.end() ? 0 : 1);
}

bool TokenTrace::counts_are_as_predicted() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const TracedWorldRank& r) { return r.counted == r.predicted; });
}

int64_t traced_layer(const ModelConfig& config, std::optional<int64_t> asked) {
  std::vector<int64_t> sparse;
  for (size_t i = 0; i < config.layers.size(); ++i)
    if (config.layers[i].is_sparse) sparse.push_back(static_cast<int64_t>(i));
  if (sparse.empty())
    throw invalid_input(
        "--trace-token: expected a model with sparse layers, found a dense one ({}), whose tokens meet no router and "
        "no experts; take a mixture-of-experts model",
        family_name(config.family));
  if (!asked) return sparse.front();
  if (std::find(sparse.begin(), sparse.end(), *asked) == sparse.end())
    throw invalid_input("--trace-layer: expected a sparse layer of the model ({} to {}), found {}; choose another",
                        sparse.front(), sparse.back(), *asked);
  return *asked;
}

int64_t trace_blocks(const TraceRequest& request) {
  int64_t blocks = 0;
  for (const auto& prompt : request.prompts)
    blocks += (static_cast<int64_t>(prompt.size()) + request.new_token + 1 + kKvBlockTokens - 1) / kKvBlockTokens;
  return blocks;
}

TokenTrace trace_token(ModelRunner& runner, const TraceRequest& request, const Clock& clock) {
  CADRE_CHECK(!request.prompts.empty() && request.new_token >= 1, "{} prompts, token {}", request.prompts.size(),
              request.new_token);
  TokenTrace trace;
  trace.layer = traced_layer(runner.config(), request.layer);
  trace.num_layers = runner.config().num_layers;
  trace.layout = runner.layout();
  trace.plan = plan_layers(runner.config(), trace.layout)[static_cast<size_t>(trace.layer)];
  std::vector<Running> running = place(runner, request, &trace);
  const Running& followed = running.front();
  for (;; ++trace.step) {
    const bool is_traced = followed.new_tokens() == request.new_token;
    if (followed.has_ended)
      throw invalid_input(
          "--trace-token: expected an answer of more than {} new tokens, found one that ends after {}; follow an "
          "earlier one",
          request.new_token, followed.new_tokens() - 1);
    const auto shares = share_step(running, trace.layout.attn_dp, runner.max_batched_tokens());
    if (is_traced) {
      for (const StepShare& s : shares) {
        TracedDpRank& rank = trace.dp_ranks[static_cast<size_t>(running[s.sequence].dp_rank)];
        rank.rows += s.rows;
        if (s.is_prefill) rank.prefill_rows += s.rows;
      }
      trace.new_token = request.new_token;
      trace.prompt_tokens = followed.prompt;
      trace.position = followed.done;
      trace.token = followed.tokens.back();
      runner.watch_experts(trace.layer, clock);
      for (int r = 0; r < trace.layout.world; ++r)
        if (runner.counters(r)) runner.counters(r)->reset();
    }
    run_step(runner, running, shares);
    if (!is_traced) continue;
    fill_in(runner, request, shares, &trace);
    trace.next_token = followed.tokens.back();
    for (const Running& r : running) runner.give_back(r.dp_rank, r.blocks);
    return trace;
  }
}

}  // namespace cadre
