// Rotary position embedding (Su et al. 2021) with linear, YaRN (Peng et al. 2023) and llama3 frequency scaling.
#pragma once

#include <cstdint>
#include <vector>

#include "config/model_config.h"

namespace cadre {

class Rope {
 public:
  explicit Rope(const RopeConfig& config);

  int64_t half_dim() const { return static_cast<int64_t>(inverse_frequencies_.size()); }
  const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }
  // cos and sin, half_dim() values each, of the angles at a position. The angle is rounded to float32 first, as the
  // reference implementations do: at long positions that rounding is part of the result.
  void angles(int64_t position, float* cos, float* sin) const;
  // Rotates the 2 * half_dim() values at x in place.
  void rotate(const float* cos, const float* sin, float* x) const;

 private:
  std::vector<float> inverse_frequencies_;
  double scale_;
  bool interleaved_;
};

}  // namespace cadre
