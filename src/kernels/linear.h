// A weight matrix with its optional bias.
#pragma once

#include <vector>

#include "kernels/gemm.h"

namespace cadre {

struct Linear {
  PackedMatrix weight;
  std::vector<float> bias;  // empty: none

  int64_t out_features() const { return weight.view().n(); }
  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
  // x: [num_rows, K], out: [num_rows, N], both dense.
  void apply(const float* x, int64_t num_rows, float* out, ThreadPool& pool) const {
    gemm(weight.view(), bias_or_null(), {x, weight.view().k()}, num_rows, {out, weight.view().n()}, pool);
  }
};

}  // namespace cadre
