// A folder that stands for a machine: files under /proc and /sys as a test writes them.
#pragma once

#include <fstream>
#include <string>

#include "host/system_files.h"
#include "tests/testing.h"

namespace cadre {

class FixtureTree {
 public:
  FixtureTree& write(const std::string& path, const std::string& text) {
    const auto at = dir_.path() / path.substr(1);
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at, std::ios::binary) << text;
    return *this;
  }
  SystemFiles files() const { return SystemFiles(dir_.path()); }
  std::string root() const { return dir_.path().string(); }

 private:
  testing::TempDir dir_;
};

}  // namespace cadre
