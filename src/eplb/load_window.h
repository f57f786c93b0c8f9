// How many real rows of this rank chose each expert of each layer in the last steps. Of one rank and one thread; padding
// and idle ranks are never routed, so they cannot count.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cadre::eplb {

class LoadWindow {
 public:
  LoadWindow(int64_t num_layers, int64_t num_experts, int64_t num_steps);

  // Choices of rows in the open step, [rows, top_k].
  void add(int64_t layer, std::span<const int32_t> ids);
  // Closes the step; the one that falls out of the window is forgotten.
  void end_step();

  // [layers, experts], over the last num_steps closed steps.
  std::span<const int64_t> sums() const { return sums_; }
  int64_t num_steps() const { return static_cast<int64_t>(steps_.size()); }  // that the sums are of

 private:
  const int64_t num_experts_, window_;
  std::vector<std::vector<uint32_t>> steps_;  // a ring; grows to the window
  size_t next_ = 0;
  std::vector<uint32_t> open_;
  std::vector<int64_t> sums_;
};

}  // namespace cadre::eplb
