// What `cadre eplb` prints: tables for people, JSON for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "eplb/model_plan.h"
#include "eplb/simulate.h"

namespace cadre::cli {

struct PlanText {
  const eplb::ModelPlan& plan;
  eplb::Cluster cluster;
  bool has_current = false;
  std::optional<int64_t> expert_bytes;
  double us_per_row = 0;  // 0: not known
  int64_t num_passes = 1;
};
std::string plan_text(const PlanText& text);
json::object plan_json(const PlanText& text);

struct Comparison {
  struct One {
    eplb::Algorithm algorithm;
    eplb::ModelPlan plan;
  };
  eplb::Cluster cluster;
  bool has_moves = false;
  std::vector<One> algorithms;  // cadre last
};
// Ids of the layers in which cadre is less balanced than another.
std::vector<int64_t> layers_below(const Comparison& comparison);
std::string compare_text(const Comparison& comparison);
json::object compare_json(const Comparison& comparison);

struct SimulationText {
  const eplb::Simulation& result;
  const eplb::SimulateOptions& options;
  const eplb::LoadSeries& series;
  std::optional<int64_t> expert_bytes;
};
std::string simulation_text(const SimulationText& text);
json::object simulation_json(const SimulationText& text);

}  // namespace cadre::cli
