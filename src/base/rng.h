// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// The value at (key, counter) depends on nothing else, so a sequence's samples do not depend on its batch mates.
#pragma once

#include <array>
#include <cstdint>

namespace cadre {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Random 32-bit word number `index` of stream `stream` under `seed`.
inline uint32_t random_u32(uint64_t seed, uint64_t stream, uint64_t index) {
  const auto words = philox4x32({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
                                {static_cast<uint32_t>(index >> 2), static_cast<uint32_t>(index >> 34),
                                 static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)});
  return words[index & 3];
}

// Uniform in [0, 1) with 24 random bits.
inline float random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return static_cast<float>(random_u32(seed, stream, index) >> 8) * 0x1p-24f;
}

// A generator over one stream, usable with <random> and std::shuffle.
class Rng {
 public:
  using result_type = uint32_t;
  explicit Rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}
  static constexpr uint32_t min() { return 0; }
  static constexpr uint32_t max() { return 0xFFFFFFFFu; }
  uint32_t operator()() { return random_u32(seed_, stream_, index_++); }
  float uniform() { return static_cast<float>((*this)() >> 8) * 0x1p-24f; }
  // Uniform integer in [0, n), n > 0 (multiply-shift; bias below 2^-32 * n).
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((uint64_t{(*this)()} * n) >> 32); }

 private:
  uint64_t seed_, stream_, index_ = 0;
};

}  // namespace cadre
