// Included before hwy/foreach_target.h: the vector targets each CPU kernel is compiled for, chosen at run time.
// AVX2 + FMA and AVX-512 on x86 over an SSSE3 floor (every x86-64 since 2006), the baseline elsewhere; the in-between generations would only add compile time.
#pragma once

#include "hwy/detect_targets.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSE4 | HWY_AVX3_DL)
