// A plan for people (text, HTML with plots) and for programs (JSON).
#pragma once

#include <string>

#include "base/json.h"
#include "planner/commands.h"
#include "planner/decide.h"
#include "planner/search.h"

namespace cadre::planner {

struct Plan {
  std::string model;  // as commands name it
  PlannedModel planned;
  PlanRequest request;
  Decision decision;
  std::optional<Candidate> decided;  // what the procedure comes to, weighed
  SearchResult search;
  int fewest_devices = 0;               // where nothing fits
  std::vector<EngineCommand> commands;  // of the first that fits
};
Plan make_plan(std::string model, PlannedModel planned, const PlanRequest& request);

std::string plan_text(const Plan& plan);
json::object plan_json(const Plan& plan);
std::string plan_html(const Plan& plan);  // one file, no scripts, nothing from elsewhere

// What they share.
std::string layout_text(const Candidate& c);                                                    // "dp 16, ep 16"
std::vector<const Candidate*> distinct(const std::vector<Candidate>& candidates, size_t most);  // one of each layout's kind
std::vector<std::pair<std::string, int64_t>> weight_rows(const RankBytes& bytes);
std::vector<std::pair<std::string, int64_t>> memory_rows(const MemoryBudget& budget);
std::string bytes_si(double bytes);  // "3.1 GB"
std::string duration(double us);     // "850 us", "12.3 ms"
std::string thousands(int64_t number);

}  // namespace cadre::planner
