#include "replay/cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "base/error.h"

namespace cadre::replay {
namespace {

constexpr double kBalanceSteps = 128;

// Solves the normal equations for the features in `active`; others are 0. Ridge keeps features that never vary apart
// from noise.
LinearCost::Features solve(const std::vector<LinearCost::Features>& rows, const std::vector<double>& weights,
                           const std::array<bool, LinearCost::kNumFeatures>& active) {
  constexpr size_t kN = LinearCost::kNumFeatures;
  double a[kN][kN + 1] = {};
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t i = 0; i < kN; ++i) {
      for (size_t j = 0; j < kN; ++j) a[i][j] += weights[r] * rows[r][i] * rows[r][j];
      a[i][kN] += weights[r] * rows[r][i];  // every measured time is 1 in its own unit
    }
  for (size_t i = 0; i < kN; ++i) {
    if (active[i]) {
      a[i][i] += 1e-9 * a[i][i] + 1e-300;
      continue;
    }
    for (size_t j = 0; j < kN; ++j) a[i][j] = a[j][i] = 0;
    a[i][i] = 1, a[i][kN] = 0;
  }
  for (size_t p = 0; p < kN; ++p) {
    size_t best = p;
    for (size_t r = p + 1; r < kN; ++r)
      if (std::abs(a[r][p]) > std::abs(a[best][p])) best = r;
    if (best != p)
      for (size_t c = 0; c <= kN; ++c) std::swap(a[p][c], a[best][c]);
    for (size_t r = 0; r < kN; ++r) {
      if (r == p || a[p][p] == 0) continue;
      const double factor = a[r][p] / a[p][p];
      for (size_t c = p; c <= kN; ++c) a[r][c] -= factor * a[p][c];
    }
  }
  LinearCost::Features out{};
  for (size_t i = 0; i < kN; ++i) out[i] = a[i][i] == 0 ? 0 : a[i][kN] / a[i][i];
  return out;
}

double residual_of(const LinearCost::Features& row, const LinearCost::Features& x) {
  double out = 1;
  for (size_t i = 0; i < x.size(); ++i) out -= row[i] * x[i];
  return out;
}

// How much the weighed error falls as each of x grows.
LinearCost::Features descent(const std::vector<LinearCost::Features>& rows, const std::vector<double>& weights,
                             const LinearCost::Features& x) {
  LinearCost::Features out{};
  for (size_t r = 0; r < rows.size(); ++r) {
    const double residual = weights[r] * residual_of(rows[r], x);
    for (size_t i = 0; i < x.size(); ++i) out[i] += rows[r][i] * residual;
  }
  return out;
}

LinearCost::Features non_negative_least_squares(const std::vector<LinearCost::Features>& rows,
                                                const std::vector<double>& weights) {
  LinearCost::Features x{};
  std::array<bool, LinearCost::kNumFeatures> active{};
  for (int round = 0; round < 100; ++round) {
    const LinearCost::Features gradient = descent(rows, weights, x);
    size_t best = x.size();
    for (size_t i = 0; i < x.size(); ++i) {
      double scale = 0;
      for (const auto& row : rows) scale = std::max(scale, row[i]);
      if (!active[i] && gradient[i] > 1e-9 * scale && (best == x.size() || gradient[i] > gradient[best])) best = i;
    }
    if (best == x.size()) return x;
    active[best] = true;
    while (true) {
      const LinearCost::Features wanted = solve(rows, weights, active);
      double step = 1;
      for (size_t i = 0; i < x.size(); ++i)
        if (active[i] && wanted[i] <= 0) step = std::min(step, x[i] / (x[i] - wanted[i]));
      if (!(step < 1)) {
        x = wanted;
        break;
      }
      bool has_left = false;
      for (size_t i = 0; i < x.size(); ++i) {
        if (!active[i]) continue;
        x[i] += step * (wanted[i] - x[i]);
        if (x[i] <= 1e-15) x[i] = 0, active[i] = false, has_left = true;
      }
      if (!has_left) break;
    }
  }
  return x;
}

}  // namespace

StepCost roofline_cost(const planner::PlannedModel& model, const Layout& layout, const planner::HardwareSpec& hardware,
                       const planner::StepOptions& options) {
  struct Models {
    planner::PlannedModel model;
    Layout layout;
    planner::HardwareSpec hardware;
    planner::StepOptions options;
    std::map<int, planner::StepTimeModel> by_balancedness;
  };
  auto models = std::make_shared<Models>(Models{model, layout, hardware, options, {}});
  return [models](std::span<const StepShape> dp_ranks, double balancedness) {
    const int key =
        std::clamp(static_cast<int>(std::lround(balancedness * kBalanceSteps)), 1, static_cast<int>(kBalanceSteps));
    auto it = models->by_balancedness.find(key);
    if (it == models->by_balancedness.end()) {
      planner::StepOptions own = models->options;
      own.balancedness = key / kBalanceSteps;
      it = models->by_balancedness
               .emplace(key, planner::StepTimeModel(models->model, models->layout, models->hardware, own))
               .first;
    }
    return it->second(dp_ranks).total_us();
  };
}

