#include "cli/balance_flags.h"

#include <fmt/format.h>

#include <CLI/Validators.hpp>
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/error.h"
#include "base/json.h"
#include "eplb/planner.h"

namespace cadre::cli {
namespace {

std::string_view algorithm_of(const BalanceFlags& flags) { return flags.algorithm == "auto" ? "cadre" : std::string_view(flags.algorithm); }

// What vLLM's --eplb-config says, as if its flags had been written.
void apply_eplb_config(const std::string& text, BalanceFlags& flags, ParallelOptions& options) {
  const json::value value = parse_json(text, "--eplb-config");
  if (!value.is_object()) throw invalid_input("--eplb-config: expected a JSON object, found {}", describe(value));
  const JsonObject given(value.get_object(), "--eplb-config");
  constexpr std::array<std::string_view, 7> kKeys = {"window_size", "step_interval", "num_redundant_experts", "log_balancedness", "log_balancedness_interval", "use_async", "policy"};
  for (const auto& [key, unused] : value.get_object())
    if (std::ranges::find(kKeys, std::string_view(key)) == kKeys.end())
      throw invalid_input("--eplb-config: expected the keys {}, found {}; leave it out", fmt::join(kKeys, ", "), cadre::quoted(std::string(key)));
  flags.window_steps = given.maybe_integer("window_size", 1, 1 << 30).value_or(flags.window_steps);
  flags.interval_steps = given.maybe_integer("step_interval", 0, int64_t{1} << 40).value_or(flags.interval_steps);
  options.num_redundant_experts = given.maybe_integer("num_redundant_experts", 0, 1 << 30).value_or(options.num_redundant_experts);
  // Balancedness is always logged and experts always move beside steps, in this engine's own way.
  given.maybe_boolean("log_balancedness");
  given.maybe_boolean("use_async");
  if (const auto policy = given.maybe_string("policy"); policy && *policy != "default")
    throw invalid_input("--eplb-config: policy: expected default, found {}; --eplb-algorithm names the others", cadre::quoted(*policy));
}

}  // namespace

void add_balance_flags(CLI::App& command, BalanceFlags& f, ParallelOptions& options) {
  constexpr const char* kGroup = "Expert load balancing (--enable-eplb)";
  command.add_option_function<std::string>("--eplb-config", [&](const std::string& text) { apply_eplb_config(text, f, options); },
                                           R"(vLLM's spelling, JSON: {"window_size": 1000, "step_interval": 3000, "num_redundant_experts": 0})")->group(kGroup);
  command.add_option("--eplb-algorithm", f.algorithm, "cadre: moves what repays its bytes; deepseek, deepseek_hierarchical: the published ones")
      ->check(CLI::IsMember({"auto", "cadre", "deepseek", "deepseek_hierarchical"}))->capture_default_str()->group(kGroup);
  command.add_option("--eplb-window,--eplb-window-size", f.window_steps, "Steps whose load counts")->check(CLI::Range(int64_t{1}, int64_t{1} << 30))->capture_default_str()->group(kGroup);
  command.add_option("--eplb-rebalance-num-iterations,--eplb-step-interval", f.interval_steps, "Steps between two plans; 0: only placements set by hand")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))->capture_default_str()->group(kGroup);
  command.add_option("--eplb-layers-per-step,--eplb-rebalance-layers-per-chunk", f.layers_per_step, "Layers that may be planned, and moved where time allows, in one step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))->capture_default_str()->group(kGroup);
  command.add_option("--eplb-min-rebalancing-utilization-threshold", f.min_utilization, "Balancedness from which on nothing is moved")
      ->check(CLI::Range(0.0, 1.0))->capture_default_str()->group(kGroup);
  command.add_option("--ep-dispatch-algorithm", f.dispatch, 
                     "Which replica a row goes to: static (the nearest, or else by rank), dynamic (in turn), water_fill (so that the busiest rank of the batch is least busy); auto: water_fill")
      ->check(CLI::IsMember({"auto", "static", "dynamic", "water_fill"}))->capture_default_str()->group(kGroup);
  command.add_flag("--eplb-free-moves", f.has_free_moves, "Plan for balance alone; else a move has to repay, by the next plan, the time that its bytes take here")->group(kGroup);
  command.add_option("--init-expert-location", f.initial,
                     "Where experts begin: a placement (cadre eplb plan --out, GET /expert_placement, SGLang, vLLM-Ascend), or a recorded load to plan from; trivial: in order")
      ->capture_default_str()->group(kGroup);
  command.add_option("--eplb-ranks-per-node", f.ranks_per_node, "Consecutive expert-parallel ranks that are near each other; 0: all are")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))->capture_default_str()->group(kGroup);
}

ReplicaChoice replica_choice_of(const BalanceFlags& flags) { return flags.dispatch == "auto" ? ReplicaChoice::kWaterFill : parse_replica_choice(flags.dispatch); }

int num_nodes(const BalanceFlags& flags, const Layout& layout) {
  return flags.ranks_per_node > 0 && layout.ep % flags.ranks_per_node == 0 ? layout.ep / static_cast<int>(flags.ranks_per_node) : 1;
}

std::vector<ExpertPlacement> initial_placements(const BalanceFlags& flags, const ResolvedLayout& resolved, const ModelConfig& config) {
  if (flags.initial == "trivial") return {};
  const Layout& layout = resolved.layout;
  if (config.moe.router.num_experts == 0 || layout.ep == 1) 
    throw invalid_input("--init-expert-location: expected a layout with expert parallelism, found none; leave it out, or add --enable-expert-parallel or --ep-size");
  std::vector<int64_t> sparse;
  for (size_t i = 0; i < config.layers.size(); ++i)
    if (config.layers[i].is_sparse) sparse.push_back(static_cast<int64_t>(i));
  return eplb::read_initial_placements(flags.initial, algorithm_of(flags), sparse, eplb::cluster_of(layout, config.moe.router, num_nodes(flags, layout)));
}

std::optional<eplb::BalancerOptions> balancer_options(const BalanceFlags& flags, const ResolvedLayout& resolved, const ModelConfig& config) {
  if (!resolved.is_eplb_enabled || config.moe.router.num_experts == 0) return std::nullopt;
  eplb::BalancerOptions out{.interval_steps = flags.interval_steps, .window_steps = flags.window_steps, .layers_per_step = flags.layers_per_step,
                            .min_balancedness = flags.min_utilization, .prices_moves = !flags.has_free_moves,
                            .ranks_per_node = static_cast<int>(flags.ranks_per_node)};
  out.planner = eplb::make_planner(algorithm_of(flags), resolved.layout, config.moe.router, num_nodes(flags, resolved.layout));
  out.log = [](const std::string& line) { std::fprintf(stderr, "cadre: %s\n", line.c_str()); };
  return out;
}

}  // namespace cadre::cli
