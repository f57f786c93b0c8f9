#include "cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/layout_flags.h"
#include "cli/units.h"
#include "config/bytes.h"
#include "parallel/expert_load.h"

namespace cadre::cli {
namespace {

std::vector<size_t> kinds(const MovedReport& m) {
  std::vector<size_t> out;
  for (size_t k = 0; k < kNumTraffic; ++k)
    if (std::any_of(m.of_rank.begin(), m.of_rank.end(), [&](const TrafficCounts& c) { return c[k].calls > 0; }))
      out.push_back(k);
  return out;
}

// Every rank calls as often as the others of its group; the first rank is in every kind of group.
double calls_per_layer_and_step(const RunReport& r, const MovedReport& m, size_t kind) {
  return static_cast<double>(m.of_rank[0][kind].calls) /
         static_cast<double>(std::max<int64_t>(1, r.num_steps) * static_cast<int64_t>(m.layers.size()));
}

std::string moved_text(const RunReport& r, const MovedReport& m) {
  std::string out = fmt::format("{} layers {}:", m.is_sparse ? "sparse" : "dense", ids_text(m.layers));
  const auto moved = kinds(m);
  if (moved.empty()) return out + " nothing moves\n";
  out += fmt::format("\n  {:<18}{:>22}   bytes sent by each rank\n", "collective", "calls a layer and step");
  for (const size_t k : moved) {
    out += fmt::format("  {:<18}{:>22.2f}  ", traffic_name(static_cast<Traffic>(k)), calls_per_layer_and_step(r, m, k));
    for (const TrafficCounts& c : m.of_rank)
      out += fmt::format(" {:>14}", with_commas(static_cast<uint64_t>(c[k].bytes_sent)));
    out += '\n';
  }
  return out;
}

// What moving experts took, and how much of a usual step it added to each of those it came after.
std::string moves_text(const eplb::BalancerStats& s) {
  std::string out = fmt::format("{} rebalances: {} experts and {} bytes moved, {:.3f} s added to steps; steps by what was added, as a part of a usual step\n ", s.num_rebalances, s.moved_slots,
                                with_commas(static_cast<uint64_t>(s.moved_bytes)), static_cast<double>(s.stall_us) * 1e-6);
  for (size_t i = 0; i < s.stall_share.counts.size(); ++i)
    out += i < s.stall_share.bounds.size() ? fmt::format("  <={}: {}", s.stall_share.bounds[i], s.stall_share.counts[i]) : fmt::format("  more: {}\n", s.stall_share.counts[i]);
  return out;
}

}  // namespace

RunReport make_report(const LoadedModel& loaded) {
  const ModelConfig& config = loaded.config;
  const Layout& layout = loaded.deployment->layout();
  const EngineStats stats = loaded.deployment->controller().stats(0);
  const int64_t kv_tokens = stats.num_blocks * kKvBlockTokens;
  RunReport out{.budget = loaded.budget,
                .num_steps = static_cast<int64_t>(stats.num_steps),
                .world = layout.world,
                .kv_tokens_per_rank = kv_tokens,
                .kv_tokens_in_cluster = kv_tokens * layout.attn_dp};
  for (const bool is_sparse : {false, true}) {
    MovedReport m{.is_sparse = is_sparse, .of_rank = std::vector<TrafficCounts>(static_cast<size_t>(layout.world))};
    for (int64_t l = 0; l < config.num_layers; ++l) {
      if (config.layers[static_cast<size_t>(l)].is_sparse != is_sparse) continue;
      m.layers.push_back(static_cast<int32_t>(l));
      for (int r = 0; r < layout.world; ++r)
        if (const TrafficCounters* counters = loaded.deployment->counters(r))
          for (size_t k = 0; k < kNumTraffic; ++k) m.of_rank[static_cast<size_t>(r)][k] += counters->layer(l)[k];
    }
    if (!m.layers.empty()) out.moved.push_back(std::move(m));
  }
  if (config.moe.router.num_experts == 0) return out;
  const ExpertPlacement placement =
      ExpertPlacement::initial(config.moe.router.num_experts, layout.ep, layout.placement, layout.redundant_experts);
  std::vector<ExpertPlacement> in_force;
  if (const eplb::Balancer* balancer = loaded.deployment->balancer()) in_force = balancer->placements(), out.moves = balancer->stats();
  Balancedness overall;
  for (int64_t l = 0; l < config.num_layers; ++l) {
    if (!config.layers[static_cast<size_t>(l)].is_sparse) continue;
    BalanceReport b{.layer = l, .rows_of_rank = rank_loads(in_force.empty() ? placement : in_force[out.balance.size()], loaded.load->rows(l))};
    Balancedness of_layer;
    of_layer.add(b.rows_of_rank);
    overall.add(b.rows_of_rank);
    b.balancedness = of_layer.value();
    out.balance.push_back(std::move(b));
  }
  out.balancedness = overall.value();
  return out;
}

std::string report_text(const RunReport& r) {
  std::string out;
  for (const std::string& line : r.budget) out += line + '\n';
  out += fmt::format("{} steps on {} {}\n", r.num_steps, r.world, r.world == 1 ? "rank" : "ranks");
  for (const MovedReport& m : r.moved) out += moved_text(r, m);
  if (r.balance.empty()) return out;
  if (r.balance[0].rows_of_rank.size() == 1)
    return out + "balancedness 1: every rank has all experts, or a part of each\n";
  out += fmt::format(
      "balancedness (mean over ranks / maximum) {:.4f} over all sparse layers\n  {:<6}{:>14}   rows of experts on each "
      "expert-parallel rank\n",
      r.balancedness, "layer", "balancedness");
  for (const BalanceReport& b : r.balance) {
    out += fmt::format("  {:<6}{:>14.4f}  ", b.layer, b.balancedness);
    for (const double rows : b.rows_of_rank) out += fmt::format(" {:>10}", with_commas(static_cast<uint64_t>(std::llround(rows))));
    out += '\n';
  }
  return r.moves ? out + moves_text(*r.moves) : out;
}

json::object report_json(const RunReport& r) {
  json::array moved, balance;
  for (const MovedReport& m : r.moved) {
    json::array layers, collectives;
    for (const int32_t l : m.layers) layers.push_back(l);
    for (const size_t k : kinds(m)) {
      json::array bytes;
      for (const TrafficCounts& c : m.of_rank) bytes.push_back(c[k].bytes_sent);
      collectives.push_back({{"kind", traffic_name(static_cast<Traffic>(k))},
                             {"calls_per_layer_and_step", calls_per_layer_and_step(r, m, k)},
                             {"bytes_of_rank", std::move(bytes)}});
    }
    moved.push_back({{"layer_kind", m.is_sparse ? "sparse" : "dense"},
                     {"layers", std::move(layers)},
                     {"collectives", std::move(collectives)}});
  }
  for (const BalanceReport& b : r.balance) {
    json::array rows;
    for (const double n : b.rows_of_rank) rows.push_back(std::llround(n));
    balance.push_back({{"layer", b.layer}, {"balancedness", b.balancedness}, {"rows_of_rank", std::move(rows)}});
  }
  json::object out{{"steps", r.num_steps},
          {"ranks", r.world},
          {"kv_tokens_per_rank", r.kv_tokens_per_rank},
          {"kv_tokens_in_cluster", r.kv_tokens_in_cluster},
          {"moved", std::move(moved)},
          {"balancedness", r.balancedness},
          {"balance", std::move(balance)}};
  if (r.moves) {
    const eplb::Histogram& h = r.moves->stall_share;
    out["rebalances"] = {{"count", r.moves->num_rebalances}, {"moved_slots", r.moves->moved_slots}, {"moved_bytes", r.moves->moved_bytes},
                         {"stall_seconds", static_cast<double>(r.moves->stall_us) * 1e-6},
                         {"stall_share_bounds", json::array(h.bounds.begin(), h.bounds.end())}, {"stall_share_steps", json::array(h.counts.begin(), h.counts.end())}};
  }
  return out;
}

}  // namespace cadre::cli
