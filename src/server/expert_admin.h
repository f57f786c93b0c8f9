// What the API asks of whoever places and watches the experts of a running model: the routes /expert_placement and
// /expert_distribution, and the families of /metrics that speak of experts. The server knows neither placements nor
// balancers: bodies and answers are JSON of theirs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"

namespace cadre {

// counts[i] values in (bounds[i - 1], bounds[i]]; the last count is of those above all bounds.
struct HistogramCounts {
  std::vector<double> bounds;
  std::vector<int64_t> counts;
  double sum = 0;
};

// Of a server whose experts move.
struct ExpertMetrics {
  double balancedness = 1;  // of the last interval's load
  int64_t num_rebalances = 0, num_layers_switched = 0, num_plans_refused = 0, num_moved_slots = 0, num_moved_bytes = 0;
  double stall_seconds = 0;
  std::vector<int64_t> rows_of_rank;        // (row, expert) pairs that each world rank computed
  std::vector<double> waited_seconds_of_rank;  // for slower ranks
  HistogramCounts balancedness_by_rows, stall_seconds_of_steps;
};

class ExpertAdmin {
 public:
  virtual ~ExpertAdmin() = default;
  // All throw Error: what was expected, what was found, what to do.

  // GET /expert_placement: the placement in force and what the balancer has done.
  virtual json::object placement() const = 0;
  // PUT /expert_placement: takes effect in steps to come.
  virtual json::object place(const std::string& body) = 0;

  // POST /expert_distribution/start, its body possibly empty, and /stop; GET /expert_distribution.
  virtual json::object start_recording(const std::string& body) = 0;
  virtual json::object stop_recording() = 0;
  virtual json::object distribution() const = 0;
  // POST /expert_distribution/dump: what is held, as JSON lines.
  virtual std::string dump() const = 0;

  // nullopt where experts stay where they are.
  virtual std::optional<ExpertMetrics> metrics() const = 0;
};

}  // namespace cadre