LinearCost::Features LinearCost::features(std::span<const StepShape> dp_ranks) const {
  const StepShape* fullest = &dp_ranks[0];
  int64_t rows = 0;
  for (const StepShape& shape : dp_ranks) {
    rows += shape.rows();
    if (shape.rows() > fullest->rows()) fullest = &shape;
  }
  const double active =
      num_experts > 0 ? planner::expected_active_experts(num_experts, top_k, static_cast<double>(rows)) : 0;
  return {1,
          static_cast<double>(fullest->decode_rows),
          static_cast<double>(fullest->decode_context),
          static_cast<double>(fullest->prefill_rows),
          static_cast<double>(fullest->prefill_pairs),
          active,
          static_cast<double>(rows - fullest->rows()),
          static_cast<double>(fullest->prefill_sequences)};
}

double LinearCost::operator()(std::span<const StepShape> dp_ranks, double) const {
  const Features has = features(dp_ranks);
  double sum = 0;
  for (size_t i = 0; i < kNumFeatures; ++i) sum += us[i] * has[i];
  return sum;
}

LinearCost fit_linear_cost(std::span<const MeasuredStep> steps, int64_t num_experts, int64_t top_k) {
  if (steps.size() < LinearCost::kNumFeatures)
    throw invalid_input("calibration: expected at least {} measured steps, found {}; measure more",
                        LinearCost::kNumFeatures, steps.size());
  LinearCost cost{.num_experts = num_experts, .top_k = top_k};
  // Each row in units of its time, so that relative errors count, and each column in units of its largest, so that none
  // drowns.
  std::vector<LinearCost::Features> rows;
  LinearCost::Features scale{};
  for (const MeasuredStep& step : steps) {
    if (!(step.us > 0)) throw invalid_input("calibration: expected times above 0, found {}; measure again", step.us);
    rows.push_back(cost.features(step.dp_ranks));
    for (size_t i = 0; i < scale.size(); ++i) scale[i] = std::max(scale[i], rows.back()[i] /= step.us);
  }
  for (auto& row : rows)
    for (size_t i = 0; i < scale.size(); ++i) row[i] = scale[i] > 0 ? row[i] / scale[i] : 0;
  // Long steps are few and make the queues: they count more, though not by all of their length. Steps that something
  // else on the machine held up pull squares far: beyond a tenth, errors are weighed as absolute ones.
  constexpr int kReweighings = 8;
  constexpr double kSquaredUpTo = 0.1;
  std::vector<double> importance, weights;
  for (const MeasuredStep& step : steps) importance.push_back(std::sqrt(step.us));
  weights = importance;
  for (int round = 0; round <= kReweighings; ++round) {
    cost.us = non_negative_least_squares(rows, weights);
    for (size_t r = 0; r < rows.size(); ++r)
      weights[r] = importance[r] / std::max(std::abs(residual_of(rows[r], cost.us)), kSquaredUpTo);
  }
  for (size_t i = 0; i < scale.size(); ++i) cost.us[i] = scale[i] > 0 ? cost.us[i] / scale[i] : 0;
  return cost;
}

CostError cost_error(const LinearCost& cost, std::span<const MeasuredStep> steps) {
  CostError out;
  double predicted = 0, measured = 0;
  for (const MeasuredStep& step : steps) {
    const double us = cost(step.dp_ranks, 1), error = std::abs(us - step.us) / step.us;
    predicted += us, measured += step.us;
    out.mean += error / static_cast<double>(steps.size());
    out.max = std::max(out.max, error);
  }
  out.total = measured > 0 ? predicted / measured : 1;
  return out;
}

json::object cost_json(const LinearCost& cost) {
  json::object us;
  for (size_t i = 0; i < LinearCost::kNumFeatures; ++i) us[LinearCost::kNames[i]] = cost.us[i];
  return {{"us", std::move(us)}, {"num_experts", cost.num_experts}, {"top_k", cost.top_k}};
}

LinearCost parse_cost(const JsonObject& object) {
  LinearCost cost{.num_experts = object.integer("num_experts", 0, 1 << 20),
                  .top_k = object.integer("top_k", 0, 1 << 20)};
  if (cost.top_k > cost.num_experts)
    throw invalid_input("{}: expected 'top_k' of at most 'num_experts' ({}), found {}; calibrate again", object.name(),
                        cost.num_experts, cost.top_k);
  const auto us = object.maybe_object("us");
  if (!us) throw invalid_input("{}: expected 'us' with the coefficients, found none; calibrate again", object.name());
  for (size_t i = 0; i < LinearCost::kNumFeatures; ++i) {
    cost.us[i] = us->number(LinearCost::kNames[i]);
    if (cost.us[i] < 0 || cost.us[i] > 1e12)
      throw invalid_input("{}: expected '{}' from 0 to 1e12 us, found {}; calibrate again", object.name(),
                          LinearCost::kNames[i], cost.us[i]);
  }
  // Every step has to take time, or a replay would not get on.
  if (!(cost.us[0] + cost.us[1] > 0) || !(cost.us[0] + cost.us[3] > 0))
    throw invalid_input("{}: expected steps to take time, found coefficients of 0; calibrate again", object.name());
  return cost;
}

}  // namespace cadre::replay
