#include "attention/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cadre {
namespace {

// YaRN, section 3.2: dimensions that turn often keep their frequency, slow ones are interpolated, a ramp in between.
void scale_yarn(const RopeConfig& c, std::vector<double>& frequencies) {
  const double dim = static_cast<double>(c.rotary_dim);
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(static_cast<double>(c.original_max_position) / (rotations * 2 * std::numbers::pi)) / (2 * std::log(c.theta));
  };
  double low = dimension_of(c.beta_fast), high = dimension_of(c.beta_slow);
  if (c.yarn_truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double interpolated_share = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= interpolated_share / c.factor + (1 - interpolated_share);
  }
}

// The Llama 3.1 release: long wavelengths are divided by the factor, short ones kept, a linear blend in between.
void scale_llama3(const RopeConfig& c, std::vector<double>& frequencies) {
  const double original = static_cast<double>(c.original_max_position);
  for (double& f : frequencies) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength > original / c.low_freq_factor) {
      f /= c.factor;
    } else if (wavelength >= original / c.high_freq_factor) {
      const double kept = (original / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
      f = (1 - kept) * f / c.factor + kept * f;
    }
  }
}

}  // namespace

Rope::Rope(const RopeConfig& c) : scale_(c.cos_sin_scale), interleaved_(c.interleaved) {
  std::vector<double> frequencies(static_cast<size_t>(c.rotary_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = std::pow(c.theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.rotary_dim));
  switch (c.scaling) {
    case RopeScaling::kNone: break;
    case RopeScaling::kLinear: for (double& f : frequencies) f /= c.factor; break;
    case RopeScaling::kYarn: scale_yarn(c, frequencies); break;
    case RopeScaling::kLlama3: scale_llama3(c, frequencies); break;
  }
  inverse_frequencies_.assign(frequencies.begin(), frequencies.end());
}

void Rope::angles(int64_t position, float* cos, float* sin) const {
  for (size_t i = 0; i < inverse_frequencies_.size(); ++i) {
    const float angle = static_cast<float>(position) * inverse_frequencies_[i];
    cos[i] = static_cast<float>(std::cos(double{angle}) * scale_);
    sin[i] = static_cast<float>(std::sin(double{angle}) * scale_);
  }
}

void Rope::rotate(const float* cos, const float* sin, float* x) const {
  const int64_t half = half_dim(), step = interleaved_ ? 2 : 1, apart = interleaved_ ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    float& a = x[i * step];
    float& b = x[i * step + apart];
    const float first = a * cos[i] - b * sin[i], second = b * cos[i] + a * sin[i];
    a = first;
    b = second;
  }
}

}  // namespace cadre
