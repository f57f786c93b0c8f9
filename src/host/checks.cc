#include "host/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace cadre {
namespace {

constexpr int64_t kLittleMemoryBytes = int64_t{1} << 30;
// Connections of a server and of ranks to each other; a soft limit of 1024 is the usual default.
constexpr int64_t kFewOpenFiles = 256, kModestOpenFiles = 4096;

json::value or_null(const std::optional<int64_t>& value) { return value ? json::value(*value) : json::value(nullptr); }

std::string limit_text(const std::optional<int64_t>& value) { return value ? grouped_text(*value) : "unlimited"; }

Finding vector_finding(const CpuFacts& cpu, const std::string& target) {
  Finding f{.section = "processors", .name = "vector instructions"};
  std::vector<std::string> known;
  for (const char* name : {"avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16",
                           "amx_int8", "asimd", "sve"})
    if (cpu.features.contains(name)) known.emplace_back(name);
  const std::string used = target == "AVX3" ? "AVX-512" : target;
  f.text =
      fmt::format("kernels use {}; the processor has {}", used.empty() ? "(not asked)" : used,
                  known.empty() ? std::string("none of the usual ones") : fmt::format("{}", fmt::join(known, " ")));
  f.values = {{"kernels", target}, {"features", json::value_from(known)}};
  if (target == "SSSE3" || target == "EMU128" || target == "SCALAR") {
    f.status = FindingStatus::kNote;
    f.advice =
        "expect a fraction of the usual speed: choose a machine with AVX2 and FMA, or let the virtual machine see them "
        "(host CPU model)";
  }
  return f;
}

Finding core_finding(const CpuFacts& cpu) {
  Finding f{.section = "processors", .name = "cores"};
  const bool has_smt = cpu.cores > 0 && cpu.logical > cpu.cores;
  f.text = fmt::format("{} logical", cpu.logical);
  if (cpu.cores > 0)
    f.text +=
        fmt::format(", {} cores in {} {}", cpu.cores, std::max(cpu.sockets, 1), cpu.sockets > 1 ? "sockets" : "socket");
  if (cpu.last_level_cache_bytes > 0) f.text += ", last-level cache " + gib_text(cpu.last_level_cache_bytes);
  f.values = {{"logical", cpu.logical},
              {"cores", cpu.cores},
              {"sockets", cpu.sockets},
              {"usable", cpu.usable},
              {"quota", cpu.quota ? json::value(*cpu.quota) : json::value(nullptr)},
              {"last_level_cache_bytes", cpu.last_level_cache_bytes}};
  if (cpu.logical == 0) {
    f.status = FindingStatus::kNote;
    f.text = "the kernel does not say how many there are";
    f.advice = "mount /proc and /sys, or give --threads";
  } else if (cpu.quota && *cpu.quota < cpu.usable) {
    f.status = FindingStatus::kNote;
    f.text += fmt::format("; the container gets {:.1f} processors' time", *cpu.quota);
    f.advice = fmt::format("run with --threads {}: more threads than that are stopped in the middle of steps",
                           std::max(1, static_cast<int>(*cpu.quota)));
  } else if (cpu.usable < cpu.logical) {
    f.status = FindingStatus::kNote;
    f.text += fmt::format("; this process may run on {} of them", cpu.usable);
    f.advice = fmt::format("run with --threads {}, or widen the processor set (taskset, cpuset)", cpu.usable);
  } else if (has_smt) {
    f.status = FindingStatus::kNote;
    f.advice = fmt::format("try --threads {}: two threads of one core share its multipliers", cpu.cores);
  }
  return f;
}

void add_memory_pages(const MemoryFacts& memory, std::vector<Finding>& out) {
  Finding f{.section = "memory", .name = "huge pages"};
  f.values = {{"transparent", memory.transparent_huge_pages},
              {"reserved_bytes", memory.reserved_huge_pages * memory.huge_page_bytes}};
  const std::string& mode = memory.transparent_huge_pages;
  if (mode.empty()) {
    f.status = FindingStatus::kNote;
    f.text = "the kernel does not say whether it has transparent ones";
    f.advice = "weights then lie in small pages, which costs some read bandwidth";
  } else if (mode == "never") {
    f.status = FindingStatus::kNote;
    f.text = "transparent ones are off";
    f.advice =
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root): Cadre asks for them where its memory is "
        "large";
  } else {
    f.text = fmt::format("transparent ones: {}; Cadre asks for them", mode);
  }
  if (memory.reserved_huge_pages > 0 && f.status == FindingStatus::kOk) {
    f.status = FindingStatus::kNote;
    f.text += fmt::format("; {} reserved", gib_text(memory.reserved_huge_pages * memory.huge_page_bytes));
    f.advice =
        "Cadre does not use reserved ones: give them back (sysctl vm.nr_hugepages=0) unless another program needs them";
  }
  out.push_back(std::move(f));
}

}  // namespace

