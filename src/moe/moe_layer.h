// One sparse layer on one rank: router, exchange, routed experts, shared expert.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "moe/exchange.h"
#include "moe/experts.h"
#include "moe/router.h"

namespace cadre {

struct MoeWeights {
  Linear router;
  std::vector<float> correction_bias;  // [E] or empty
  Experts experts;                     // this rank's slots
  std::optional<GatedMlp> shared;
  std::vector<float> shared_gate;      // [H] or empty: sigmoid(x . gate) scales the shared output
  int64_t bytes() const {              // of memory
    return router.bytes() + experts.bytes() + (shared ? shared->bytes() : 0) + static_cast<int64_t>((correction_bias.size() + shared_gate.size()) * sizeof(float));
  }
};

// Scratch for one step, shared by all layers. max_rows: that forward() is given; max_pairs: that an exchange may bring.
struct MoeWorkspace {
  MoeWorkspace(const MoeConfig& config, int64_t hidden, int64_t max_rows, int64_t max_pairs, int64_t num_slots, int num_threads, bool rounds_inputs);
  std::vector<float> logits, scratch, weights;
  std::vector<int32_t> ids;
  std::vector<float> shared_h, shared_out;
  std::vector<float> rounded;  // [max_rows, H] rows as products with FP8 inputs take them; empty where there are none
  std::vector<int64_t> round_rows;
  ExpertsWorkspace experts;
};

// Sees each layer's choices: ids and weights [rows, top_k] (tests compare them, the load recorder counts them).
using RouteObserver = std::function<void(int64_t layer, std::span<const int32_t> ids, std::span<const float> weights)>;

// What this rank's experts did in one layer of one step, for whoever follows a step; MoeLayer writes where a step names one.
struct ExpertWork {
  const Clock* clock = nullptr;
  std::vector<int64_t> rows_of_slot;  // [local slots]
  int64_t compute_us = 0;             // over all rounds of the step
  int64_t finished_us = 0;            // on the clock
};

// What this rank's experts were given, and how long it waited for other ranks' outputs, over all layers; MoeLayer adds to it.
struct ExchangeWork {
  const Clock* clock = nullptr;
  int64_t pairs = 0;       // (row, expert) computed here
  int64_t compute_us = 0;  // on them
  int64_t combine_us = 0;  // from this rank's outputs being done to all of them being here
};

struct MoeStep {
  int64_t layer = 0;
  // Rows of each rank of the world, this one's included; with a local exchange only this rank's.
  std::span<const int64_t> world_rows;
  const Exchanges* exchanges = nullptr;
  const RouteObserver* observer = nullptr;  // may be null
  Slice observed;                           // rows of forward()'s that are this rank's own
  ThreadPool* pool = nullptr;
  ExpertWork* work = nullptr;               // may be null
  ExchangeWork* exchange_work = nullptr;    // may be null
};

class MoeLayer {
 public:
  // replicas: of this layer's experts on the ranks of the exchange.
  MoeLayer(const MoeConfig& config, ReplicaSplit replicas, MoeWeights weights);
  // out = experts(x) + shared(x); x, out: [num_rows, H]. row_failed[r] is set where the router met a NaN. A collective
  // unless the exchange is local: every rank calls, with 0 rows too.
  void forward(const MoeStep& step, const float* x, int64_t num_rows, float* out, std::span<uint8_t> row_failed, MoeWorkspace& w);

  const ExpertPlacement& placement() const { return replicas_.placement(); }
  // Of as many slots. Between steps only, on all ranks at the same one, when this rank's slots hold what it says.
  void set_placement(ExpertPlacement placement) { replicas_ = ReplicaSplit(std::move(placement), replicas_.choice(), replicas_.nodes()); }
  Experts& experts() { return weights_.experts; }
  const MoeWeights& weights() const { return weights_; }

 private:
  void route(const MoeStep& step, const float* x, int64_t num_rows, std::span<uint8_t> row_failed, MoeWorkspace& w) const;
  void compute_experts(const ExpertPairs& pairs, ExpertWork* work, ExpertsWorkspace& w, ThreadPool& pool) const;
  void compute_shared(const SharedInput& x, int64_t num_rows, MoeWorkspace& w, ThreadPool& pool) const;
  void add_shared(const float* x, int64_t num_rows, float* out, MoeWorkspace& w, ThreadPool& pool) const;
  const MoeConfig& config_;
  ReplicaSplit replicas_;
  MoeWeights weights_;
};

}  // namespace cadre
