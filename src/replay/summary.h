// What a replay comes to, for people and programs: times to the first token and between tokens, what was refused, how
// full ranks were; one run after another in a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "replay/cluster.h"

namespace cadre::replay {

// Nearest-rank percentiles; all 0 without values.
struct Percentiles {
  int64_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
Percentiles percentiles_of(std::vector<double> values);

struct Summary {
  std::string layout, policy;  // what the run was
  double predicted_wall_s =
      0;  // of the simulation itself; 0: not told. Not part of the JSON: it differs from run to run
  int64_t requests = 0, answered = 0, too_long = 0, overloaded = 0;
  Percentiles ttft_ms, tpot_ms, queue_ms, answer_ms;  // arrival to first token; between tokens, a mean a request;
                                                      // arrival to first rows; arrival to last token
  double duration_s = 0;                              // first arrival to last token
  double requests_per_s = 0, output_tokens_per_s = 0, prompt_tokens_per_s = 0;
  double cached_share = 0;  // of prompt tokens, those found in the prefix cache
  double mean_running = 0, mean_waiting = 0, mean_kv_share = 0, most_kv_share = 0;
  double mean_step_ms = 0, mean_decode_rows = 0;
  double fullest_rank = 0;  // requests of the rank with the most over the mean
  ClusterTotals totals;
};
Summary summarize(const Trace& trace, const ClusterOptions& options, const ClusterResult& result);

// A table with a row for each run, then what is the same in all.
std::string summaries_text(const Trace& trace, const std::vector<Summary>& runs);
json::object summary_json(const Summary& run);
json::object summaries_json(const Trace& trace, const std::vector<Summary>& runs);

}  // namespace cadre::replay
