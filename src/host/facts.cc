#include "host/facts.h"

#include <algorithm>
#include <map>
#include <utility>

namespace cadre {
namespace {

constexpr int64_t kMaxKib = INT64_MAX / 1024;

// Absolute folders of this process's control groups for a controller, innermost first. Limits of every one of them
// hold.
std::vector<std::string> group_folders(const SystemFiles& files, std::string_view controller) {
  std::vector<std::string> out;
  const auto add_with_parents = [&](const std::string& base, std::string path) {
    for (; path.size() > 1; path.resize(std::max<size_t>(path.rfind('/'), 0))) out.push_back(base + path);
    out.push_back(base);  // in a container, its own group is the root that it sees
  };
  const std::string groups = files.text("/proc/self/cgroup").value_or("");
  for (const std::string_view line : lines_of(groups)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string path(trimmed(line.substr(second + 1)));
    if (path.empty() || path.front() != '/') continue;
    if (controllers.empty())
      add_with_parents("/sys/fs/cgroup", path);  // version 2
    else if (("," + std::string(controllers) + ",").find("," + std::string(controller) + ",") != std::string::npos)
      add_with_parents("/sys/fs/cgroup/" + std::string(controller), path);
  }
  return out;
}

void keep_least(std::optional<double>& least, double value) { least = least ? std::min(*least, value) : value; }

std::optional<double> cpu_quota(const SystemFiles& files) {
  std::optional<double> least;
  for (const std::string& folder : group_folders(files, "cpu")) {
    const std::string line = files.line(folder + "/cpu.max");  // version 2: "200000 100000", or "max 100000"
    const auto words = words_of(line);
    if (words.size() == 2) {
      const auto quota = leading_integer(words[0]), period = leading_integer(words[1]);
      if (quota && period && *quota > 0 && *period > 0)
        keep_least(least, static_cast<double>(*quota) / static_cast<double>(*period));
    }
    const auto quota = files.number(folder + "/cpu.cfs_quota_us"), period = files.number(folder + "/cpu.cfs_period_us");
    if (quota && period && *quota > 0 && *period > 0)
      keep_least(least, static_cast<double>(*quota) / static_cast<double>(*period));
  }
  return least;
}

void read_memory_group(const SystemFiles& files, MemoryFacts& memory) {
  for (const std::string& folder : group_folders(files, "memory")) {
    for (const auto& [limit_name, used_name] :
         {std::pair("/memory.max", "/memory.current"), std::pair("/memory.limit_in_bytes", "/memory.usage_in_bytes")}) {
      const auto limit = files.number(folder + limit_name);  // "max" is no number
      if (!limit || *limit <= 0 || (memory.total_bytes > 0 && *limit >= memory.total_bytes)) continue;
      if (memory.container_limit_bytes && *memory.container_limit_bytes <= *limit) continue;
      memory.container_limit_bytes = limit;
      memory.container_used_bytes = files.number(folder + used_name);
    }
  }
}

int64_t kib_of(const std::string& text, std::string_view key) {
  const auto value = value_of(text, key);
  const int64_t kib = value ? leading_integer(*value).value_or(0) : 0;
  return std::clamp<int64_t>(kib, 0, kMaxKib) * 1024;
}

// "always [madvise] never" -> "madvise"
std::string chosen_word(const std::string& line) {
  const size_t first = line.find('['), end = line.find(']', first);
  return first == std::string::npos || end == std::string::npos ? std::string()
                                                                : line.substr(first + 1, end - first - 1);
}

// "307200K" and the like.
int64_t cache_bytes(const std::string& text) {
  const int64_t number = std::clamp<int64_t>(leading_integer(text).value_or(0), 0, int64_t{1} << 32);
  return text.ends_with('K') ? number << 10 : text.ends_with('M') ? number << 20 : number;
}

// The highest level's caches, each counted once for the processors that share it.
int64_t last_level_cache(const SystemFiles& files, int num_cpus) {
  std::map<std::string, int64_t> of_sharers;
  int64_t highest = 0;
  for (int cpu = 0; cpu < num_cpus; ++cpu) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache";
    for (const std::string& index : files.list(folder)) {
      const std::string at = folder + "/" + index;
      const int64_t level = files.number(at + "/level").value_or(0);
      if (level < highest || files.line(at + "/type") == "Instruction") continue;
      if (level > highest) of_sharers.clear();
      highest = level;
      if (level > 0) of_sharers[files.line(at + "/shared_cpu_list")] = cache_bytes(files.line(at + "/size"));
    }
  }
  int64_t sum = 0;
  for (const auto& [sharers, bytes] : of_sharers) sum += bytes;
  return sum;
}

std::vector<NetworkDevice> read_networks(const SystemFiles& files) {
  std::vector<NetworkDevice> out;
  for (const std::string& name : files.list("/sys/class/net")) {
    if (name == "lo" || !files.exists("/sys/class/net/" + name + "/operstate")) continue;
    const std::string state = files.line("/sys/class/net/" + name + "/operstate");
    out.push_back(
        {name, state == "up", std::max<int64_t>(files.number("/sys/class/net/" + name + "/speed").value_or(0), 0)});
  }
  return out;
}

std::vector<RdmaDevice> read_rdma(const SystemFiles& files) {
  std::vector<RdmaDevice> out;
  for (const std::string& name : files.list("/sys/class/infiniband")) {
    for (const std::string& port : files.list("/sys/class/infiniband/" + name + "/ports")) {
      const std::string at = "/sys/class/infiniband/" + name + "/ports/" + port;
      RdmaDevice device{name + ":" + port, files.line(at + "/state"), files.line(at + "/rate")};
      device.is_active = device.state.find("ACTIVE") != std::string::npos;
      out.push_back(std::move(device));
    }
  }
  return out;
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Mon Feb..." -> "535.161.08"
std::string driver_version(const SystemFiles& files) {
  const std::string line = files.line("/proc/driver/nvidia/version");
  for (const std::string_view word : words_of(line))
    if (word.find('.') != std::string_view::npos && word.find_first_not_of("0123456789.") == std::string_view::npos)
      return std::string(word);
  return line.empty() ? "" : "unknown version";
}

std::optional<int64_t> limit_of(std::string_view word) {
  return word == "unlimited" ? std::nullopt : leading_integer(word);
}

}  // namespace

int64_t MemoryFacts::usable_bytes() const {
  if (!container_limit_bytes) return available_bytes;
  return std::clamp<int64_t>(*container_limit_bytes - container_used_bytes.value_or(0), 0, available_bytes);
}

CpuFacts read_cpu(const SystemFiles& files) {
  CpuFacts cpu;
  const std::string info = files.text("/proc/cpuinfo").value_or("");
  std::set<std::pair<std::string, std::string>> cores;
  std::set<std::string> sockets;
  std::string socket, model_name;
  for (const std::string_view line : lines_of(info)) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view key = trimmed(line.substr(0, colon)), value = trimmed(line.substr(colon + 1));
    if (key == "processor")
      ++cpu.logical;
    else if (key == "model name" && cpu.model.empty())
      cpu.model = value;
    else if (key == "physical id")
      sockets.insert(socket = std::string(value));
    else if (key == "core id")
      cores.emplace(socket, value);
    else if ((key == "flags" || key == "Features") && cpu.features.empty())
      for (const std::string_view word : words_of(value)) cpu.features.emplace(word);
  }
  const auto online = parse_cpu_list(files.line("/sys/devices/system/cpu/online"));
  if (!online.empty()) cpu.logical = static_cast<int>(online.size());
  cpu.cores = static_cast<int>(cores.size());
  cpu.sockets = static_cast<int>(sockets.size());
  const auto allowed = value_of(files.text("/proc/self/status").value_or(""), "Cpus_allowed_list");
  cpu.usable = allowed ? static_cast<int>(parse_cpu_list(*allowed).size()) : 0;
  if (cpu.usable == 0 || cpu.usable > cpu.logical) cpu.usable = cpu.logical;
  cpu.quota = cpu_quota(files);
  cpu.last_level_cache_bytes = last_level_cache(files, cpu.logical);
  cpu.governor = files.line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  cpu.clock_source = files.line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  return cpu;
}

