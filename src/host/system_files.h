// Text that the kernel offers under /proc and /sys. The root is given, so that tests read trees of their own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cadre {

class SystemFiles {
 public:
  explicit SystemFiles(std::filesystem::path root = "/") : root_(std::move(root)) {}

  // The file at an absolute path ("/proc/meminfo") below the root, at most 8 MiB of it; nullopt when it cannot be read.
  std::optional<std::string> text(std::string_view path) const;
  // Its first line without white space at the ends; empty when there is none.
  std::string line(std::string_view path) const;
  // The integer that it begins with; nullopt for no file, no number, or one that does not fit.
  std::optional<int64_t> number(std::string_view path) const;
  // Names in a folder, sorted; none when there is no such folder.
  std::vector<std::string> list(std::string_view path) const;
  bool exists(std::string_view path) const;

 private:
  std::filesystem::path at(std::string_view path) const;
  std::filesystem::path root_;
};

// "0-3,8" -> 0 1 2 3 8. What is no such list, or lists more than 65,536, ends it where it goes wrong.
std::vector<int> parse_cpu_list(std::string_view text);

// The value behind "key" and a colon or blanks in lines of "Key: value" (/proc/meminfo, /proc/self/status); nullopt:
// none.
std::optional<std::string> value_of(std::string_view text, std::string_view key);

// Leading integer of a text; nullopt when it has none or it does not fit.
std::optional<int64_t> leading_integer(std::string_view text);

std::vector<std::string_view> lines_of(std::string_view text);
std::vector<std::string_view> words_of(std::string_view text);
std::string_view trimmed(std::string_view text);

}  // namespace cadre
