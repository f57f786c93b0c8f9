// One sparse layer on one rank: router, routed experts, shared expert.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "moe/experts.h"
#include "moe/router.h"

namespace cadre {

struct MoeWeights {
  Linear router;
  std::vector<float> correction_bias;  // [E] or empty
  Experts experts;
  std::optional<GatedMlp> shared;
  std::vector<float> shared_gate;      // [H] or empty: sigmoid(x . gate) scales the shared output
};

// Scratch for one step, shared by all layers.
struct MoeWorkspace {
  MoeWorkspace(const MoeConfig& config, int64_t hidden, int64_t max_rows, int num_threads);
  std::vector<float> logits, scratch, weights;
  std::vector<int32_t> ids;
  std::vector<uint8_t> row_is_nan;
  std::vector<float> shared_h, shared_out;
  ExpertsWorkspace experts;
};

// Sees each layer's choices: ids and weights [rows, top_k] (tests compare them, the load recorder counts them).
using RouteObserver = std::function<void(int64_t layer, std::span<const int32_t> ids, std::span<const float> weights)>;

class MoeLayer {
 public:
  MoeLayer(const MoeConfig& config, MoeWeights weights);
  // out = experts(x) + shared(x); x, out: [num_rows, H]. row_failed[r] is set where the router met a NaN.
  void forward(const float* x, int64_t num_rows, float* out, std::span<uint8_t> row_failed, MoeWorkspace& w, ThreadPool& pool,
               int64_t layer, const RouteObserver* observer) const;

 private:
  void add_shared(const float* x, int64_t num_rows, float* out, MoeWorkspace& w, ThreadPool& pool) const;
  const MoeConfig& config_;
  MoeWeights weights_;
};

}  // namespace cadre
