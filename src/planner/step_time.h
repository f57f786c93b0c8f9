// How long a step takes: what it has to read, compute and send, by the device's rates. A roofline for each part of a layer, summed
// over the layers: max(bytes / bandwidth, operations / rate), then bytes / link bandwidth + latency for each collective. Pure
// arithmetic on the engine's own byte functions; no overlap of parts is assumed, so measured steps may be faster.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/layer_plan.h"
#include "parallel/traffic_cost.h"
#include "planner/hardware.h"
#include "planner/planned_model.h"

namespace cadre::planner {

// What one data-parallel rank does in a step.
struct StepShape {
  int64_t decode_rows = 0;     // sequences that get one token
  int64_t decode_context = 0;  // cached tokens that those attend to, in all
  int64_t prefill_rows = 0;    // prompt tokens
  int64_t prefill_pairs = 0;   // (prompt token, token it attends to): for rows a .. b - 1 of a prompt, b(b+1)/2 - a(a+1)/2
  int64_t prefill_sequences = 0;  // that those are of; only measured costs weigh them
  int64_t rows() const { return decode_rows + prefill_rows; }
  bool operator==(const StepShape&) const = default;
};

enum class StepPart : uint8_t {
  kAttention,  // projections
  kCache,      // scores and values over the cache
  kDense,      // dense feed-forwards
  kRouter,
  kShared,   // shared experts
  kExperts,  // routed experts of the fullest rank
  kHead,
  kDomain,   // collectives between devices of a domain
  kNetwork,  // and between domains
  kFixed,    // of each step
};
inline constexpr size_t kNumStepParts = 10;
std::string_view step_part_name(StepPart part);

enum class Bound : uint8_t { kNothing, kMemory, kCompute, kWire, kLatency };
std::string_view bound_name(Bound bound);

struct PartTime {
  double bytes_us = 0;  // memory, or wire of kDomain and kNetwork
  double compute_us = 0;
  double latency_us = 0;
  double us() const { return (bytes_us > compute_us ? bytes_us : compute_us) + latency_us; }
};

struct StepTime {
  std::array<PartTime, kNumStepParts> parts;
  // Of the rank with the most rows, over the step.
  double domain_bytes = 0, network_bytes = 0;
  const PartTime& operator[](StepPart part) const { return parts[static_cast<size_t>(part)]; }
  PartTime& operator[](StepPart part) { return parts[static_cast<size_t>(part)]; }
  double total_us() const;
  Bound bound_of(StepPart part) const;
  StepPart longest() const;
};

struct StepOptions {
  double kv_value_bytes = 2;  // of one cached value
  bool is_fp8_dispatch = false;
  double balancedness = 1;   // mean / maximum of expert rows over ranks, in (0, 1]; of a recorded load, or a wish
  int ranks_per_domain = 0;  // 0: the device's
};

class StepTimeModel {
 public:
  StepTimeModel(const PlannedModel& model, const Layout& layout, const HardwareSpec& hardware, const StepOptions& options);
  // dp_ranks: [layout.attn_dp]. A few microseconds: a simulator calls it for every step.
  StepTime operator()(std::span<const StepShape> dp_ranks) const;
  // The same shape on every rank.
  StepTime uniform(const StepShape& shape) const;

  const Layout& layout() const { return layout_; }
  int ranks_per_domain() const { return ranks_per_domain_; }

 private:
  struct Weights {
    double bytes = 0, parameters = 0, per_s = 0;  // rate of its products
  };
  PartTime products(const Weights& weights, double share_of_weights, double rows) const;
  double expert_share(double rows) const;
  void add_attention(const StepShape& shape, StepTime* out) const;
  void add_feed_forward(std::span<const StepShape> dp_ranks, size_t busiest, StepTime* out) const;
  double remote_domains() const;
  void add_wires(std::span<const StepShape> dp_ranks, size_t busiest, StepTime* out) const;
  void add_layer_wires(const struct LayerWires& wires, StepTime* out) const;

  ModelConfig config_;  // with layers cut to one of each kind
  Layout layout_;
  HardwareSpec hardware_;
  StepOptions options_;
  int ranks_per_domain_ = 1;
  int64_t activation_bytes_ = 2;
  double math_per_s_ = 0;  // of attention over the cache
  Weights attention_, dense_, router_, shared_, experts_, head_;
  double num_slots_ = 0;  // experts held by this rank, and by all
  double num_all_slots_ = 0;
  double kv_value_bytes_layer_ = 0;  // cached values of a token and layer on this rank
  AttentionConfig heads_;            // this rank's
  struct WindowLayers {
    double count = 0, window = 0;  // window 0: all
  };
  std::vector<WindowLayers> windows_;
  double num_dense_layers_ = 0, num_sparse_layers_ = 0;
  std::vector<LayerPlan> plans_;  // of config_'s layers
  ExpectedDispatch expected_;     // bounded by expert groups
  double remote_domains_ = 0;
};

// E [1 - (1 - k/E)^rows]: experts that get a row when each row chooses top_k of them evenly.
double expected_active_experts(int64_t num_experts, int64_t top_k, double rows);

// Destination ranks of a row under the approximation of independent draws, N [1 - (1 - 1/N)^k], its own rank among them. The exact
// one is expected_dispatch() (parallel/traffic_cost.h).
double destinations_with_replacement(int ranks, int64_t top_k);

// The most ranks that a row can reach when its experts lie in topk_groups of num_groups groups, which are contiguous and placed in
// order over the ranks (DeepSeek-V3, section 2.1.2); min(top_k, ranks) without groups.
int destination_bound(const RouterConfig& router, int ranks);

// The smallest number of rows a rank at which the parts of a decode step spend longer on computing than on reading memory; 0: not
// up to `most`. context: cached tokens of each row.
int64_t compute_bound_rows(const StepTimeModel& model, int64_t context, int64_t most);

}  // namespace cadre::planner
