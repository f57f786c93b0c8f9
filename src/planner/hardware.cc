#include "planner/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <numeric>

#include "base/error.h"
#include "base/json.h"

namespace cadre::planner {

extern const std::string_view kBuiltInHardware;

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

double number_between(const JsonObject& o, std::string_view key, double least, double most, std::optional<double> absent) {
  const auto found = o.maybe_number(key);
  if (!found && absent) return *absent;
  if (!found) throw invalid_input("{}: expected '{}', found none; add it (docs/planner.md has the form)", o.name(), key);
  if (!(*found >= least && *found <= most))
    throw invalid_input("{}: expected '{}' from {} to {}, found {}; correct it", o.name(), key, least, most, *found);
  return *found;
}

HardwareSpec parse_spec(const JsonObject& o) {
  HardwareSpec out;
  out.name = lower(o.string("name"));
  if (out.name.empty()) throw invalid_input("{}: expected a 'name', found an empty one; give it one", o.name());
  const JsonObject named(o.raw(), fmt::format("{} ({})", o.name(), out.name));
  out.what = named.maybe_string("what").value_or(out.name);
  if (const json::array* aliases = named.maybe_array("aliases"))
    for (const json::value& a : *aliases)
      if (a.is_string()) out.aliases.push_back(lower(std::string_view(a.get_string())));
  out.is_cpu = named.maybe_boolean("is_cpu").value_or(false);
  // Least figures keep every quotient finite.
  const auto at_least = [&](std::string_view key, double least, double unit, std::optional<double> absent = {}) {
    return number_between(named, key, least, 1e9, absent) * unit;
  };
  out.memory_bytes = at_least("memory_gb", 1e-3, 1e9);
  out.memory_bytes_per_s = at_least("memory_gb_per_s", 1e-3, 1e9);
  out.f32_per_s = at_least("f32_tflops", 0, 1e12, 0.0);
  out.bf16_per_s = at_least("bf16_tflops", 0, 1e12, 0.0);
  out.fp8_per_s = at_least("fp8_tflops", 0, 1e12, 0.0);
  out.fp4_per_s = at_least("fp4_tflops", 0, 1e12, 0.0);
  out.int8_per_s = at_least("int8_tops", 0, 1e12, 0.0);
  if (out.f32_per_s == 0 && out.bf16_per_s == 0)
    throw invalid_input("{}: expected 'bf16_tflops' or 'f32_tflops' above 0, found neither; add one", named.name());
  out.domain_size = static_cast<int>(named.maybe_integer("domain_size", 1, 1 << 20).value_or(1));
  out.domain_spans_nodes = named.maybe_boolean("domain_spans_nodes").value_or(false);
  out.network_bytes_per_s = at_least("network_gb_per_s", 1e-6, 1e9);
  out.domain_bytes_per_s = at_least("domain_gb_per_s", 1e-6, 1e9, out.network_bytes_per_s / 1e9);
  out.domain_latency_us = at_least("domain_latency_us", 0, 1, 10.0);
  out.network_latency_us = at_least("network_latency_us", 0, 1, 25.0);
  out.reserve_bytes = at_least("reserve_gb", 0, 1e9, out.memory_bytes / 1e10);
  out.memory_share = number_between(named, "memory_share", 0.01, 1, 0.8);
  out.compute_share = number_between(named, "compute_share", 0.01, 1, 0.6);
  out.link_share = number_between(named, "link_share", 0.01, 1, 0.8);
  out.step_us = at_least("step_us", 0, 1, 0.0);
  if (out.reserve_bytes >= out.memory_bytes)
    throw invalid_input("{}: expected 'reserve_gb' below the memory of {} GB, found {}; lower it", named.name(), out.memory_bytes / 1e9,
                        out.reserve_bytes / 1e9);
  if (const auto sources = named.maybe_object("sources"))
    for (const auto& [key, value] : sources->raw())
      if (value.is_string()) out.sources.emplace_back(std::string(key), std::string(std::string_view(value.get_string())));
  return out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view text, const std::vector<std::string>& names, size_t most) {
  std::vector<std::pair<size_t, std::string>> order;
  const std::string wanted = lower(text.substr(0, 64));
  for (const std::string& name : names) {
    // A name that begins as the text does is near, however long its rest.
    const bool begins = !wanted.empty() && (name.starts_with(wanted) || wanted.starts_with(name));
    order.emplace_back(begins ? 1 : 1 + edit_distance(wanted, lower(name)), name);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (size_t i = 0; i < std::min(most, order.size()); ++i) out.push_back(order[i].second);
  return out;
}

HardwareTable HardwareTable::built_in() {
  HardwareTable out;
  out.add(kBuiltInHardware, "built-in hardware table");
  return out;
}

void HardwareTable::add(std::string_view json_text, std::string_view what) {
  const json::value file = parse_json(json_text, what);
  if (!file.is_object()) throw invalid_input("{}: expected a JSON object, found {}; docs/planner.md has the form", what, describe(file));
  const JsonObject root(file.get_object(), std::string(what));
  const json::array* list = root.maybe_array("hardware");
  if (!list) throw invalid_input("{}: expected a list 'hardware', found none; docs/planner.md has the form", what);
  for (size_t i = 0; i < list->size(); ++i) {
    const json::value& entry = (*list)[i];
    if (!entry.is_object())
      throw invalid_input("{}: expected an object as entry {} of 'hardware', found {}; correct it", what, i, describe(entry));
    HardwareSpec spec = parse_spec(JsonObject(entry.get_object(), fmt::format("{}, entry {}", what, i)));
    std::erase_if(specs_, [&](const HardwareSpec& s) { return s.name == spec.name; });
    specs_.push_back(std::move(spec));
  }
}

void HardwareTable::add_file(const std::filesystem::path& path) {
  add(json::serialize(parse_json_file(path, uint64_t{16} << 20)), path.string());
}

const HardwareSpec& HardwareTable::find(std::string_view name) const {
  const std::string wanted = lower(name);
  for (auto it = specs_.rbegin(); it != specs_.rend(); ++it)  // later ones win
    if (it->name == wanted || std::find(it->aliases.begin(), it->aliases.end(), wanted) != it->aliases.end()) return *it;
  std::vector<std::string> names, nearest;
  for (const HardwareSpec& s : specs_) {
    names.push_back(s.name);
    names.insert(names.end(), s.aliases.begin(), s.aliases.end());
  }
  for (const std::string& n : nearest_names(name, names, names.size())) {
    const std::string& full = std::find_if(specs_.begin(), specs_.end(), [&](const HardwareSpec& s) {
                                return s.name == n || std::find(s.aliases.begin(), s.aliases.end(), n) != s.aliases.end();
                              })->name;
    if (nearest.size() < 3 && std::find(nearest.begin(), nearest.end(), full) == nearest.end()) nearest.push_back(full);
  }
  throw Error(ErrorKind::kInvalidInput,
              fmt::format("--hardware: expected a known device, found {}; nearest: {} (or describe yours with --hardware-file)",
                          cadre::quoted(name), fmt::join(nearest, ", ")),
              "--hardware");
}

HardwareRequest parse_hardware(std::string_view text) {
  const std::string_view all = text;
  const auto trim = [&] {
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  };
  trim();
  HardwareRequest out;
  size_t digits = text.size();
  while (digits > 0 && std::isdigit(static_cast<unsigned char>(text[digits - 1]))) --digits;
  const bool has_sign = digits > 0 && digits < text.size() &&
                        (text[digits - 1] == ':' || text[digits - 1] == '*' || text[digits - 1] == 'x' || text[digits - 1] == 'X');
  // The x of "mi300x" is part of a name; one after a space or a memory size ("80gx16") counts.
  if (has_sign) {
    int64_t count = 0;
    const auto parsed = std::from_chars(text.data() + digits, text.data() + text.size(), count);
    if (parsed.ec != std::errc() || count < 1 || count > 4096)
      throw Error(ErrorKind::kInvalidInput,
                  fmt::format("--hardware: expected from 1 to 4096 devices, found {}; correct it", cadre::quoted(all)), "--hardware");
    out.count = count;
    text = text.substr(0, digits - 1);
    trim();
  }
  if (text.empty())
    throw Error(ErrorKind::kInvalidInput,
                fmt::format("--hardware: expected a device such as h100-80g or h100-80g:16, found {}; name one", cadre::quoted(all)),
                "--hardware");
  out.name = lower(text);
  return out;
}

}  // namespace cadre::planner
