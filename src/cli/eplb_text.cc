#include "cli/eplb_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/units.h"

namespace cadre::cli {
namespace {

// Balancednesses that differ by rounding alone are equal.
constexpr double kRounding = 1 - 1e-9;

std::string cluster_text(const eplb::Cluster& c) {
  return fmt::format("{} experts and {} redundant slots over {} ranks of {} slots", c.num_experts,
                     c.num_replicas - c.num_experts, c.ranks, c.slots_per_rank());
}

json::object cluster_json(const eplb::Cluster& c) {
  return {{"experts", c.num_experts}, {"redundant", c.num_replicas - c.num_experts},
          {"ranks", c.ranks},         {"slots_per_rank", c.slots_per_rank()},
          {"nodes", c.nodes},         {"groups", c.groups}};
}

std::string slots_text(std::span<const int32_t> slots) {
  std::string out;
  for (const int32_t e : slots)
    out += (out.empty() ? "" : " ") + (e == kEmptySlot ? std::string("-") : std::to_string(e));
  return out;
}

double ms(int64_t us) { return static_cast<double>(us) / 1000; }

}  // namespace

std::string plan_text(const PlanText& t) {
  std::string out = cluster_text(t.cluster) + fmt::format("; planned in {:.2f} ms\n\n", ms(t.plan.planning_us));
  for (size_t l = 0; l < t.plan.layers.size(); ++l) {
    const eplb::LayerOutcome& layer = t.plan.layers[l];
    out += fmt::format("layer {}: balancedness {:.4f}, before {:.4f}{}\n", layer.layer, layer.after, layer.before,
                       t.has_current ? fmt::format(", {} slots move", layer.moved) : "");
    for (int r = 0; r < t.cluster.ranks; ++r)
      out += fmt::format("  rank {:>3}: {}\n", r, slots_text(t.plan.placement.placements[l].experts_of(r)));
  }
  const double passes = static_cast<double>(t.num_passes), before = t.plan.fullest_before() / passes,
               after = t.plan.fullest_after() / passes;
  out += fmt::format("\nbalancedness: mean {:.4f}, least {:.4f}; before: mean {:.4f}{}\n", t.plan.mean_after(),
                     t.plan.least_after(), t.plan.mean_before(),
                     t.has_current ? "" : " (experts in order over the ranks)");
  if (t.has_current)
    out += fmt::format("moves: {} slots{}\n", t.plan.moved(),
                       t.expert_bytes ? ", " + bytes_text(static_cast<uint64_t>(t.plan.moved() * *t.expert_bytes))
                                      : "; --expert-bytes or --model tell the bytes");
  out += fmt::format("experts' part of a step, rows on the fullest ranks: {:.0f}, before {:.0f} ({:+.1f} %)\n", after,
                     before, before > 0 ? 100 * (after / before - 1) : 0.0);
  if (t.us_per_row > 0)
    out += fmt::format("experts' part of a step: {:.3f} ms, before {:.3f} ms\n", after * t.us_per_row / 1000,
                       before * t.us_per_row / 1000);
  return out;
}

json::object plan_json(const PlanText& t) {
  json::array layers;
  for (size_t l = 0; l < t.plan.layers.size(); ++l) {
    const eplb::LayerOutcome& o = t.plan.layers[l];
    const auto slots = t.plan.placement.placements[l].slot_to_expert();
    layers.push_back(json::object{{"layer", o.layer},
                                  {"balancedness", o.after},
                                  {"balancedness_before", o.before},
                                  {"moved_slots", o.moved},
                                  {"slot_to_expert", json::array(slots.begin(), slots.end())}});
  }
  const double passes = static_cast<double>(t.num_passes);
  json::object out{{"cluster", cluster_json(t.cluster)},
                   {"planning_ms", ms(t.plan.planning_us)},
                   {"balancedness", t.plan.mean_after()},
                   {"least_balancedness", t.plan.least_after()},
                   {"balancedness_before", t.plan.mean_before()},
                   {"fullest_rows", t.plan.fullest_after() / passes},
                   {"fullest_rows_before", t.plan.fullest_before() / passes},
                   {"moved_slots", t.has_current ? json::value(t.plan.moved()) : json::value()},
                   {"layers", std::move(layers)}};
  if (t.has_current && t.expert_bytes) out["moved_bytes"] = t.plan.moved() * *t.expert_bytes;
  if (t.us_per_row > 0) {
    out["step_ms"] = t.plan.fullest_after() / passes * t.us_per_row / 1000;
    out["step_ms_before"] = t.plan.fullest_before() / passes * t.us_per_row / 1000;
  }
  return out;
}

std::vector<int64_t> layers_below(const Comparison& c) {
  std::vector<int64_t> out;
  const eplb::ModelPlan& cadre = c.algorithms.back().plan;
  for (size_t l = 0; l < cadre.layers.size(); ++l)
    if (std::any_of(c.algorithms.begin(), c.algorithms.end() - 1,
                    [&](const auto& other) { return cadre.layers[l].after < other.plan.layers[l].after * kRounding; }))
      out.push_back(cadre.layers[l].layer);
  return out;
}

std::string compare_text(const Comparison& c) {
  std::string out = cluster_text(c.cluster) + "\nbalancedness by layer\n\n" + fmt::format("{:>11}", "layer");
  for (const auto& a : c.algorithms) out += fmt::format("{:>23}", name_of(a.algorithm));
  out += "\n";
  for (size_t l = 0; l < c.algorithms[0].plan.layers.size(); ++l) {
    out += fmt::format("{:>11}", c.algorithms[0].plan.layers[l].layer);
    for (const auto& a : c.algorithms) out += fmt::format("{:>23.4f}", a.plan.layers[l].after);
    out += "\n";
  }
  const auto row = [&](std::string_view name, auto&& cell) {
    out += fmt::format("{:>11}", name);
    for (const auto& a : c.algorithms) out += fmt::format("{:>23}", cell(a.plan));
    out += "\n";
  };
  row("mean", [](const eplb::ModelPlan& p) { return fmt::format("{:.4f}", p.mean_after()); });
  row("least", [](const eplb::ModelPlan& p) { return fmt::format("{:.4f}", p.least_after()); });
  if (c.has_moves) row("moved slots", [](const eplb::ModelPlan& p) { return fmt::format("{}", p.moved()); });
  row("planning ms", [](const eplb::ModelPlan& p) { return fmt::format("{:.2f}", ms(p.planning_us)); });
  const std::vector<int64_t> below = layers_below(c);
  if (below.empty()) return out + "\ncadre is at least as balanced in every layer\n";
  return out + fmt::format("\ncadre is less balanced in {} layers: {}\n", below.size(), fmt::join(below, ", "));
}

json::object compare_json(const Comparison& c) {
  json::object algorithms;
  for (const auto& a : c.algorithms) {
    json::array layers;
    for (const eplb::LayerOutcome& l : a.plan.layers) {
      json::object layer{{"layer", l.layer}, {"balancedness", l.after}};
      if (c.has_moves) layer["moved_slots"] = l.moved;
      layers.push_back(std::move(layer));
    }
    json::object one{{"balancedness", a.plan.mean_after()},
                     {"least_balancedness", a.plan.least_after()},
                     {"planning_ms", ms(a.plan.planning_us)},
                     {"layers", std::move(layers)}};
    if (c.has_moves) one["moved_slots"] = a.plan.moved();
    algorithms[name_of(a.algorithm)] = std::move(one);
  }
  const std::vector<int64_t> below = layers_below(c);
  return {{"cluster", cluster_json(c.cluster)},
          {"algorithms", std::move(algorithms)},
          {"layers_below", json::array(below.begin(), below.end())},
          {"passed", below.empty()}};
}

std::string simulation_text(const SimulationText& t) {
  const eplb::Simulation& s = t.result;
  std::string out = cluster_text(t.options.cluster) + fmt::format("; {} records, {} every {} over windows of {}\n\n",
                                                                  t.series.steps.size(), name_of(t.options.algorithm),
                                                                  t.options.interval, t.options.window);
  out += fmt::format("{:>8}{:>12}{:>12}{:>9}{:>14}{:>12}{:>12}{:>12}\n", "record", "window was", "planned", "moved",
                     "bytes", "cost ms", "gain ms", "plan ms");
  for (const eplb::Rebalance& r : s.rebalances) {
    const std::string bytes = t.expert_bytes ? bytes_text(static_cast<uint64_t>(r.moved * *t.expert_bytes)) : "-";
    if (r.is_applied)
      out += fmt::format("{:>8}{:>12.4f}{:>12.4f}{:>9}{:>14}{:>12.3f}{:>12.3f}{:>12.2f}\n", r.step, r.window_before,
                         r.window_after, r.moved, bytes, r.cost_us / 1000, r.gain_us / 1000, ms(r.planning_us));
    else
      out += fmt::format("{:>8}{:>12.4f}{:>12}\n", r.step, r.window_before,
                         r.window_before >= t.options.threshold ? "balanced" : "no gain");
  }
  out += fmt::format("\nbalancedness over all records: {:.4f}, without rebalancing {:.4f}\n", s.with, s.fixed);
  out += fmt::format(
      "experts' time: {:.3f} ms and {:.3f} ms of moves ({} slots), without rebalancing {:.3f} ms ({:+.1f} %)\n",
      s.steps_us / 1000, s.cost_us() / 1000, s.moved(), s.fixed_us / 1000,
      s.fixed_us > 0 ? 100 * ((s.steps_us + s.cost_us()) / s.fixed_us - 1) : 0.0);
  return out;
}

json::object simulation_json(const SimulationText& t) {
  const eplb::Simulation& s = t.result;
  json::array rebalances;
  for (const eplb::Rebalance& r : s.rebalances) {
    json::object one{{"record", r.step},
                     {"applied", r.is_applied},
                     {"balancedness_before", r.window_before},
                     {"balancedness_planned", r.window_after},
                     {"moved_slots", r.moved},
                     {"cost_us", r.cost_us},
                     {"gain_us", r.gain_us},
                     {"planning_ms", ms(r.planning_us)}};
    if (t.expert_bytes) one["moved_bytes"] = r.moved * *t.expert_bytes;
    rebalances.push_back(std::move(one));
  }
  return {{"cluster", cluster_json(t.options.cluster)},
          {"algorithm", name_of(t.options.algorithm)},
          {"records", t.series.steps.size()},
          {"rebalances", std::move(rebalances)},
          {"balancedness", s.with},
          {"balancedness_without", s.fixed},
          {"step_us", s.steps_us},
          {"step_us_without", s.fixed_us},
          {"moved_slots", s.moved()},
          {"cost_us", s.cost_us()}};
}

}  // namespace cadre::cli
