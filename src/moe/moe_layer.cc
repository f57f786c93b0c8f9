#include "moe/moe_layer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/elementwise.h"

namespace cadre {

MoeWorkspace::MoeWorkspace(const MoeConfig& c, int64_t hidden, int64_t max_rows, int64_t max_pairs, int64_t num_slots, int num_threads, bool rounds_inputs)
    : logits(static_cast<size_t>(max_rows * c.router.num_experts)), scratch(static_cast<size_t>(num_threads * 3 * c.router.num_experts)),
      weights(static_cast<size_t>(max_rows * c.router.top_k)), ids(weights.size()), shared_h(static_cast<size_t>(max_rows * c.shared_intermediate)),
      shared_out(static_cast<size_t>(c.shared_intermediate > 0 ? max_rows * hidden : 0)),
      rounded(static_cast<size_t>(rounds_inputs ? max_rows * hidden : 0)), experts(max_pairs, num_slots, hidden, c.expert_intermediate, num_threads) {}

MoeLayer::MoeLayer(const MoeConfig& config, ReplicaSplit replicas, MoeWeights weights) : config_(config), replicas_(std::move(replicas)), weights_(std::move(weights)) {}

void MoeLayer::forward(const MoeStep& step, const float* x, int64_t num_rows, float* out, std::span<uint8_t> row_failed, MoeWorkspace& w) {
  const int64_t hidden = weights_.router.weight.view().k(), top_k = config_.router.top_k;
  route(step, x, num_rows, row_failed, w);
  std::fill(out, out + num_rows * hidden, 0.0f);
  const bool experts_round = weights_.experts.layout().rounds_inputs;
  const SharedInput in = share_input(x, num_rows, hidden, experts_round || (weights_.shared && weights_.shared->rounds_input()), w.rounded, *step.pool);
  const float* experts_x = experts_round ? in.rounded : x;
  Exchange& exchange = step.exchanges->for_step(step.world_rows);
  const int64_t at_once = exchange.chunk_rows(), longest = *std::max_element(step.world_rows.begin(), step.world_rows.end());
  bool has_shared = false;
  w.round_rows.resize(step.world_rows.size());
  for (int64_t first = 0; first < longest; first += at_once) {
    for (size_t r = 0; r < w.round_rows.size(); ++r) w.round_rows[r] = std::clamp<int64_t>(step.world_rows[r] - first, 0, at_once);
    const int64_t count = std::clamp<int64_t>(num_rows - first, 0, at_once), from = std::min(first, num_rows);
    const size_t at = static_cast<size_t>(from * top_k), size = static_cast<size_t>(count * top_k);
    exchange.start_dispatch({experts_x + from * hidden, count, {w.ids.data() + at, size}, {w.weights.data() + at, size}, step.layer}, w.round_rows, replicas_);
    if (!std::exchange(has_shared, true)) compute_shared(in, num_rows, w, *step.pool);  // while rows travel
    const ExpertPairs pairs = exchange.finish_dispatch();
    const int64_t arrived_us = step.exchange_work ? step.exchange_work->clock->now_us() : 0;
    compute_experts(pairs, step.work, w.experts, *step.pool);
    const int64_t computed_us = step.exchange_work ? step.exchange_work->clock->now_us() : 0;
    exchange.start_combine(w.experts, *step.pool);
    exchange.finish_combine(out + from * hidden, *step.pool);
    if (!step.exchange_work) continue;
    step.exchange_work->pairs += static_cast<int64_t>(pairs.slot_of_pair.size());
    step.exchange_work->compute_us += computed_us - arrived_us;
    step.exchange_work->combine_us += step.exchange_work->clock->now_us() - computed_us;
  }
  if (weights_.shared) add_shared(x, num_rows, out, w, *step.pool);
}

void MoeLayer::route(const MoeStep& step, const float* x, int64_t num_rows, std::span<uint8_t> row_failed, MoeWorkspace& w) const {
  const size_t num_experts = static_cast<size_t>(config_.router.num_experts), top_k = static_cast<size_t>(config_.router.top_k);
  weights_.router.apply(x, num_rows, w.logits.data(), *step.pool);
  step.pool->parallel_for(num_rows, [&](int64_t row, int thread) {
    const size_t r = static_cast<size_t>(row);
    const bool is_ok = route_token(config_.router, {w.logits.data() + r * num_experts, num_experts}, weights_.correction_bias,
                                   {w.scratch.data() + static_cast<size_t>(thread) * 3 * num_experts, 3 * num_experts},
                                   {w.ids.data() + r * top_k, top_k}, {w.weights.data() + r * top_k, top_k});
    if (!is_ok) row_failed[r] = 1;
  });
  const size_t first = static_cast<size_t>(step.observed.first) * top_k, pairs = static_cast<size_t>(step.observed.count) * top_k;
  if (step.observer && *step.observer) (*step.observer)(step.layer, {w.ids.data() + first, pairs}, {w.weights.data() + first, pairs});
}

void MoeLayer::compute_experts(const ExpertPairs& pairs, ExpertWork* work, ExpertsWorkspace& w, ThreadPool& pool) const {
  if (!work) return weights_.experts.compute(pairs, w, pool);
  work->rows_of_slot.resize(static_cast<size_t>(weights_.experts.num_slots()));
  for (const int32_t slot : pairs.slot_of_pair) ++work->rows_of_slot[static_cast<size_t>(slot)];
  const int64_t started_us = work->clock->now_us();
  weights_.experts.compute(pairs, w, pool);
  work->finished_us = work->clock->now_us();
  work->compute_us += work->finished_us - started_us;
}

void MoeLayer::compute_shared(const SharedInput& x, int64_t num_rows, MoeWorkspace& w, ThreadPool& pool) const {
  if (weights_.shared) weights_.shared->forward(x, num_rows, w.shared_out.data(), w.shared_h, w.experts.per_thread, pool);
}

void MoeLayer::add_shared(const float* x, int64_t num_rows, float* out, MoeWorkspace& w, ThreadPool& pool) const {
  const int64_t hidden = weights_.router.weight.view().k();
  pool.parallel_for(num_rows, [&](int64_t row, int) {
    float scale = 1.0f;
    if (!weights_.shared_gate.empty()) {
      float s = 0;
      for (int64_t i = 0; i < hidden; ++i) s = std::fma(x[row * hidden + i], weights_.shared_gate[static_cast<size_t>(i)], s);
      scale = 1.0f / (1.0f + std::exp(-s));
    }
    add_scaled(scale, w.shared_out.data() + row * hidden, hidden, out + row * hidden);
  });
}

}  // namespace cadre
