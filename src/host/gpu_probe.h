// Asks NVIDIA's libraries, where they are installed, what GPUs there are. Nothing is linked: each library is opened
// when it is asked, and one that is missing is said to be. No GPU memory is taken and no context is made.
#pragma once

#include "host/checks.h"

namespace cadre {

GpuMeasured probe_gpus();

}  // namespace cadre
