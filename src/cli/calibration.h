// What `cadre calibrate` leaves and `cadre plan --replay --replay-cost` reads: how a server was started, and what its steps take.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "replay/cluster.h"

namespace cadre::cli {

struct Calibration {
  std::string model;  // its folder's name
  replay::LinearCost cost;
  replay::CostError error;
  int64_t num_steps = 0;  // measured
  int ranks = 1;          // data-parallel ones
  SchedulerOptions scheduler;
  int64_t num_kv_blocks = 0, max_model_len = 0;
};

json::object calibration_json(const Calibration& calibration);
// Throws Error: what is missing or out of range.
Calibration read_calibration(const std::string& path);

}  // namespace cadre::cli
