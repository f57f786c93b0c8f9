// What the kernel says of this machine: processors, memory, limits, networks, GPUs. Read from text only, so that a tree
// of files stands for a machine in tests; what a file does not say stays unknown and is never guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "host/system_files.h"

namespace cadre {

struct CpuFacts {
  std::string model;
  std::set<std::string> features;      // as /proc/cpuinfo names them
  int logical = 0;                     // online
  int cores = 0, sockets = 0;          // physical; 0: not known
  int usable = 0;                      // logical ones that this process may run on
  std::optional<double> quota;         // processors' worth of time that the container gets
  int64_t last_level_cache_bytes = 0;  // of all sockets together; 0: not known
  std::string governor;                // empty: not known
  std::string clock_source;
};

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;
  int64_t total_bytes = 0, free_bytes = 0;
};

struct MemoryFacts {
  int64_t total_bytes = 0, available_bytes = 0, swap_total_bytes = 0, swap_free_bytes = 0;
  std::optional<int64_t> container_limit_bytes, container_used_bytes;
  std::string transparent_huge_pages;  // always, madvise, never; empty: not known
  int64_t reserved_huge_pages = 0, huge_page_bytes = 0;
  int64_t overcommit = 0;  // vm.overcommit_memory
  // What a process may still take: what is available, no more than the container's limit leaves.
  int64_t usable_bytes() const;
};

struct Limit {
  std::optional<int64_t> soft, hard;  // nullopt: unlimited
};
struct LimitFacts {
  std::optional<Limit> open_files, locked_bytes, processes, address_bytes;  // nullopt: not said
};

struct NetworkDevice {
  std::string name;
  bool is_up = false;
  int64_t mbit_per_s = 0;  // 0: not known
};
struct RdmaDevice {
  std::string name, state, rate;  // "4: ACTIVE", "100 Gb/sec (4X EDR)"
  bool is_active = false;
};

struct HostFacts {
  CpuFacts cpu;
  std::vector<NumaNode> nodes;
  MemoryFacts memory;
  LimitFacts limits;
  std::vector<NetworkDevice> networks;  // without the loopback
  std::vector<RdmaDevice> rdma;
  std::string nvidia_driver;                        // empty: none loaded
  std::vector<std::string> nvidia_devices;          // names, by /proc
  int first_client_port = 0, last_client_port = 0;  // ip_local_port_range; 0: not known
};

HostFacts read_host_facts(const SystemFiles& files);

// The parts, for their tests.
CpuFacts read_cpu(const SystemFiles& files);
std::vector<NumaNode> read_numa(const SystemFiles& files);
MemoryFacts read_memory(const SystemFiles& files);
LimitFacts parse_limits(std::string_view text);  // of /proc/self/limits

}  // namespace cadre
