#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/eplb_text.h"
#include "cli/units.h"
#include "config/bytes.h"
#include "eplb/heat_map.h"
#include "eplb/load_series.h"
#include "eplb/model_plan.h"
#include "eplb/simulate.h"

namespace cadre::cli {
namespace {

struct EplbFlags {
  std::string load, step, routes;
  std::vector<std::string> only;
  int64_t tokens_per_step = 256;
  int ranks = 0, nodes = 1;
  int64_t redundant = 0, groups = 1;
  std::string algorithm = "cadre", current, shifted_from, out, svg, expert_bytes, model;
  int64_t window = 8, interval = 8;
  double threshold = 1, us_per_row = 0, gigabytes_per_s = 0, rows_per_move = 0;
  bool as_json = false;
};

int64_t number(const std::string& text, const std::string& flag) {
  try {
    size_t end = 0;
    const int64_t out = std::stoll(text, &end);
    if (end == text.size() && out > 0) return out;
  } catch (const std::exception&) {
  }
  throw invalid_input("{}: expected numbers above 0, found {}; correct it", flag, cadre::quoted(text));
}

eplb::LoadFilter filter_of(const EplbFlags& f) {
  eplb::LoadFilter out;
  for (const std::string& pair : f.only) {
    const size_t at = pair.find('=');
    if (at == std::string::npos || at == 0)
      throw invalid_input("--only: expected KEY=VALUE, found {}; correct it", cadre::quoted(pair));
    out.only.emplace_back(pair.substr(0, at), pair.substr(at + 1));
  }
  if (f.routes.empty()) return out;
  const size_t first = f.routes.find('x'), second = f.routes.find('x', first + 1);
  if (first == std::string::npos || second == std::string::npos)
    throw invalid_input("--routes: expected LAYERSxTOP_KxEXPERTS such as 24x4x32, found {}; correct it",
                        cadre::quoted(f.routes));
  out.routes = {.layers = number(f.routes.substr(0, first), "--routes"),
                .top_k = number(f.routes.substr(first + 1, second - first - 1), "--routes"),
                .num_experts = number(f.routes.substr(second + 1), "--routes"),
                .tokens_per_step = f.tokens_per_step};
  if (f.tokens_per_step < 1)
    throw invalid_input("--tokens-per-step: expected 1 or more, found {}; correct it", f.tokens_per_step);
  return out;
}

eplb::LoadSeries load_series(const EplbFlags& f, const std::string& path) {
  eplb::LoadSeries out = eplb::read_load(path, filter_of(f));
  for (const std::string& remark : eplb::remarks(out))
    std::fprintf(stderr, "cadre: %s: %s\n", path.c_str(), remark.c_str());
  return out;
}

// Of the step that --step names, or of all.
std::vector<double> rows_of(const EplbFlags& f, const eplb::LoadSeries& series) {
  if (f.step.empty()) return series.sum(0, static_cast<int64_t>(series.steps.size()));
  std::string names;
  for (const auto& s : series.steps) {
    if (s.name == f.step) return s.rows;
    if (names.size() < 300) names += (names.empty() ? "" : ", ") + (s.name.empty() ? "one without a name" : s.name);
  }
  throw invalid_input(
      "--step: expected one of those of the file ({}), found {}; choose one or leave it out for the sum of all", names,
      cadre::quoted(f.step));
}

eplb::Cluster cluster_of(const EplbFlags& f, int64_t num_experts) {
  if (f.redundant < 0 || f.redundant > 1 << 20)
    throw invalid_input("--redundant: expected 0 or more, found {}; correct it", f.redundant);
  const eplb::Cluster out{.num_experts = num_experts,
                          .ranks = f.ranks,
                          .num_replicas = num_experts + f.redundant,
                          .nodes = f.nodes,
                          .groups = f.groups};
  eplb::check_cluster(out);
  return out;
}

std::optional<int64_t> expert_bytes_of(const EplbFlags& f) {
  if (!f.expert_bytes.empty()) return parse_bytes(f.expert_bytes, "--expert-bytes");
  if (!f.model.empty()) return expert_bytes(load_model_config(f.model));
  return std::nullopt;
}

// What a replica's move takes; 0 where it is not said.
double us_per_move(const EplbFlags& f) {
  if (f.gigabytes_per_s == 0) return 0;
  const auto bytes = expert_bytes_of(f);
  if (!(f.gigabytes_per_s > 0) || !bytes)
    throw invalid_input(
        "--gigabytes-per-s: expected a speed above 0 and --expert-bytes or --model beside it, found {}; give both",
        f.gigabytes_per_s);
  return static_cast<double>(*bytes) / (f.gigabytes_per_s * 1e3);
}

std::optional<eplb::ModelPlacement> current_of(const EplbFlags& f, const eplb::LoadSeries& series,
                                               const eplb::Cluster& cluster) {
  if (f.current.empty()) return std::nullopt;
  if (f.current == "trivial") return eplb::trivial_placement(series.layers, cluster);
  return eplb::placement_of_layers(
      eplb::read_placement(f.current, {.num_experts = cluster.num_experts, .ranks = cluster.ranks}), series.layers,
      cluster);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out)
    throw Error(ErrorKind::kNotFound, fmt::format("expected to write {}, found it not writable; check the path", path));
}

int plan(const EplbFlags& f) {
  const eplb::LoadSeries series = load_series(f, f.load);
  const eplb::Cluster cluster = cluster_of(f, series.num_experts);
  const std::vector<double> rows = rows_of(f, series);
  const auto current = current_of(f, series, cluster);
  const eplb::ModelPlacement before = current ? *current : eplb::trivial_placement(series.layers, cluster);
  eplb::MoveRules rules;
  rules.rows_per_move = f.rows_per_move;
  if (f.rows_per_move > 0) rules.reach_reference = false;
  const eplb::ModelPlan plan = eplb::plan_model({.algorithm = eplb::parse_algorithm(f.algorithm),
                                                 .layers = series.layers,
                                                 .rows = rows,
                                                 .cluster = cluster,
                                                 .before = &before,
                                                 .moves_from_before = current.has_value(),
                                                 .rules = rules});
  if (!f.out.empty()) write_file(f.out, eplb::to_json(plan.placement));
  if (!f.svg.empty()) write_file(f.svg, eplb::heat_map_svg(before, plan.placement, rows));
  const int64_t passes = series.num_passes(0, static_cast<int64_t>(series.steps.size()));
  const PlanText text{.plan = plan,
                      .cluster = cluster,
                      .has_current = current.has_value(),
                      .expert_bytes = expert_bytes_of(f),
                      .us_per_row = f.us_per_row,
                      .num_passes = f.step.empty() ? passes : 1};
  std::fputs((f.as_json ? json::serialize(plan_json(text)) + "\n" : plan_text(text)).c_str(), stdout);
  return kExitOk;
}

int compare(const EplbFlags& f) {
  const eplb::LoadSeries series = load_series(f, f.load);
  const eplb::Cluster cluster = cluster_of(f, series.num_experts);
  const std::vector<double> rows = rows_of(f, series);
  const auto current = current_of(f, series, cluster);
  std::vector<double> rows_before;
  if (!f.shifted_from.empty()) {
    if (current) throw invalid_input("expected --current or --shifted-from, found both; give one of them");
    const eplb::LoadSeries other = load_series(f, f.shifted_from);
    if (other.layers != series.layers || other.num_experts != series.num_experts)
      throw invalid_input(
          "--shifted-from: expected {} layers of {} experts, as in the load, found {} of {}; give a load of the same "
          "model",
          series.num_layers(), series.num_experts, other.num_layers(), other.num_experts);
    rows_before = other.sum(0, static_cast<int64_t>(other.steps.size()));
  }
  std::vector<eplb::Algorithm> algorithms{eplb::Algorithm::kDeepseek};
  if (f.nodes > 1) algorithms.push_back(eplb::Algorithm::kDeepseekHierarchical);
  algorithms.push_back(eplb::Algorithm::kCadre);
  Comparison out{.cluster = cluster, .has_moves = current || !rows_before.empty()};
  for (const eplb::Algorithm algorithm : algorithms) {
    eplb::PlanRequest request{.algorithm = algorithm,
                              .layers = series.layers,
                              .rows = rows,
                              .cluster = cluster,
                              .before = current ? &*current : nullptr,
                              .moves_from_before = out.has_moves};
    eplb::ModelPlacement own;
    if (!rows_before.empty()) {
      own = eplb::plan_model({.algorithm = algorithm, .layers = series.layers, .rows = rows_before, .cluster = cluster})
                .placement;
      request.before = &own;
    }
    eplb::ModelPlan plan = eplb::plan_model(request);
    // The least of some: others use the machine too.
    for (int i = 0; i < 4; ++i) plan.planning_us = std::min(plan.planning_us, eplb::plan_model(request).planning_us);
    out.algorithms.push_back({.algorithm = algorithm, .plan = std::move(plan)});
  }
  std::fputs((f.as_json ? json::serialize(compare_json(out)) + "\n" : compare_text(out)).c_str(), stdout);
  return layers_below(out).empty() ? kExitOk : kExitFailed;
}

int simulate(const EplbFlags& f) {
  const eplb::LoadSeries series = load_series(f, f.load);
  const eplb::Cluster cluster = cluster_of(f, series.num_experts);
  const auto current = current_of(f, series, cluster);
  if (static_cast<int64_t>(series.steps.size()) <= f.interval)
    throw invalid_input("{}: expected more records than --interval, {}, found {}; record more or plan more often",
                        f.load, f.interval, series.steps.size());
  const eplb::SimulateOptions options{.algorithm = eplb::parse_algorithm(f.algorithm),
                                      .cluster = cluster,
                                      .window = f.window,
                                      .interval = f.interval,
                                      .threshold = f.threshold,
                                      .us_per_row = f.us_per_row == 0 ? 1 : f.us_per_row,
                                      .us_per_move = us_per_move(f)};
  const eplb::Simulation result =
      eplb::simulate(series, options, current ? *current : eplb::trivial_placement(series.layers, cluster));
  if (!f.out.empty()) write_file(f.out, eplb::to_json(result.last));
  const SimulationText text{.result = result, .options = options, .series = series, .expert_bytes = expert_bytes_of(f)};
  std::fputs((f.as_json ? json::serialize(simulation_json(text)) + "\n" : simulation_text(text)).c_str(), stdout);
  return kExitOk;
}

void add_load_flags(CLI::App& command, EplbFlags& f) {
  command
      .add_option("FILE", f.load,
                  "Recorded load: JSON or JSON lines of any form in docs/eplb.md, or bare routes with --routes")
      ->required();
  command.add_option("--ranks", f.ranks, "Ranks that the experts are spread over")->required();
  command.add_option("--redundant", f.redundant, "Slots beyond one for each expert")->capture_default_str();
  command.add_option("--nodes", f.nodes, "Nodes of equally many ranks, for deepseek_hierarchical")
      ->capture_default_str();
  command.add_option("--groups", f.groups, "Groups of equally many experts, for deepseek_hierarchical")
      ->capture_default_str();
  command.add_option("--only", f.only, "KEY=VALUE: of JSON lines only the records that have it; may be repeated");
  command.add_option("--routes", f.routes,
                     "LAYERSxTOP_KxEXPERTS: FILE is bare expert ids, a byte each, [tokens, layers, top_k]");
  command.add_option("--tokens-per-step", f.tokens_per_step, "With --routes, tokens of a step")->capture_default_str();
  command.add_flag("--json", f.as_json, "As JSON");
}

void add_cost_flags(CLI::App& command, EplbFlags& f) {
  command.add_option("--expert-bytes", f.expert_bytes,
                     "Bytes of an expert's weights, such as 44MiB, to tell moved bytes");
  command.add_option("--model", f.model, "Model folder or config.json that says how many bytes an expert has");
  command.add_option("--us-per-row", f.us_per_row, "Microseconds that a row of an expert takes, to tell step times");
}

void add_plan(CLI::App& eplb, Run* run) {
  CLI::App* command = eplb.add_subcommand("plan", "Plan where experts and their replicas stand");
  auto f = std::make_shared<EplbFlags>();
  add_load_flags(*command, *f);
  add_cost_flags(*command, *f);
  command->add_option("--algorithm", f->algorithm, "cadre, deepseek or deepseek_hierarchical")->capture_default_str();
  command->add_option("--step", f->step, "Plan for this record of the file, by name; else for the sum of all");
  command->add_option("--current", f->current,
                      "Placement to start from and to move as little from as balance allows: a file, or trivial; "
                      "without one the plan starts afresh");
  command->add_option("--rows-per-move", f->rows_per_move,
                      "Move a replica only where it saves as many rows of the load on the fullest rank");
  command->add_option("--out", f->out, "Write the placement here; --init-expert-location takes it");
  command->add_option("--svg", f->svg, "Draw load by rank and layer, before and after, here");
  command->callback([run, f] { *run = [f] { return plan(*f); }; });
}

void add_compare(CLI::App& eplb, Run* run) {
  CLI::App* command = eplb.add_subcommand(
      "compare",
      "Hold the published algorithms and cadre side by side; exits 1 if cadre is less balanced in any layer");
  auto f = std::make_shared<EplbFlags>();
  add_load_flags(*command, *f);
  command->add_option("--step", f->step, "Plan for this record of the file, by name; else for the sum of all");
  command->add_option("--current", f->current, "Count the slots that move from this placement: a file, or trivial");
  command->add_option("--shifted-from", f->shifted_from,
                      "Count the slots that move from each algorithm's own plan for this load");
  command->callback([run, f] { *run = [f] { return compare(*f); }; });
}

void add_simulate(CLI::App& eplb, Run* run) {
  CLI::App* command =
      eplb.add_subcommand("simulate", "Replay a recorded series and tell what each rebalance cost and gained");
  auto f = std::make_shared<EplbFlags>();
  add_load_flags(*command, *f);
  add_cost_flags(*command, *f);
  command->add_option("--algorithm", f->algorithm, "cadre, deepseek or deepseek_hierarchical")->capture_default_str();
  command->add_option("--window", f->window, "Records that a plan looks back on")->capture_default_str();
  command->add_option("--interval", f->interval, "Records from one plan to the next")->capture_default_str();
  command->add_option("--threshold", f->threshold, "Rebalance only where balancedness is below")->capture_default_str();
  command->add_option("--gigabytes-per-s", f->gigabytes_per_s,
                      "Speed at which experts move; they then move only where that pays off");
  command->add_option("--current", f->current, "Placement at the start: a file, or trivial");
  command->add_option("--out", f->out, "Write the last placement here");
  command->callback([run, f] { *run = [f] { return simulate(*f); }; });
}

}  // namespace

void add_eplb(CLI::App& app, Run* run) {
  CLI::App* command = app.add_subcommand("eplb", "Plan expert placements from recorded loads, without a model");
  command->require_subcommand(1);
  add_plan(*command, run);
  add_compare(*command, run);
  add_simulate(*command, run);
}

}  // namespace cadre::cli
