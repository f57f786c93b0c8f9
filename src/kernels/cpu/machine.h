// What this machine can do at best, measured: the limits that benchmarks and plans put their times against.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"

namespace cadre {

// Bytes per second that `pool` reads from `bytes` of memory, best of several passes. Of less than the caches hold it says
// more than memory gives.
double read_bandwidth(ThreadPool& pool, size_t bytes = size_t{1} << 30);

// float32 operations per second (a fused multiply-add counts two) with operands in registers, on the widest vectors.
double fma_peak(ThreadPool& pool);

// The vector instructions that kernels use here: "AVX3" (AVX-512), "AVX2", "SSSE3", ...
const char* vector_target();

}  // namespace cadre
