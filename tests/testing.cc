#include "tests/testing.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace cadre::testing {

std::filesystem::path source_dir() { return CADRE_SOURCE_DIR; }

std::optional<std::filesystem::path> data_dir() {
  const char* set = std::getenv("CADRE_DATA");
  const std::filesystem::path path = set ? std::filesystem::path(set) : source_dir() / ".." / "shared" / "data";
  if (!std::filesystem::is_directory(path)) return std::nullopt;
  return path;
}

uint64_t seed() {
  static const uint64_t value = [] {
    const char* set = std::getenv("CADRE_SEED");
    return set ? std::strtoull(set, nullptr, 10)
               : static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count() / 1000);
  }();
  return value;
}

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "cadre_test_XXXXXX").string();
  if (!::mkdtemp(name.data())) {
    std::perror("mkdtemp");
    std::abort();
  }
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ec;
  std::filesystem::remove_all(path_, ec);
}

}  // namespace cadre::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::printf("CADRE_SEED=%llu\n", static_cast<unsigned long long>(cadre::testing::seed()));
  return RUN_ALL_TESTS();
}
