// Row-wise float32 operations between the matrix products. Sums run in 16 fixed lanes joined pairwise, so results do not
// depend on the vector width.
#pragma once

#include <cstdint>

namespace cadre {

// out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i], i in [0, n) (Zhang and Sennrich 2019). out may be x.
void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out);

// out[i] = gate[i] * sigmoid(gate[i]) * up[i] (SwiGLU, Shazeer 2020). out may be gate.
void silu_mul(const float* gate, const float* up, int64_t n, float* out);

// gpt-oss: g = min(gate, limit), u = clamp(up, -limit, limit): out = (u + 1) * g * sigmoid(1.702 g). out may be gate.
void gpt_oss_swiglu(const float* gate, const float* up, float limit, int64_t n, float* out);

// y[i] += x[i]
void add(const float* x, int64_t n, float* y);

// y[i] = fma(a, x[i], y[i])
void add_scaled(float a, const float* x, int64_t n, float* y);

// The same in scalar code, for tests.
void rms_norm_ref(const float* x, const float* weight, float eps, int64_t n, float* out);
void silu_mul_ref(const float* gate, const float* up, int64_t n, float* out);
void gpt_oss_swiglu_ref(const float* gate, const float* up, float limit, int64_t n, float* out);

}  // namespace cadre
