#include "moe/moe_layer.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"

namespace cadre {
namespace {

// Tokens whose expert outputs are held at once. Bounds the workspace (rows * top_k * hidden floats); no result changes.
constexpr int64_t kMaxTokensAtOnce = 512;

}  // namespace

MoeWorkspace::MoeWorkspace(const MoeConfig& c, int64_t hidden, int64_t max_rows, int num_threads)
    : logits(static_cast<size_t>(max_rows * c.router.num_experts)), scratch(static_cast<size_t>(num_threads * 3 * c.router.num_experts)),
      weights(static_cast<size_t>(max_rows * c.router.top_k)), ids(weights.size()), row_is_nan(static_cast<size_t>(max_rows)),
      shared_h(static_cast<size_t>(max_rows * c.shared_intermediate)), shared_out(static_cast<size_t>(c.shared_intermediate > 0 ? max_rows * hidden : 0)),
      experts(std::min(max_rows, kMaxTokensAtOnce), c.router.top_k, c.router.num_experts, hidden, c.expert_intermediate, num_threads) {}

MoeLayer::MoeLayer(const MoeConfig& config, MoeWeights weights) : config_(config), weights_(std::move(weights)) {}

void MoeLayer::forward(const float* x, int64_t num_rows, float* out, std::span<uint8_t> row_failed, MoeWorkspace& w, ThreadPool& pool,
                       int64_t layer, const RouteObserver* observer) const {
  const size_t num_experts = static_cast<size_t>(config_.router.num_experts), top_k = static_cast<size_t>(config_.router.top_k);
  const int64_t hidden = weights_.router.weight.view().k();
  weights_.router.apply(x, num_rows, w.logits.data(), pool);
  pool.parallel_for(num_rows, [&](int64_t row, int thread) {
    const size_t r = static_cast<size_t>(row);
    const bool is_ok = route_token(config_.router, {w.logits.data() + r * num_experts, num_experts}, weights_.correction_bias,
                                   {w.scratch.data() + static_cast<size_t>(thread) * 3 * num_experts, 3 * num_experts},
                                   {w.ids.data() + r * top_k, top_k}, {w.weights.data() + r * top_k, top_k});
    if (!is_ok) row_failed[r] = 1;
  });
  const size_t pairs = static_cast<size_t>(num_rows) * top_k;
  if (observer && *observer) (*observer)(layer, {w.ids.data(), pairs}, {w.weights.data(), pairs});
  std::fill(out, out + num_rows * hidden, 0.0f);
  for (int64_t first = 0; first < num_rows; first += kMaxTokensAtOnce) {
    const int64_t count = std::min(kMaxTokensAtOnce, num_rows - first);
    const size_t at = static_cast<size_t>(first) * top_k, size = static_cast<size_t>(count) * top_k;
    weights_.experts.forward(x + first * hidden, count, {w.ids.data() + at, size}, {w.weights.data() + at, size}, config_.router.top_k,
                             out + first * hidden, w.experts, pool);
  }
  if (weights_.shared) add_shared(x, num_rows, out, w, pool);
}

void MoeLayer::add_shared(const float* x, int64_t num_rows, float* out, MoeWorkspace& w, ThreadPool& pool) const {
  const int64_t hidden = weights_.router.weight.view().k();
  weights_.shared->forward(x, num_rows, w.shared_out.data(), w.shared_h, w.experts.per_thread, pool);
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
