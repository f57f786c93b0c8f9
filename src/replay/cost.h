// What stands in for kernels in a replay: how long a step takes. From the planner's roofline of a device, or from
// coefficients that were measured on the machine at hand.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "planner/step_time.h"

namespace cadre::replay {

using planner::StepShape;

// Microseconds of a step in which each data-parallel rank does as said. balancedness: mean / maximum of expert rows
// over ranks, in (0, 1]. The same arguments, the same time.
using StepCost = std::function<double(std::span<const StepShape> dp_ranks, double balancedness)>;

// The planner's. Balancedness is rounded to 1/128, so that few models are made. The arguments are copied.
StepCost roofline_cost(const planner::PlannedModel& model, const Layout& layout, const planner::HardwareSpec& hardware,
                       const planner::StepOptions& options);

// Measured: a sum of coefficients (us, none negative) times what a step has. Rows are those of the rank with the most;
// all ranks wait for it.
struct LinearCost {
  static constexpr size_t kNumFeatures = 8;
  using Features = std::array<double, kNumFeatures>;
  static constexpr std::array<std::string_view, kNumFeatures> kNames = {
      "step",         "decode_row",    "decode_context_token", "prefill_row",
      "prefill_pair", "active_expert", "other_ranks_row",      "prefill_sequence"};
  Features us{};
  int64_t num_experts = 0, top_k = 0;  // for the experts that rows wake; 0: dense

  Features features(std::span<const StepShape> dp_ranks) const;
  double operator()(std::span<const StepShape> dp_ranks, double balancedness) const;
};

// Coefficients that fit measured steps best: least relative errors, none below 0 (Lawson and Hanson's active
// sets). Throws Error with fewer steps than coefficients.
struct MeasuredStep {
  std::vector<StepShape> dp_ranks;
  double us = 0;
};
LinearCost fit_linear_cost(std::span<const MeasuredStep> steps, int64_t num_experts, int64_t top_k);

// How far a cost is from steps: mean and maximum of |predicted - measured| / measured, and predicted / measured of all
// time together.
struct CostError {
  double mean = 0, max = 0, total = 1;
};
CostError cost_error(const LinearCost& cost, std::span<const MeasuredStep> steps);

json::object cost_json(const LinearCost& cost);
// Throws Error: what is missing, negative, or no number.
LinearCost parse_cost(const JsonObject& object);

}  // namespace cadre::replay
