#include "cli/balance_flags.h"

#include <CLI/Validators.hpp>
#include <cstdio>

#include "eplb/planner.h"

namespace cadre::cli {

void add_balance_flags(CLI::App& command, BalanceFlags& f) {
  constexpr const char* kGroup = "Expert load balancing (--enable-eplb)";
  command.add_option("--eplb-algorithm", f.algorithm, "cadre: moves what repays its bytes; deepseek, deepseek_hierarchical: the published ones")
      ->check(CLI::IsMember({"auto", "cadre", "deepseek", "deepseek_hierarchical"}))->capture_default_str()->group(kGroup);
  command.add_option("--eplb-window,--eplb-window-size", f.window_steps, "Steps whose load counts")->check(CLI::Range(int64_t{1}, int64_t{1} << 30))->capture_default_str()->group(kGroup);
  command.add_option("--eplb-rebalance-num-iterations,--eplb-step-interval", f.interval_steps, "Steps between two plans; 0: only placements set by hand")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))->capture_default_str()->group(kGroup);
  command.add_option("--eplb-layers-per-step,--eplb-rebalance-layers-per-chunk", f.layers_per_step, "Layers that may be planned, and moved where time allows, in one step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))->capture_default_str()->group(kGroup);
  command.add_option("--eplb-min-rebalancing-utilization-threshold", f.min_utilization, "Balancedness from which on nothing is moved")
      ->check(CLI::Range(0.0, 1.0))->capture_default_str()->group(kGroup);
  command.add_option("--ep-dispatch-algorithm", f.dispatch, "Which replica a row goes to: static (the nearest, or else by rank), dynamic (in turn); auto: static")
      ->check(CLI::IsMember({"auto", "static", "dynamic"}))->capture_default_str()->group(kGroup);
  command.add_option("--eplb-ranks-per-node", f.ranks_per_node, "Consecutive expert-parallel ranks that are near each other; 0: all are")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))->capture_default_str()->group(kGroup);
}

ReplicaChoice replica_choice_of(const BalanceFlags& flags) { return flags.dispatch == "dynamic" ? ReplicaChoice::kDynamic : ReplicaChoice::kStatic; }

std::optional<eplb::BalancerOptions> balancer_options(const BalanceFlags& flags, const ResolvedLayout& resolved, const ModelConfig& config) {
  if (!resolved.is_eplb_enabled || config.moe.router.num_experts == 0) return std::nullopt;
  eplb::BalancerOptions out{.interval_steps = flags.interval_steps, .window_steps = flags.window_steps, .layers_per_step = flags.layers_per_step, .min_balancedness = flags.min_utilization,
                            .ranks_per_node = static_cast<int>(flags.ranks_per_node)};
  const int nodes = flags.ranks_per_node > 0 && resolved.layout.ep % flags.ranks_per_node == 0 ? resolved.layout.ep / static_cast<int>(flags.ranks_per_node) : 1;
  out.planner = eplb::make_planner(flags.algorithm == "auto" ? "cadre" : flags.algorithm, resolved.layout, config.moe.router, nodes);
  out.log = [](const std::string& line) { std::fprintf(stderr, "cadre: %s\n", line.c_str()); };
  return out;
}

}  // namespace cadre::cli
