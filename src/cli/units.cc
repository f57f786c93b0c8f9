#include "cli/units.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "base/error.h"

namespace cadre::cli {

int64_t parse_bytes(std::string_view text, std::string_view flag) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9},
      {"TB", 1e12},    {"K", 1e3},      {"M", 1e6},      {"G", 1e9},      {"T", 1e12}, {"B", 1.0},
  };
  const std::string_view all = text;
  double unit = 1.0;
  for (const auto& [suffix, factor] : kUnits) {
    if (!text.ends_with(suffix)) continue;
    unit = factor;
    text.remove_suffix(suffix.size());
    break;
  }
  while (text.ends_with(' ')) text.remove_suffix(1);
  double number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  const double bytes = number * unit;
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || !(bytes >= 0) || bytes > 1e18)
    throw invalid_input("{}: expected bytes such as 4096, 512MiB or 1.5GiB, found {}; correct it", flag, cadre::quoted(all));
  return static_cast<int64_t>(bytes);
}

std::string bytes_text(uint64_t bytes) {
  static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kNames[unit]);
}

std::string count_text(uint64_t count) {
  static constexpr const char* kNames[] = {"", " K", " M", " B", " T"};
  double value = static_cast<double>(count);
  int unit = 0;
  while (value >= 1000 && unit < 4) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{}", count) : fmt::format("{:.1f}{}", value, kNames[unit]);
}

std::string with_commas(uint64_t number) {
  const std::string digits = fmt::format("{}", number);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace cadre::cli
