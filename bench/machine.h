// What this machine can do at best, measured: the limits that benchmarks put their times against.
#pragma once

#include "base/thread_pool.h"

namespace cadre {

// Bytes per second that `pool` reads from memory that no cache holds (best of several passes).
double read_bandwidth(ThreadPool& pool);

// float32 operations per second (a fused multiply-add counts two) with operands in registers, on the widest vectors.
double fma_peak(ThreadPool& pool);

}  // namespace cadre
