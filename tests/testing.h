// What every test program shares: where data lies and how a property test names its seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace cadre::testing {

// Root of the source tree.
std::filesystem::path source_dir();

// $CADRE_DATA, or ../shared/data beside the source tree; nullopt when that does not exist (the test then says skipped).
std::optional<std::filesystem::path> data_dir();

// Seed of this run's property tests: $CADRE_SEED, or from the clock. Print it (SCOPED_TRACE) so that a failure repeats.
uint64_t seed();

// A fresh empty folder, removed when the object goes.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace cadre::testing

// Skips the test, saying why, when the shared data folder is absent; else binds it to `name`.
#define CADRE_DATA_OR_SKIP(name)                                                                     \
  const auto name##_maybe = ::cadre::testing::data_dir();                                            \
  if (!name##_maybe) GTEST_SKIP() << "no data: set CADRE_DATA to the shared data folder";            \
  const std::filesystem::path name = *name##_maybe
