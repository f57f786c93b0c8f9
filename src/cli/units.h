// Numbers as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cadre::cli {

// "4096", "512MiB", "1.5GiB", "2GB": KiB/MiB/GiB/TiB are powers of 1024, KB/MB/GB/TB and K/M/G/T powers of 1000.
// Throws Error naming `flag` for anything else.
int64_t parse_bytes(std::string_view text, std::string_view flag);

std::string bytes_text(uint64_t bytes);    // "1.50 GiB"
std::string count_text(uint64_t count);    // "1.7 B", "19.0 M"
std::string with_commas(uint64_t number);  // "1,234,567"

}  // namespace cadre::cli
