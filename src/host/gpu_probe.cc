#include "host/gpu_probe.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <vector>

namespace cadre {
namespace {

// A library that is looked into and, as drivers leave threads behind, never closed.
class Library {
 public:
  explicit Library(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) error_ = fmt::format("no {}", name);
  }
  // Null, with error() saying so, when the library or the function is missing.
  template <typename Function>
  Function* function(const char* name) {
    if (!handle_) return nullptr;
    auto* found = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (!found) error_ = fmt::format("a library without {}", name);
    return found;
  }
  const std::string& error() const { return error_; }

 private:
  void* handle_;
  std::string error_;
};

// Signatures from the CUDA driver API, NVML and NCCL references; results are enumerations whose 0 is success.
using CuInit = int(unsigned flags);
using CuCount = int(int* count);
using CuVersion = int(int* version);
using CuDeviceGet = int(int* device, int ordinal);
using CuDeviceName = int(char* name, int length, int device);
using CuTotalMem = int(size_t* bytes, int device);
using NvmlInit = int();
using NvmlDriverVersion = int(char* version, unsigned length);
using NvmlLinkState = int(void* device, unsigned link, unsigned* is_active);
using NvmlBusHandle = int(const char* bus_id, void** device);
using CuBusId = int(char* bus_id, int length, int device);
using NcclVersion = int(int* version);

constexpr unsigned kMaxNvLinks = 18;

void probe_cuda(GpuMeasured& out, std::vector<std::string>& bus_ids) {
  Library cuda("libcuda.so.1");
  auto* init = cuda.function<CuInit>("cuInit");
  auto* count = cuda.function<CuCount>("cuDeviceGetCount");
  auto* version = cuda.function<CuVersion>("cuDriverGetVersion");
  auto* get = cuda.function<CuDeviceGet>("cuDeviceGet");
  auto* name = cuda.function<CuDeviceName>("cuDeviceGetName");
  auto* total = cuda.function<CuTotalMem>("cuDeviceTotalMem_v2");
  auto* bus = cuda.function<CuBusId>("cuDeviceGetPCIBusId");
  out.cuda_error = cuda.error();
  if (!out.cuda_error.empty()) return;
  int number = 0;
  if (version(&number) == 0) out.cuda_version = fmt::format("{}.{}", number / 1000, number % 1000 / 10);
  int num_devices = 0;
  if (const int code = init(0); code != 0) {
    out.cuda_error = fmt::format("cuInit answers {}", code);
    return;
  }
  if (const int code = count(&num_devices); code != 0) {
    out.cuda_error = fmt::format("cuDeviceGetCount answers {}", code);
    return;
  }
  for (int i = 0; i < num_devices; ++i) {
    int device = 0;
    std::array<char, 256> text{}, id{};
    size_t bytes = 0;
    if (get(&device, i) != 0 || name(text.data(), static_cast<int>(text.size()) - 1, device) != 0 ||
        total(&bytes, device) != 0)
      continue;
    out.gpus.push_back({.name = text.data(), .total_bytes = static_cast<int64_t>(bytes)});
    bus_ids.emplace_back(bus(id.data(), static_cast<int>(id.size()) - 1, device) == 0 ? id.data() : "");
  }
}

// NVML counts devices as the driver does, CUDA as CUDA_VISIBLE_DEVICES says: the bus tells which is which.
void probe_nvml(GpuMeasured& out, const std::vector<std::string>& bus_ids) {
  Library nvml("libnvidia-ml.so.1");
  auto* init = nvml.function<NvmlInit>("nvmlInit_v2");
  auto* driver = nvml.function<NvmlDriverVersion>("nvmlSystemGetDriverVersion");
  auto* handle = nvml.function<NvmlBusHandle>("nvmlDeviceGetHandleByPciBusId_v2");
  auto* link = nvml.function<NvmlLinkState>("nvmlDeviceGetNvLinkState");
  out.nvml_error = nvml.error();
  if (!out.nvml_error.empty()) return;
  if (const int code = init(); code != 0) {
    out.nvml_error = fmt::format("nvmlInit answers {}", code);
    return;
  }
  std::array<char, 96> text{};
  if (driver(text.data(), static_cast<unsigned>(text.size()) - 1) == 0) out.driver_version = text.data();
  for (size_t i = 0; i < out.gpus.size(); ++i) {
    void* device = nullptr;
    if (handle(bus_ids[i].c_str(), &device) != 0) continue;
    for (unsigned l = 0; l < kMaxNvLinks; ++l) {
      unsigned is_active = 0;
      if (link(device, l, &is_active) == 0 && is_active) ++out.gpus[i].nvlinks;
    }
  }
}

void probe_nccl(GpuMeasured& out) {
  Library nccl("libnccl.so.2");
  auto* version = nccl.function<NcclVersion>("ncclGetVersion");
  out.nccl_error = nccl.error();
  int number = 0;
  if (!version || version(&number) != 0) return;
  // 2.9 and later: major * 10000 + minor * 100 + patch; before, thousands.
  out.nccl_version = number >= 10000 ? fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100)
                                     : fmt::format("{}.{}.{}", number / 1000, number / 100 % 10, number % 100);
}

}  // namespace

GpuMeasured probe_gpus() {
  GpuMeasured out;
  std::vector<std::string> bus_ids;
  probe_cuda(out, bus_ids);
  probe_nvml(out, bus_ids);
  probe_nccl(out);
  return out;
}

}  // namespace cadre
