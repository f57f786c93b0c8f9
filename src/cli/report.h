// generate --report: what a run moved between ranks, and how even the load of the experts was.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/engine_flags.h"
#include "parallel/traffic.h"

namespace cadre::cli {

// Layers of one kind together.
struct MovedReport {
  bool is_sparse = false;
  std::vector<int32_t> layers;
  std::vector<TrafficCounts> of_rank;  // over the run
};

struct BalanceReport {
  int64_t layer = 0;
  std::vector<double> rows_of_rank;  // by rank of the expert-parallel group
  double balancedness = 1;
};

struct RunReport {
  std::vector<std::string> budget;  // LoadedModel::budget
  int64_t num_steps = 0, world = 1, kv_tokens_per_rank = 0, kv_tokens_in_cluster = 0;
  std::vector<MovedReport> moved;
  std::vector<BalanceReport> balance;  // of sparse layers
  double balancedness = 1;             // overall
  std::optional<eplb::BalancerStats> moves;  // where experts move; balance is then of where they were in the end
};

// Of a model that was loaded to record its load, when its deployment is idle.
RunReport make_report(const LoadedModel& loaded);
std::string report_text(const RunReport& report);
json::object report_json(const RunReport& report);

}  // namespace cadre::cli
