#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "base/rng.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

constexpr float kLargestF8 = 448.0f;
constexpr size_t kLevels = 256;  // one random byte picks a value: 16 values a Philox call

// Quantiles of the standard normal distribution at (i + 1/2) / 256, scaled to variance 1.
std::array<float, kLevels> normal_levels() {
  std::array<double, kLevels> z{};
  double squares = 0;
  for (size_t i = 0; i < kLevels; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / kLevels;
    double low = -10, high = 10;
    for (int step = 0; step < 60; ++step) {
      const double mid = (low + high) / 2;
      (0.5 * std::erfc(-mid / std::sqrt(2.0)) < p ? low : high) = mid;
    }
    z[i] = low;
    squares += low * low;
  }
  std::array<float, kLevels> levels{};
  for (size_t i = 0; i < kLevels; ++i) levels[i] = static_cast<float>(z[i] / std::sqrt(squares / kLevels));
  return levels;
}

// FNV-1a: the stream of a tensor depends on its name only, not on which others exist.
uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

// Calls use(position, 16 random bytes, count) along `size` positions; count is 16 but at the end.
template <typename Use>
void for_random_bytes(uint64_t seed, uint64_t stream, size_t size, Use use) {
  for (size_t at = 0; at < size; at += 16) {
    const uint64_t index = at / 16;
    const auto words = philox4x32({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
                                  {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                                   static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)});
    uint8_t bytes[16];
    std::memcpy(bytes, words.data(), 16);
    use(at, bytes, std::min<size_t>(16, size - at));
  }
}

template <typename T>
void fill_levels(std::span<T> out, const std::array<T, kLevels>& levels, uint64_t seed, uint64_t stream) {
  for_random_bytes(seed, stream, out.size(), [&](size_t at, const uint8_t* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) out[at + i] = levels[bytes[i]];
  });
}

class DummyWeights final : public WeightSource {
 public:
  DummyWeights(const ModelConfig& config, uint64_t seed) : seed_(seed), normal_(normal_levels()) {
    for (TensorSpec& spec : checkpoint_tensors(config)) {
      if (!spec.required) continue;
      total_bytes_ += static_cast<uint64_t>(spec.bytes());
      specs_.push_back(std::move(spec));
    }
    for (const TensorSpec& spec : specs_) by_name_.emplace(spec.name, &spec);
  }

  bool has(std::string_view name) const override { return by_name_.count(name) != 0; }
  TensorInfo info(std::string_view name) const override { return {spec_of(name).dtype, spec_of(name).shape}; }

  StoredTensor tensor(std::string_view name) override {
    const TensorSpec& spec = spec_of(name);
    Made* made = nullptr;
    {
      const std::lock_guard lock(mutex_);
      made = &made_[spec.name];
    }
    // Outside the lock: threads that load different tensors make them at the same time.
    std::call_once(made->once, [&] {
      made->buffer = Buffer(static_cast<size_t>(spec.bytes()));
      fill(spec, made->buffer);
    });
    return {spec.dtype, spec.shape, made->buffer.as<const std::byte>()};
  }

  void release(std::string_view name) override {
    const TensorSpec& spec = spec_of(name);
    const std::lock_guard lock(mutex_);
    made_.erase(spec.name);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> result;
    for (const TensorSpec& spec : specs_) result.push_back(spec.name);
    return result;
  }

  uint64_t total_bytes() const override { return total_bytes_; }

 private:
  struct Made {
    std::once_flag once;
    Buffer buffer;
  };

  const TensorSpec& spec_of(std::string_view name) const {
    const auto it = by_name_.find(name);
    if (it == by_name_.end())
      throw Error(ErrorKind::kNotFound,
                  fmt::format("expected a tensor of this configuration, found {}; there is none of that name",
                              cadre::quoted(name)));
    return *it->second;
  }

  static float std_of(const TensorSpec& spec) {
    return spec.fan_in > 0 ? 1.0f / std::sqrt(static_cast<float>(spec.fan_in)) : kSmall;
  }
  // The weight whose blocks a scale belongs to.
  const TensorSpec& scaled_weight(const TensorSpec& scale) const;