std::vector<Finding> check_processors(const CpuFacts& cpu, const std::string& kernel_target) {
  std::vector<Finding> out;
  Finding model{.section = "processors", .name = "model", .text = cpu.model.empty() ? "not said" : cpu.model};
  model.values = {{"model", cpu.model}};
  out.push_back(std::move(model));
  out.push_back(vector_finding(cpu, kernel_target));
  out.push_back(core_finding(cpu));
  if (!cpu.governor.empty()) {
    Finding f{.section = "processors", .name = "frequency", .text = "governor " + cpu.governor};
    f.values = {{"governor", cpu.governor}};
    if (cpu.governor == "powersave" || cpu.governor == "conservative" || cpu.governor == "ondemand") {
      f.status = FindingStatus::kNote;
      f.advice = "cpupower frequency-set -g performance (as root) keeps short steps from starting slow";
    }
    out.push_back(std::move(f));
  }
  if (!cpu.clock_source.empty()) {
    Finding f{.section = "processors", .name = "clock", .text = cpu.clock_source};
    f.values = {{"clock_source", cpu.clock_source}};
    if (cpu.clock_source == "acpi_pm" || cpu.clock_source == "hpet" || cpu.clock_source == "jiffies") {
      f.status = FindingStatus::kNote;
      f.advice =
          "each look at the clock is slow with this source: boot with tsc=reliable if the processor's counter is sound";
    }
    out.push_back(std::move(f));
  }
  return out;
}

std::vector<Finding> check_numa(const std::vector<NumaNode>& nodes) {
  Finding f{.section = "memory", .name = "NUMA"};
  json::array list;
  for (const NumaNode& node : nodes)
    list.push_back(json::object{{"id", node.id},
                                {"cpus", static_cast<int64_t>(node.cpus.size())},
                                {"total_bytes", node.total_bytes},
                                {"free_bytes", node.free_bytes}});
  f.values = {{"nodes", std::move(list)}};
  const auto with_memory =
      std::count_if(nodes.begin(), nodes.end(), [](const NumaNode& n) { return n.total_bytes > 0; });
  if (nodes.size() <= 1) {
    f.text = nodes.empty() ? "the kernel knows of no nodes" : "one node";
  } else {
    f.status = FindingStatus::kNote;
    f.text = fmt::format("{} nodes, {} with memory", nodes.size(), with_memory);
    f.advice = fmt::format(
        "run one rank a node, each in its place, for example: numactl --cpunodebind=0 --membind=0 cadre serve MODEL "
        "... with {} ranks as processes (docs/transports.md)",
        std::max<int64_t>(with_memory, 1));
  }
  return {std::move(f)};
}

