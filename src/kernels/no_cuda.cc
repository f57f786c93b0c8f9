#include "kernels/devices.h"

namespace cadre {

std::vector<DeviceInfo> cuda_devices() { return {}; }
bool is_built_with_cuda() { return false; }

}  // namespace cadre