  void fill(const TensorSpec& spec, Buffer& out) const;
  void fill_floats(const TensorSpec& spec, Buffer& out) const;
  void fill_fp8_scales(const TensorSpec& spec, Buffer& out) const;
  void fill_mxfp4_scales(const TensorSpec& spec, Buffer& out) const;

  static constexpr float kSmall = 0.02f;  // biases and sinks: present enough to matter, too small to lead

  uint64_t seed_;
  std::array<float, kLevels> normal_;
  std::vector<TensorSpec> specs_;
  std::unordered_map<std::string_view, const TensorSpec*> by_name_;
  uint64_t total_bytes_ = 0;
  std::mutex mutex_;  // guards made_
  std::map<std::string, Made> made_;
};

const TensorSpec& DummyWeights::scaled_weight(const TensorSpec& scale) const {
  std::string name = scale.name;
  if (name.ends_with("_scale_inv"))
    name.resize(name.size() - std::string_view("_scale_inv").size());
  else
    name.replace(name.size() - std::string_view("_scales").size(), std::string::npos, "_blocks");
  return spec_of(name);
}

void DummyWeights::fill(const TensorSpec& spec, Buffer& out) const {
  const uint64_t stream = stream_of(spec.name);
  switch (spec.dtype) {
    case DType::kF8E4M3: {
      // Over the whole range of the format; the scales bring it down.
      std::array<uint8_t, kLevels> levels{};
      for (size_t i = 0; i < kLevels; ++i) levels[i] = float_to_f8e4m3(normal_[i] / normal_.back() * kLargestF8);
      return fill_levels(out.as<uint8_t>(), levels, seed_, stream);
    }
    case DType::kU8:
      if (spec.is_scale) return fill_mxfp4_scales(spec, out);
      // Every pair of 4-bit codes is a pair of values.
      return for_random_bytes(seed_, stream, out.size(), [&](size_t at, const uint8_t* bytes, size_t count) {
        std::memcpy(out.data() + at, bytes, count);
      });
    default: return spec.is_scale ? fill_fp8_scales(spec, out) : fill_floats(spec, out);
  }
}

void DummyWeights::fill_floats(const TensorSpec& spec, Buffer& out) const {
  const uint64_t stream = stream_of(spec.name);
  const bool ones = spec.kind == TensorKind::kNorm;
  const auto level = [&](size_t i) { return ones ? 1.0f : normal_[i] * std_of(spec); };
  if (spec.dtype == DType::kF32) {
    std::array<float, kLevels> levels{};
    for (size_t i = 0; i < kLevels; ++i) levels[i] = level(i);
    return fill_levels(out.as<float>(), levels, seed_, stream);
  }
  std::array<uint16_t, kLevels> levels{};
  for (size_t i = 0; i < kLevels; ++i)
    levels[i] = spec.dtype == DType::kF16 ? float_to_f16(level(i)) : float_to_bf16(level(i));
  fill_levels(out.as<uint16_t>(), levels, seed_, stream);
}

void DummyWeights::fill_fp8_scales(const TensorSpec& spec, Buffer& out) const {
  // A fifth more or less from block to block, so that a scale applied to the wrong block shows.
  const float middle = std_of(scaled_weight(spec)) * normal_.back() / kLargestF8;
  std::array<float, kLevels> levels{};
  for (size_t i = 0; i < kLevels; ++i) levels[i] = middle * (0.8f + 0.4f * static_cast<float>(i) / (kLevels - 1));
  fill_levels(out.as<float>(), levels, seed_, stream_of(spec.name));
}

void DummyWeights::fill_mxfp4_scales(const TensorSpec& spec, Buffer& out) const {
  // Root mean square of the 16 values of E2M1 taken equally often.
  const float rms = std::sqrt(68.5f / 8);
  const int exponent = static_cast<int>(std::lround(std::log2(std_of(scaled_weight(spec)) / rms))) + 127;
  std::array<uint8_t, kLevels> levels{};
  for (size_t i = 0; i < kLevels; ++i) levels[i] = static_cast<uint8_t>(exponent - static_cast<int>(i % 2));
  fill_levels(out.as<uint8_t>(), levels, seed_, stream_of(spec.name));
}

}  // namespace

std::unique_ptr<WeightSource> make_dummy_weights(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<DummyWeights>(config, seed);
}

}  // namespace cadre
