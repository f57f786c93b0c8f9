#include "host/system_files.h"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace cadre {
namespace {

constexpr size_t kMaxBytes = size_t{8} << 20, kChunkBytes = size_t{64} << 10;
constexpr size_t kMaxCpus = 65536;
constexpr std::string_view kBlanks = " \t\r\n";

}  // namespace

std::filesystem::path SystemFiles::at(std::string_view path) const {
  if (!path.empty() && path.front() == '/') path.remove_prefix(1);
  return root_ / path;
}

std::optional<std::string> SystemFiles::text(std::string_view path) const {
  std::ifstream in(at(path), std::ios::binary);
  if (!in) return std::nullopt;
  // Files of the kernel say that they are empty: read until nothing comes.
  std::string out;
  while (out.size() < kMaxBytes && in) {
    const size_t before = out.size();
    out.resize(before + kChunkBytes);
    in.read(out.data() + before, static_cast<std::streamsize>(kChunkBytes));
    out.resize(before + static_cast<size_t>(in.gcount()));
  }
  if (in.bad()) return std::nullopt;
  return out;
}

std::string SystemFiles::line(std::string_view path) const {
  const auto all = text(path);
  if (!all) return {};
  return std::string(trimmed(std::string_view(*all).substr(0, all->find('\n'))));
}

std::optional<int64_t> SystemFiles::number(std::string_view path) const { return leading_integer(line(path)); }

std::vector<std::string> SystemFiles::list(std::string_view path) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(at(path), error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool SystemFiles::exists(std::string_view path) const {
  std::error_code error;
  return std::filesystem::exists(at(path), error);
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  text = trimmed(text);
  while (!text.empty()) {
    int first = 0, last = 0;
    auto parsed = std::from_chars(text.data(), text.data() + text.size(), first);
    if (parsed.ec != std::errc() || first < 0) break;
    text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
    last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      parsed = std::from_chars(text.data(), text.data() + text.size(), last);
      if (parsed.ec != std::errc() || last < first) break;
      text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
    }
    if (static_cast<size_t>(last) - static_cast<size_t>(first) >= kMaxCpus - std::min(cpus.size(), kMaxCpus - 1)) break;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (!text.starts_with(',')) break;
    text.remove_prefix(1);
  }
  return cpus;
}

std::optional<std::string> value_of(std::string_view text, std::string_view key) {
  for (std::string_view line : lines_of(text)) {
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    const std::string_view value = trimmed(line);
    if (value.starts_with(':')) return std::string(trimmed(value.substr(1)));
    if (!line.empty() && kBlanks.find(line.front()) != std::string_view::npos) return std::string(value);
  }
  return std::nullopt;
}

std::optional<int64_t> leading_integer(std::string_view text) {
  text = trimmed(text);
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc()) return std::nullopt;
  return value;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    out.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return out;
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (true) {
    const size_t first = text.find_first_not_of(kBlanks);
    if (first == std::string_view::npos) return out;
    text.remove_prefix(first);
    const size_t end = std::min(text.find_first_of(kBlanks), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace cadre
