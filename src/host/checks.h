// What the facts of a machine mean for Cadre: one finding a question. Pure: the same facts, the same findings.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/facts.h"
#include "host/finding.h"

namespace cadre {

// kernel_target: kernels/cpu/machine.h vector_target(); empty: not asked.
std::vector<Finding> check_processors(const CpuFacts& cpu, const std::string& kernel_target);
std::vector<Finding> check_numa(const std::vector<NumaNode>& nodes);
std::vector<Finding> check_memory(const MemoryFacts& memory);
std::vector<Finding> check_limits(const HostFacts& facts);
std::vector<Finding> check_networks(const HostFacts& facts);

// What was measured; 0: not.
struct MeasuredSpeed {
  int threads = 0;
  double read_bytes_per_s = 0, read_bytes_per_s_one_thread = 0;
  int64_t read_bytes = 0;  // that were read
  double fma_flops_per_s = 0;
};
std::vector<Finding> check_speed(const MeasuredSpeed& speed, const CpuFacts& cpu);

// Two ranks as processes of this machine, as they were measured (host/ucx_probe.h).
struct UcxMeasured {
  std::string error;  // why there is nothing else
  std::string version;
  std::vector<std::string> transports;  // "tcp/eth0"
  double exchange_us = 0;               // of 8 bytes each way, median
  double bytes_per_s = 0;               // each way at once, large parts
};
std::vector<Finding> check_ucx(const UcxMeasured& measured);

// host/gpu_probe.h
struct GpuFound {
  std::string name;
  int64_t total_bytes = 0;
  int nvlinks = 0;  // active
};
struct GpuMeasured {
  std::string cuda_error, nvml_error, nccl_error;  // why a library says nothing; empty where it answered
  std::string cuda_version, driver_version, nccl_version;
  std::vector<GpuFound> gpus;
};
std::vector<Finding> check_gpus(const HostFacts& facts, const GpuMeasured& measured, bool build_has_cuda);

struct PortMeasured {
  int port = 0;
  bool is_free = false, is_asked_for = false;
  std::string why_not;
  int next_free = 0;  // 0: none near
};
std::vector<Finding> check_ports(const HostFacts& facts, const PortMeasured& measured);

}  // namespace cadre
