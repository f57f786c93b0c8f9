#include "config/module_names.h"

#include <algorithm>

namespace cadre {
namespace {

// True when pieces[0] starts the name, the others follow in order, and the last can end at a dot or the end of the
// name.
bool matches(std::string_view name, const std::vector<std::string>& pieces) {
  if (!name.starts_with(pieces.front())) return false;
  size_t at = pieces.front().size();
  for (size_t i = 1; i + 1 < pieces.size(); ++i) {
    const size_t found = name.find(pieces[i], at);
    if (found == std::string_view::npos) return false;
    at = found + pieces[i].size();
  }
  const std::string& last = pieces.back();
  if (pieces.size() == 1) return at == name.size() || name[at] == '.';
  if (last.empty()) return true;
  for (size_t found = name.find(last, at); found != std::string_view::npos; found = name.find(last, found + 1)) {
    const size_t end = found + last.size();
    if (end == name.size() || name[end] == '.') return true;
  }
  return false;
}

// ".*" is written by authors of regular expressions and of globs alike; within a name both mean a dot and then
// anything, at its start only the regular expression makes sense.
std::vector<std::string> split_at_wildcards(std::string_view pattern) {
  if (pattern.starts_with(".*")) pattern.remove_prefix(1);
  std::vector<std::string> pieces(1);
  for (const char c : pattern) {
    if (c != '*')
      pieces.back().push_back(c);
    else if (pieces.size() == 1 || !pieces.back().empty())
      pieces.emplace_back();
  }
  return pieces;
}

}  // namespace

ModuleNames::ModuleNames(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    if (pattern.empty()) continue;
    if (pattern.find('*') == std::string::npos) {
      literals_.insert(pattern);
      literal_lengths_.push_back(pattern.size());
    } else {
      wildcards_.push_back(split_at_wildcards(pattern));
    }
  }
  std::sort(literal_lengths_.begin(), literal_lengths_.end());
  literal_lengths_.erase(std::unique(literal_lengths_.begin(), literal_lengths_.end()), literal_lengths_.end());
}

bool ModuleNames::contains(std::string_view module) const {
  for (const size_t length : literal_lengths_) {
    if (length > module.size()) break;
    if (literals_.count(std::string(module.substr(module.size() - length)))) return true;
    if ((length == module.size() || module[length] == '.') && literals_.count(std::string(module.substr(0, length))))
      return true;
  }
  return std::any_of(wildcards_.begin(), wildcards_.end(), [&](const auto& pieces) { return matches(module, pieces); });
}

}  // namespace cadre
