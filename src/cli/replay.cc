#include "cli/replay.h"

#include <CLI/Validators.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/error.h"
#include "cli/calibration.h"
#include "cli/commands.h"
#include "config/bytes.h"
#include "eplb/planner.h"
#include "replay/summary.h"

namespace cadre::cli {
namespace {

// As serve bounds prompts where ranks step together (cli/engine_flags.cc).
constexpr int64_t kSharedStepPrefill = 128;

replay::Trace read(const ReplayFlags& flags) {
  return replay::read_trace(flags.trace, {.limit = flags.limit,
                                          .rate = flags.rate,
                                          .repeat = flags.repeat,
                                          .session_interval_s = flags.session_interval_s});
}

std::vector<LoadBalance> policies_of(const ReplayFlags& flags) {
  std::vector<LoadBalance> out;
  for (const std::string& name : flags.policies) {
    const auto method = load_balance_of(name);
    if (!method || *method == LoadBalance::kFollowBootstrapRoom)
      throw invalid_input(
          "--replay-policy: expected round_robin, total_requests or total_tokens, found {}; name one of these",
          cadre::quoted(name));
    out.push_back(*method);
  }
  return out;
}

// "dp8 tp1 ep8 x2": data-parallel ranks, ranks that share their heads, expert-parallel ranks, servers.
std::string layout_name(const Layout& layout, int replicas) {
  std::string out = fmt::format("dp{} tp{}", layout.attn_dp, layout.attn_tp * layout.attn_cp);
  if (layout.ep > 1) out += fmt::format(" ep{}", layout.ep);
  if (replicas > 1) out += fmt::format(" x{}", replicas);
  return out;
}

replay::Summary run_once(const ReplayFlags& flags, const replay::Trace& trace, replay::ClusterOptions options,
                         LoadBalance policy) {
  options.load_balance = policy;
  options.has_prefix_cache = flags.has_prefix_cache;
  options.sync = flags.dp_sync == "waves" ? DpSync::kWaves : DpSync::kLockstep;
  const auto start = std::chrono::steady_clock::now();
  replay::Summary summary = replay::summarize(trace, options, replay::replay_trace(trace, options));
  if (flags.is_timed)
    summary.predicted_wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  summary.policy = load_balance_name(policy);
  return summary;
}

void print(const ReplayFlags& flags, replay::Trace& trace, const std::vector<replay::Summary>& runs, bool as_json) {
  if (flags.has_prefix_cache && trace.block_tokens == 0)
    trace.notes.emplace_back("it does not say what prompts share: the prefix cache finds nothing");
  if (flags.has_prefix_cache && trace.block_tokens % kKvBlockTokens != 0)
    trace.notes.push_back(
        fmt::format("its ids stand for {} tokens, no multiple of a KV block ({}): the prefix cache finds nothing",
                    trace.block_tokens, kKvBlockTokens));
  std::fputs(
      (as_json ? json::serialize(replay::summaries_json(trace, runs)) + "\n" : replay::summaries_text(trace, runs))
          .c_str(),
      stdout);
}

void check_load_flags(const ReplayFlags& flags) {
  if (flags.moves_experts && flags.load.empty())
    throw invalid_input(
        "--replay-eplb: expected a recorded load to plan from (--replay-load), found none; record one with cadre "
        "generate --report-file");
}

// What experts get in a step, and where they go. Empty without a recorded load, or where experts are not spread over
// ranks.
std::function<replay::ExpertBalance()> balance_of(const ReplayFlags& flags, const planner::PlannedModel& model,
                                                  const planner::PlanRequest& request, const Layout& layout) {
  const ModelConfig& config = model.config();
  const RouterConfig& router = config.moe.router;
  if (flags.load.empty()) return {};
  if (router.num_experts == 0)
    throw invalid_input("--replay-load: expected a model with experts, found none in {}; leave it out",
                        family_name(config.family));
  eplb::LoadSeries series = eplb::read_load(flags.load);
  if (series.num_experts != router.num_experts)
    throw invalid_input("--replay-load: expected loads of the model's {} experts, found {}; give one of this model", router.num_experts, series.num_experts);
  if (layout.ep < 2) return {};  // every rank does the same
  const int nodes = layout.ep % planner::ranks_per_domain(request) == 0
                        ? std::max(1, layout.ep / planner::ranks_per_domain(request))
                        : 1;
  replay::ExpertBalanceOptions options{.cluster = eplb::cluster_of(layout, router, nodes),
                                       .planner = {},
                                       .interval_steps = flags.interval_steps,
                                       .window_steps = flags.window_steps};
  if (flags.moves_experts) options.planner = eplb::make_planner(flags.algorithm, layout, router, nodes);
  const auto num_sparse = static_cast<double>(
      std::count_if(config.layers.begin(), config.layers.end(), [](const LayerConfig& l) { return l.is_sparse; }));
  const double slot_bytes = static_cast<double>(model.expert_bytes()) / std::max(num_sparse, 1.0);
  const planner::HardwareSpec& hardware = request.hardware;
  const double bytes_per_s =
      nodes > 1 && hardware.network_bytes_per_s > 0 ? hardware.network_bytes_per_s : hardware.domain_bytes_per_s;
  options.us_per_slot = bytes_per_s > 0 ? slot_bytes / bytes_per_s * 1e6 : 0;
  return [series = std::move(series), options] { return replay::ExpertBalance(series, options); };
}

replay::ClusterOptions options_of(const ReplayFlags& flags, const planner::PlannedModel& model,
                                  const planner::PlanRequest& request, const planner::Candidate& layout,
                                  int64_t context) {
  replay::ClusterOptions o;
  o.replicas = layout.replicas;
  o.ranks = layout.layout.attn_dp;
  o.scheduler.max_num_seqs = flags.max_num_seqs > 0 ? flags.max_num_seqs : request.max_batch_per_rank;
  o.scheduler.max_num_batched_tokens = request.prefill_rows;
  o.scheduler.max_prefill_tokens_per_step = flags.max_prefill_tokens_per_step >= 0
                                                ? flags.max_prefill_tokens_per_step
                                                : (o.ranks > 1 ? kSharedStepPrefill : 0);
  o.num_kv_blocks = std::min<int64_t>(layout.memory.tokens / kKvBlockTokens, std::numeric_limits<BlockId>::max());
  o.max_model_len = context > 0 ? context : model.config().max_position;
  o.queue = {.max_requests = INT64_MAX, .max_tokens = INT64_MAX};
  planner::StepOptions step{.kv_value_bytes = request.kv_value_bytes,
                            .is_fp8_dispatch = layout.is_fp8_dispatch,
                            .balancedness = layout.balancedness,
                            .ranks_per_domain = planner::ranks_per_domain(request)};
  o.balance = balance_of(flags, model, request, layout.layout);
  const replay::StepCost roofline = replay::roofline_cost(model, layout.layout, request.hardware, step);
  // Without a recorded load, or where it does not matter, what the plan assumed.
  o.cost =
      o.balance ? roofline : [roofline, fixed = layout.balancedness](std::span<const replay::StepShape> ranks, double) {
        return roofline(ranks, fixed);
      };
  return o;
}

}  // namespace

void add_replay_flags(CLI::App& command, ReplayFlags& f) {
  const char* group = "Replay of a trace";
  command
      .add_option("--replay", f.trace,
                  "Serve this trace in simulated time: Mooncake, Azure, ServeGen or coding-agent form (docs/replay.md)")
      ->group(group);
  command.add_option("--replay-rate", f.rate, "Arrivals so many times as fast")->capture_default_str()->group(group);
  command.add_option("--replay-limit", f.limit, "The first so many requests; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str()
      ->group(group);
  command.add_option("--replay-repeat", f.repeat, "The trace so many times, one after the other")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--replay-session-interval", f.session_interval_s,
                  "Seconds between sessions, in traces that do not say when theirs began")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--replay-policy,--load-balance-method", f.policies,
                  "How requests are spread: " + load_balance_names() + "; several make a table")
      ->delimiter(',')
      ->capture_default_str()
      ->group(group);
  command.add_option("--replay-layouts", f.num_layouts, "The best so many layouts")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--prefix-cache", f.has_prefix_cache,
                "Keep prompts' blocks and find them again, in traces that say what prompts share")
      ->group(group);
  command
      .add_option("--replay-cost", f.cost,
                  "Step times from this file of cadre calibrate, in place of a model and devices")
      ->check(CLI::ExistingFile)
      ->group(group);
  command
      .add_option("--max-num-seqs", f.max_num_seqs,
                  "Sequences that run at once on a data-parallel rank; --max-batch unless told")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->group(group);
  command
      .add_option("--max-prefill-tokens-per-step", f.max_prefill_tokens_per_step,
                  "As for serve: 128 unless told where data-parallel ranks step together, else 0 (no bound)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->group(group);
  command.add_option("--dp-sync", f.dp_sync, "As for serve: lockstep or waves")
      ->check(CLI::IsMember({"lockstep", "waves"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--replay-load", f.load,
                  "A recorded expert load, in any form that cadre eplb reads; its records are steps")
      ->check(CLI::ExistingFile)
      ->group(group);
  command.add_flag("--replay-eplb", f.moves_experts, "Move experts by that load while the trace runs")->group(group);
  command.add_option("--replay-eplb-algorithm", f.algorithm, "cadre, deepseek or deepseek_hierarchical")
      ->capture_default_str()
      ->group(group);
  command.add_option("--replay-eplb-interval", f.interval_steps, "Steps between rebalances")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str()
      ->group(group);
  command.add_option("--replay-eplb-window", f.window_steps, "Steps whose load counts")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--replay-timing", f.is_timed, "Tell how long each simulation took")->group(group);
}

int run_replay(const ReplayFlags& flags, const planner::PlannedModel& model, const planner::PlanRequest& request,
               std::span<const planner::Candidate> layouts, int64_t context, bool as_json) {
  check_load_flags(flags);
  const auto policies = policies_of(flags);
  replay::Trace trace = read(flags);
  std::vector<replay::Summary> runs;
  for (const planner::Candidate& layout :
       layouts.first(std::min(layouts.size(), static_cast<size_t>(flags.num_layouts)))) {
    const replay::ClusterOptions options = options_of(flags, model, request, layout, context);
    if (!flags.load.empty() && !options.balance)
      trace.notes.push_back(fmt::format("{}: experts are not spread over ranks, so their load does not matter", layout_name(layout.layout, layout.replicas)));
    for (const LoadBalance policy : policies) {
      runs.push_back(run_once(flags, trace, options, policy));
      runs.back().layout = layout_name(layout.layout, layout.replicas);
    }
  }
  if (runs.empty())
    throw invalid_input(
        "--replay: expected a layout that fits these devices, found none; cadre plan without --replay says what is "
        "missing");
  print(flags, trace, runs, as_json);
  return kExitOk;
}

int run_measured_replay(const ReplayFlags& flags, bool as_json) {
  if (!flags.load.empty() || flags.moves_experts)
    throw invalid_input(
        "--replay-load: expected devices (--hardware), found measured step times (--replay-cost); give one of the two");
  const auto policies = policies_of(flags);
  const Calibration calibration = read_calibration(flags.cost);
  replay::Trace trace = read(flags);
  replay::ClusterOptions options{.ranks = calibration.ranks,
                                 .scheduler = calibration.scheduler,
                                 .num_kv_blocks = calibration.num_kv_blocks,
                                 .max_model_len = calibration.max_model_len,
                                 .queue = {},
                                 .cost = calibration.cost,
                                 .balance = {}};
  if (flags.max_num_seqs > 0) options.scheduler.max_num_seqs = flags.max_num_seqs;
  if (flags.max_prefill_tokens_per_step >= 0)
    options.scheduler.max_prefill_tokens_per_step = flags.max_prefill_tokens_per_step;
  std::vector<replay::Summary> runs;
  for (const LoadBalance policy : policies) {
    runs.push_back(run_once(flags, trace, options, policy));
    runs.back().layout = calibration.model.empty() ? "measured" : calibration.model;
  }
  print(flags, trace, runs, as_json);
  return kExitOk;
}

}  // namespace cadre::cli
