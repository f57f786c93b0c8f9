// Sums and products of byte counts that stay at the largest number instead of running over: absurd sizes are told as too large, never
// as negative.
#pragma once

#include <cstdint>
#include <limits>

namespace cadre::planner {

// Of counts from 0.
inline int64_t add_counts(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_add_overflow(a, b, &out) ? std::numeric_limits<int64_t>::max() : out;
}
inline int64_t multiply_counts(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<int64_t>::max() : out;
}

}  // namespace cadre::planner
