// The accelerators this build can use. A build without CUDA (no_cuda.cc instead of cuda/devices.cc) has none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cadre {

struct DeviceInfo {
  std::string name;
  int64_t memory_bytes = 0;
};

// In the order of their device ids; empty when there is none or no driver answers.
std::vector<DeviceInfo> cuda_devices();

// Whether the program was built with CUDA kernels.
bool is_built_with_cuda();

}  // namespace cadre
