#include "eplb/load_window.h"

#include <algorithm>

#include "base/check.h"

namespace cadre::eplb {

LoadWindow::LoadWindow(int64_t num_layers, int64_t num_experts, int64_t num_steps)
    : num_experts_(num_experts), window_(num_steps), open_(static_cast<size_t>(num_layers * num_experts)), sums_(open_.size()) {
  CADRE_CHECK(num_steps >= 1, "a window of {} steps", num_steps);
}

void LoadWindow::add(int64_t layer, std::span<const int32_t> ids) {
  uint32_t* counts = open_.data() + layer * num_experts_;
  for (const int32_t id : ids) ++counts[id];
}

void LoadWindow::end_step() {
  for (size_t i = 0; i < open_.size(); ++i) sums_[i] += open_[i];
  if (static_cast<int64_t>(steps_.size()) < window_) {
    steps_.push_back(open_);
  } else {
    std::vector<uint32_t>& oldest = steps_[next_];
    for (size_t i = 0; i < open_.size(); ++i) sums_[i] -= oldest[i];
    std::swap(oldest, open_);
  }
  next_ = (next_ + 1) % static_cast<size_t>(window_);
  std::fill(open_.begin(), open_.end(), 0u);
}

}  // namespace cadre::eplb
