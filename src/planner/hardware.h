// What the planner knows of a device: memory, rates, links. The built-in table is hardware.json, where every figure names its
// source; users add files of the same form. Rates are dense and of one direction; nothing here is measured by this program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cadre::planner {

struct HardwareSpec {
  std::string name, what;
  std::vector<std::string> aliases;
  bool is_cpu = false;
  double memory_bytes = 0, memory_bytes_per_s = 0;
  // Operations a second, multiply and add counted as two; 0: not there, the next wider type's rate holds.
  double f32_per_s = 0, bf16_per_s = 0, fp8_per_s = 0, fp4_per_s = 0, int8_per_s = 0;
  // Devices joined by the fast link (NVLink, Infinity Fabric, shared memory), and what one sends to others.
  int domain_size = 1;
  bool domain_spans_nodes = false;  // a rack is one domain
  double domain_bytes_per_s = 0, domain_latency_us = 0;
  double network_bytes_per_s = 0, network_latency_us = 0;  // between domains, of one device
  double reserve_bytes = 0;                                // kept back: runtime, graphs, fragmentation
  // Shares of the peaks that programs reach.
  double memory_share = 1, compute_share = 1, link_share = 1;
  double step_us = 0;                                        // of each step, whatever is in it: scheduling, launches, sampling
  std::vector<std::pair<std::string, std::string>> sources;  // figure, where it is from
};

class HardwareTable {
 public:
  static HardwareTable built_in();
  // Adds, or replaces by name. Throws Error: what is missing, not a number, zero or negative where that has no meaning.
  void add(std::string_view json_text, std::string_view what);
  void add_file(const std::filesystem::path& path);
  // By name or alias, whatever the case. Throws Error with the nearest names.
  const HardwareSpec& find(std::string_view name) const;
  const std::vector<HardwareSpec>& all() const { return specs_; }

 private:
  std::vector<HardwareSpec> specs_;
};

// "h100-80g x16", "h100-80g:16", "h100-80gx16", "h100": the name, and how many (0: not said). Throws Error.
struct HardwareRequest {
  std::string name;
  int64_t count = 0;
};
HardwareRequest parse_hardware(std::string_view text);

// Up to `most` of the names, the nearest first (by edit distance, ignoring case).
std::vector<std::string> nearest_names(std::string_view text, const std::vector<std::string>& names, size_t most);

}  // namespace cadre::planner