std::vector<Finding> check_memory(const MemoryFacts& memory) {
  std::vector<Finding> out;
  Finding f{.section = "memory", .name = "memory"};
  f.values = {{"total_bytes", memory.total_bytes},
              {"available_bytes", memory.available_bytes},
              {"usable_bytes", memory.usable_bytes()},
              {"container_limit_bytes", or_null(memory.container_limit_bytes)}};
  f.text = fmt::format("{} in all, {} available", gib_text(memory.total_bytes), gib_text(memory.available_bytes));
  if (memory.container_limit_bytes)
    f.text += fmt::format("; the container may hold {}, {} left", gib_text(*memory.container_limit_bytes),
                          gib_text(memory.usable_bytes()));
  if (memory.total_bytes == 0) {
    f.status = FindingStatus::kNote;
    f.text = "the kernel does not say how much there is";
    f.advice = "mount /proc; give --kv-cache-memory when serving";
  } else if (memory.usable_bytes() < kLittleMemoryBytes) {
    f.status = FindingStatus::kProblem;
    f.advice = "end other programs or raise the container's limit: little more than the smallest models fits";
  }
  out.push_back(std::move(f));
  if (memory.swap_total_bytes > memory.swap_free_bytes) {
    Finding swap{.section = "memory", .name = "swap", .status = FindingStatus::kNote};
    swap.text = fmt::format("{} of {} in use", gib_text(memory.swap_total_bytes - memory.swap_free_bytes),
                            gib_text(memory.swap_total_bytes));
    swap.advice = "weights that are swapped out stall whole steps: free memory, then swapoff -a && swapon -a";
    swap.values = {{"used_bytes", memory.swap_total_bytes - memory.swap_free_bytes}};
    out.push_back(std::move(swap));
  }
  if (memory.overcommit == 2) {
    Finding f2{.section = "memory",
               .name = "overcommit",
               .status = FindingStatus::kNote,
               .text = "strict (vm.overcommit_memory = 2)"};
    f2.advice =
        "large reservations may be refused although memory is free; sysctl vm.overcommit_memory=0 if loading fails";
    out.push_back(std::move(f2));
  }
  add_memory_pages(memory, out);
  return out;
}

std::vector<Finding> check_limits(const HostFacts& facts) {
  std::vector<Finding> out;
  if (const auto& files = facts.limits.open_files) {
    Finding f{.section = "limits",
              .name = "open files",
              .text = fmt::format("{} (hard limit {})", limit_text(files->soft), limit_text(files->hard))};
    f.values = {{"soft", or_null(files->soft)}, {"hard", or_null(files->hard)}};
    if (files->soft && *files->soft < kModestOpenFiles) {
      f.status = *files->soft < kFewOpenFiles ? FindingStatus::kProblem : FindingStatus::kNote;
      f.advice = fmt::format("every client's connection is one: ulimit -n {} before serving{}",
                             files->hard ? std::min<int64_t>(*files->hard, 65536) : 65536,
                             files->hard && *files->hard < kModestOpenFiles
                                 ? ", after raising the hard limit (limits.conf, LimitNOFILE)"
                                 : "");
    }
    out.push_back(std::move(f));
  }
  if (const auto& locked = facts.limits.locked_bytes) {
    Finding f{
        .section = "limits", .name = "locked memory", .text = locked->soft ? gib_text(*locked->soft) : "unlimited"};
    f.values = {{"soft", or_null(locked->soft)}, {"hard", or_null(locked->hard)}};
    if (locked->soft && !facts.rdma.empty()) {
      f.status = FindingStatus::kProblem;
      f.advice =
          "RDMA devices pin what they send from: ulimit -l unlimited (limits.conf: memlock; LimitMEMLOCK=infinity; "
          "docker run --ulimit memlock=-1)";
    } else if (locked->soft) {
      f.text += "; enough without RDMA devices";
    }
    out.push_back(std::move(f));
  }
  if (const auto& address = facts.limits.address_bytes; address && address->soft) {
    Finding f{
        .section = "limits", .name = "address space", .status = FindingStatus::kNote, .text = gib_text(*address->soft)};
    f.advice = "weights are mapped: ulimit -v unlimited";
    f.values = {{"soft", *address->soft}};
    out.push_back(std::move(f));
  }
  return out;
}

