// The routed experts of one layer on this rank: gated MLPs in equal memory slots, and the grouped matrix products over
// the rows that chose them. A slot holds everything that belongs to an expert, so it can be moved as one piece.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "config/model_config.h"
#include "kernels/gemm.h"
#include "kernels/linear.h"
#include "moe/experts_backend.h"
#include "parallel/expert_layout.h"

namespace cadre {

// One expert's parts, views into a slot (biases null when there are none).
struct ExpertView {
  PackedView gate, up, down;
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
};

struct GatedActivation {
  Activation kind = Activation::kSilu;
  float limit = 0;
  // h = act(gate) * up for n values; h may be gate.
  void apply(const float* gate, const float* up, int64_t n, float* h) const;
};

// Floats of scratch per thread that a gated MLP needs: the up projections of a few rows and one panel.
inline constexpr size_t kGatedScratchFloats = 64 * 32;

// What this rank's experts have to compute: pair p takes row row_of_pair[p] of x through local slot slot_of_pair[p].
struct ExpertPairs {
  const float* x = nullptr;  // [rows, H]
  std::span<const int32_t> row_of_pair, slot_of_pair;
  int64_t size() const { return static_cast<int64_t>(slot_of_pair.size()); }
};

// Scratch for one step, shared by all layers.
struct ExpertsWorkspace {
  ExpertsWorkspace(int64_t max_pairs, int64_t num_slots, int64_t hidden, int64_t intermediate, int num_threads);
  // Output of pair p, [H], after Experts::compute.
  const float* output(int64_t pair) const { return partial.data() + row_of_pair[static_cast<size_t>(pair)] * hidden; }
  int64_t max_pairs, hidden;
  std::vector<int32_t> first_row;    // [slots + 1] rows of each slot, in the order of slots
  std::vector<int32_t> active;       // slots with rows
  std::vector<int32_t> source_row;   // [max_pairs] row of x of each row in slot order
  std::vector<int32_t> row_of_pair;  // [max_pairs] where a pair went
  std::vector<float> h, up;          // [max_pairs, F]; up: of the reference only
  std::vector<float> partial;        // [max_pairs, H]
  std::vector<float> per_thread;     // up projections of one panel
};

class Experts {
 public:
  Experts(const ExpertLayout& layout, int64_t num_slots, GatedActivation activation);
  const ExpertLayout& layout() const { return layout_; }
  int64_t num_slots() const { return num_slots_; }
  std::byte* slot(int64_t s) { return slots_[static_cast<size_t>(s)]; }
  const std::byte* slot(int64_t s) const { return slots_[static_cast<size_t>(s)]; }
  // Slot s is at `memory` from now on: slot_bytes that live as long as this, aligned as Buffer's. Not while experts compute.
  void set_slot(int64_t s, std::byte* memory) { slots_[static_cast<size_t>(s)] = memory; }
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }
  ExpertView expert(int64_t s) const;

  // w.output(p) = expert(slot of p)(row of p), for every pair. At most w.max_pairs pairs.
  void compute(const ExpertPairs& pairs, ExpertsWorkspace& w, ThreadPool& pool) const { backend_->compute(*this, pairs, w, pool); }
  void set_backend(const ExpertsBackend& backend) { backend_ = &backend; }
  // The backend "cpu_grouped".
  void compute_grouped(const ExpertPairs& pairs, ExpertsWorkspace& w, ThreadPool& pool) const;
  const GatedActivation& activation() const { return activation_; }

 private:
  void group_rows(const ExpertPairs& pairs, ExpertsWorkspace& w) const;
  ExpertLayout layout_;
  int64_t num_slots_;
  GatedActivation activation_;
  const ExpertsBackend* backend_;
  Buffer memory_;
  std::vector<std::byte*> slots_;  // in memory_ at first
};

// A dense (or shared-expert) gated MLP: out = down(act(gate x) * up x).
struct GatedMlp {
  Linear gate, up, down;
  GatedActivation activation;
  int64_t bytes() const { return gate.bytes() + up.bytes() + down.bytes(); }  // of memory
  // Whether x must come rounded too.
  bool rounds_input() const { return gate.rounds_input || up.rounds_input; }
  // h: scratch [num_rows, F]; per_thread: ExpertsWorkspace::per_thread.
  void forward(const SharedInput& x, int64_t num_rows, float* out, std::vector<float>& h, std::vector<float>& per_thread, ThreadPool& pool) const;
};

}  // namespace cadre
