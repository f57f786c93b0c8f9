// A weight matrix with its optional bias.
#pragma once

#include <vector>

#include "kernels/activation_quant.h"
#include "kernels/gemm.h"

namespace cadre {

struct Linear {
  PackedMatrix weight;
  std::vector<float> bias;  // empty: none
  // Its inputs are to be rounded to FP8 (kernels/activation_quant.h). apply() takes them as they are: whoever calls it rounds,
  // once for all products of an input.
  bool rounds_input = false;

  int64_t out_features() const { return weight.view().n(); }
  int64_t in_features() const { return weight.view().k(); }
  int64_t bytes() const { return weight.bytes() + static_cast<int64_t>(bias.size() * sizeof(float)); }
  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
  // x: [num_rows, K], out: [num_rows, N], both dense.
  void apply(const float* x, int64_t num_rows, float* out, ThreadPool& pool) const {
    gemm(weight.view(), bias_or_null(), {x, weight.view().k()}, num_rows, {out, weight.view().n()}, pool);
  }
  // The same for an x that nobody else reads: rounded in place where it has to be.
  void round_and_apply(float* x, int64_t num_rows, float* out, ThreadPool& pool) const {
    if (rounds_input) round_rows_to_fp8(x, num_rows, in_features(), x, pool);
    apply(x, num_rows, out, pool);
  }
};

// The input of several products, as it is and rounded.
struct SharedInput {
  const float* plain = nullptr;    // [num_rows, K]
  const float* rounded = nullptr;  // null where no product asks for it
  const float* of(const Linear& linear) const { return linear.rounds_input ? rounded : plain; }
};

// Rounds x once if one of the products asks for it; scratch then has room for num_rows * K floats.
inline SharedInput share_input(const float* x, int64_t num_rows, int64_t k, bool rounds, std::vector<float>& scratch, ThreadPool& pool) {
  if (!rounds) return {x, nullptr};
  round_rows_to_fp8(x, num_rows, k, scratch.data(), pool);
  return {x, scratch.data()};
}

}  // namespace cadre