std::vector<Finding> check_networks(const HostFacts& facts) {
  std::vector<Finding> out;
  Finding f{.section = "network", .name = "interfaces"};
  std::vector<std::string> up;
  json::array list;
  for (const NetworkDevice& device : facts.networks) {
    list.push_back(json::object{{"name", device.name}, {"is_up", device.is_up}, {"mbit_per_s", device.mbit_per_s}});
    if (device.is_up)
      up.push_back(device.name + (device.mbit_per_s > 0
                                      ? fmt::format(" ({:g} Gbit/s)", static_cast<double>(device.mbit_per_s) / 1e3)
                                      : ""));
  }
  f.values = {{"interfaces", std::move(list)}};
  f.text = up.empty() ? "none is up but the loopback" : fmt::format("{}", fmt::join(up, ", "));
  if (up.empty())
    f.status = FindingStatus::kNote, f.advice = "ranks on one host still find each other; other hosts do not";
  else if (up.size() > 1)
    f.text += "; UCX_NET_DEVICES chooses among them";
  out.push_back(std::move(f));
  for (const RdmaDevice& device : facts.rdma) {
    Finding r{
        .section = "network", .name = "RDMA " + device.name, .text = fmt::format("{}, {}", device.state, device.rate)};
    r.values = {{"state", device.state}, {"rate", device.rate}};
    if (!device.is_active)
      r.status = FindingStatus::kNote,
      r.advice = "the port has no link: check the cable and the subnet manager, or leave it out with UCX_NET_DEVICES";
    out.push_back(std::move(r));
  }
  return out;
}

std::vector<Finding> check_speed(const MeasuredSpeed& speed, const CpuFacts& cpu) {
  std::vector<Finding> out;
  if (speed.read_bytes_per_s > 0) {
    Finding f{.section = "speed", .name = "read bandwidth"};
    f.text = fmt::format("{:.1f} GB/s with {} {}, {:.1f} GB/s with one", speed.read_bytes_per_s / 1e9, speed.threads,
                         speed.threads == 1 ? "thread" : "threads", speed.read_bytes_per_s_one_thread / 1e9);
    f.values = {{"threads", speed.threads},
                {"bytes_per_s", speed.read_bytes_per_s},
                {"bytes_per_s_one_thread", speed.read_bytes_per_s_one_thread},
                {"bytes_read", speed.read_bytes}};
    if (cpu.last_level_cache_bytes > speed.read_bytes) {
      f.status = FindingStatus::kNote;
      f.text += fmt::format("; the caches hold more than the {} that were read", gib_text(speed.read_bytes));
      f.advice = "free memory gives a truer figure";
    }
    out.push_back(std::move(f));
  }
  if (speed.fma_flops_per_s > 0) {
    Finding f{.section = "speed", .name = "multiply-add"};
    f.text = fmt::format("{:.1f} GFLOP/s in float32", speed.fma_flops_per_s / 1e9);
    if (speed.read_bytes_per_s > 0)
      f.text += fmt::format(", {:.1f} FLOPs for each byte read", speed.fma_flops_per_s / speed.read_bytes_per_s);
    f.values = {{"threads", speed.threads}, {"flops_per_s", speed.fma_flops_per_s}};
    out.push_back(std::move(f));
  }
  return out;
}

std::vector<Finding> check_ucx(const UcxMeasured& measured) {
  if (!measured.error.empty()) {
    Finding f{.section = "network", .name = "UCX", .status = FindingStatus::kNote, .text = measured.error};
    f.advice =
        "ranks as threads of one process work without it; ranks as processes need it: apt install libucx0, or see what "
        "UCX_LOG_LEVEL=info says";
    return {std::move(f)};
  }
  std::vector<Finding> out;
  Finding library{
      .section = "network",
      .name = "UCX",
      .text = fmt::format("version {}; transports {}", measured.version, fmt::join(measured.transports, " "))};
  library.values = {{"version", measured.version}, {"transports", json::value_from(measured.transports)}};
  out.push_back(std::move(library));
  Finding pair{.section = "network", .name = "two processes"};
  pair.text = fmt::format("{:.1f} us for an exchange of 8 bytes, {:.2f} GB/s each way at once", measured.exchange_us,
                          measured.bytes_per_s / 1e9);
  pair.values = {{"exchange_us", measured.exchange_us}, {"bytes_per_s", measured.bytes_per_s}};
  out.push_back(std::move(pair));
  return out;
}

