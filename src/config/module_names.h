// Which modules a quantised checkpoint leaves unquantised, by the patterns of modules_to_not_convert. Internal to
// config/.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace cadre {

// A pattern names a module when it matches from the start of the name up to a dot or the end (with ".*" and "*"
// standing for anything), or when the name ends in it.
class ModuleNames {
 public:
  explicit ModuleNames(const std::vector<std::string>& patterns);
  bool contains(std::string_view module) const;

 private:
  std::unordered_set<std::string> literals_;
  std::vector<size_t> literal_lengths_;  // distinct, so that suffixes are looked up and not compared one by one
  std::vector<std::vector<std::string>> wildcards_;  // the literal pieces between wildcards
};

}  // namespace cadre
