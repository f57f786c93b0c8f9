// Writes safetensors files, honest and lying, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace cadre::testing {

// The bytes of a file whose header is `header` and whose length field says what `claimed` says (the truth by default).
inline std::string safetensors_bytes(std::string_view header, size_t data_bytes, int64_t claimed = -1) {
  const uint64_t length = claimed < 0 ? header.size() : static_cast<uint64_t>(claimed);
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  for (size_t i = 0; i < data_bytes; ++i) bytes.push_back(static_cast<char>(i * 7 + 1));
  return bytes;
}

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace cadre::testing