std::vector<NumaNode> read_numa(const SystemFiles& files) {
  std::vector<NumaNode> nodes;
  for (const std::string& name : files.list("/sys/devices/system/node")) {
    if (!name.starts_with("node")) continue;
    const auto id = leading_integer(std::string_view(name).substr(4));
    if (!id) continue;
    const std::string at = "/sys/devices/system/node/" + name;
    NumaNode node{.id = static_cast<int>(*id), .cpus = parse_cpu_list(files.line(at + "/cpulist"))};
    // "Node 0 MemTotal:  24684092 kB"
    const std::string meminfo = files.text(at + "/meminfo").value_or("");
    for (const std::string_view line : lines_of(meminfo)) {
      const auto words = words_of(line);
      if (words.size() < 4) continue;
      const int64_t bytes = std::clamp<int64_t>(leading_integer(words[3]).value_or(0), 0, kMaxKib) * 1024;
      if (words[2] == "MemTotal:") node.total_bytes = bytes;
      if (words[2] == "MemFree:") node.free_bytes = bytes;
    }
    nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return nodes;
}

MemoryFacts read_memory(const SystemFiles& files) {
  MemoryFacts memory;
  const std::string info = files.text("/proc/meminfo").value_or("");
  memory.total_bytes = kib_of(info, "MemTotal");
  memory.available_bytes = kib_of(info, "MemAvailable");
  memory.swap_total_bytes = kib_of(info, "SwapTotal");
  memory.swap_free_bytes = kib_of(info, "SwapFree");
  memory.huge_page_bytes = kib_of(info, "Hugepagesize");
  if (const auto pages = value_of(info, "HugePages_Total"))
    memory.reserved_huge_pages = std::max<int64_t>(leading_integer(*pages).value_or(0), 0);
  memory.transparent_huge_pages = chosen_word(files.line("/sys/kernel/mm/transparent_hugepage/enabled"));
  memory.overcommit = files.number("/proc/sys/vm/overcommit_memory").value_or(0);
  read_memory_group(files, memory);
  return memory;
}

LimitFacts parse_limits(std::string_view text) {
  LimitFacts out;
  const std::pair<std::string_view, std::optional<Limit>*> names[] = {{"Max open files", &out.open_files},
                                                                      {"Max locked memory", &out.locked_bytes},
                                                                      {"Max processes", &out.processes},
                                                                      {"Max address space", &out.address_bytes}};
  for (const std::string_view line : lines_of(text)) {
    for (const auto& [name, limit] : names) {
      if (!line.starts_with(name)) continue;
      const auto words = words_of(line.substr(name.size()));
      if (words.size() >= 2) *limit = Limit{limit_of(words[0]), limit_of(words[1])};
    }
  }
  return out;
}

HostFacts read_host_facts(const SystemFiles& files) {
  HostFacts facts;
  facts.cpu = read_cpu(files);
  facts.nodes = read_numa(files);
  facts.memory = read_memory(files);
  facts.limits = parse_limits(files.text("/proc/self/limits").value_or(""));
  facts.networks = read_networks(files);
  facts.rdma = read_rdma(files);
  facts.nvidia_driver = driver_version(files);
  for (const std::string& device : files.list("/proc/driver/nvidia/gpus")) {
    const auto name = value_of(files.text("/proc/driver/nvidia/gpus/" + device + "/information").value_or(""), "Model");
    facts.nvidia_devices.push_back(name.value_or(device));
  }
  const std::string ports = files.line("/proc/sys/net/ipv4/ip_local_port_range");
  if (const auto words = words_of(ports); words.size() == 2) {
    facts.first_client_port = static_cast<int>(std::clamp<int64_t>(leading_integer(words[0]).value_or(0), 0, 65535));
    facts.last_client_port = static_cast<int>(std::clamp<int64_t>(leading_integer(words[1]).value_or(0), 0, 65535));
  }
  return facts;
}

}  // namespace cadre