std::vector<Finding> check_gpus(const HostFacts& facts, const GpuMeasured& measured, bool build_has_cuda) {
  std::vector<Finding> out;
  if (facts.nvidia_driver.empty() && measured.gpus.empty()) {
    Finding f{
        .section = "GPUs", .name = "GPUs", .status = FindingStatus::kNote, .text = "none: no NVIDIA driver is loaded"};
    if (!measured.cuda_error.empty()) f.text += fmt::format(" ({})", measured.cuda_error);
    f.advice = "nothing, to serve with processors; else install the driver, or start the container with --gpus all";
    f.values = {{"count", 0}};
    return {std::move(f)};
  }
  Finding driver{
      .section = "GPUs",
      .name = "driver",
      .text = "version " + (measured.driver_version.empty() ? facts.nvidia_driver : measured.driver_version)};
  if (!measured.cuda_version.empty()) driver.text += ", CUDA up to " + measured.cuda_version;
  driver.values = {{"driver", measured.driver_version.empty() ? facts.nvidia_driver : measured.driver_version},
                   {"cuda", measured.cuda_version}};
  if (!measured.cuda_error.empty()) {
    driver.status = FindingStatus::kProblem;
    driver.text += fmt::format("; it is loaded, and cannot be used: {}", measured.cuda_error);
    driver.advice = "install the libraries of the same version as the driver, or start the container with --gpus all";
  }
  out.push_back(std::move(driver));
  for (size_t i = 0; i < measured.gpus.size(); ++i) {
    const GpuFound& gpu = measured.gpus[i];
    Finding f{.section = "GPUs",
              .name = fmt::format("GPU {}", i),
              .text = fmt::format("{}, {}", gpu.name, gib_text(gpu.total_bytes))};
    f.text += measured.nvml_error.empty() ? fmt::format(", {} NVLinks", gpu.nvlinks)
                                          : fmt::format("; NVLinks not known ({})", measured.nvml_error);
    f.values = {{"name", gpu.name}, {"total_bytes", gpu.total_bytes}, {"nvlinks", gpu.nvlinks}};
    out.push_back(std::move(f));
  }
  Finding nccl{.section = "GPUs", .name = "NCCL", .text = "version " + measured.nccl_version};
  nccl.values = {{"version", measured.nccl_version}};
  if (!measured.nccl_error.empty()) {
    nccl.status = FindingStatus::kNote;
    nccl.text = measured.nccl_error;
    nccl.advice = "install libnccl2 before several GPUs work together";
  }
  out.push_back(std::move(nccl));
  if (!build_has_cuda) {
    Finding build{.section = "GPUs",
                  .name = "this build",
                  .status = FindingStatus::kNote,
                  .text = "computes with processors only"};
    build.advice = "GPUs are left alone; ./run build cuda makes a build with CUDA kernels";
    out.push_back(std::move(build));
  }
  return out;
}

std::vector<Finding> check_ports(const HostFacts& facts, const PortMeasured& measured) {
  Finding f{.section = "network", .name = "ports"};
  f.values = {{"port", measured.port}, {"is_free", measured.is_free}, {"next_free", measured.next_free}};
  if (measured.is_free) {
    f.text = fmt::format("{} is free", measured.port);
  } else {
    f.status = measured.is_asked_for ? FindingStatus::kProblem : FindingStatus::kNote;
    f.text = fmt::format("{} is not free: {}", measured.port, measured.why_not);
    f.advice = measured.next_free > 0
                   ? fmt::format("cadre serve --port {}, or end what listens there (ss -ltnp)", measured.next_free)
                   : "see what listens there: ss -ltnp";
  }
  if (facts.last_client_port > 0) {
    const int count = std::max(0, facts.last_client_port - facts.first_client_port + 1);
    f.text += fmt::format("; {} for connections of ranks", grouped_text(count));
    if (count < 1000 && f.status == FindingStatus::kOk) {
      f.status = FindingStatus::kNote;
      f.advice = "few for many ranks and clients: sysctl net.ipv4.ip_local_port_range='32768 60999'";
    }
  }
  return {std::move(f)};
}

}  // namespace cadre
