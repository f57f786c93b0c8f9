#include "kernels/devices.h"

#include <cuda_runtime.h>

namespace cadre {

std::vector<DeviceInfo> cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    devices.push_back({properties.name, static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return devices;
}

bool is_built_with_cuda() { return true; }

}  // namespace cadre
