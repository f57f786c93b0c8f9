// The safetensors header and the shard index on arbitrary bytes, and headers whose parts a program of bytes chooses,
// which get past the JSON. What is accepted must lie inside the file.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "weights/safetensors.h"
#include "weights/shard_index.h"

namespace {

void read_file(std::string_view file) {
  uint64_t covered = 0;
  for (const auto& e : cadre::read_safetensors_header(std::as_bytes(std::span(file)), "fuzz")) {
    CADRE_CHECK(e.begin <= e.end && e.end <= file.size() && e.begin >= covered);
    covered = e.end;
  }
}

constexpr std::string_view kParts[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "\"a\":",
                                       "\"b\":",
                                       "\"__metadata__\":",
                                       "{\"format\":\"pt\"}",
                                       "\"dtype\":",
                                       "\"shape\":",
                                       "\"data_offsets\":",
                                       "\"F32\"",
                                       "\"U8\"",
                                       "\"F8_E4M3\"",
                                       "\"X\"",
                                       "[0,4]",
                                       "[4,8]",
                                       "[0,0]",
                                       "[1]",
                                       "[4]",
                                       "[]",
                                       "[4,2]",
                                       "[9223372036854775807,2]",
                                       "-1",
                                       "18446744073709551615",
                                       "1.5",
                                       "null",
                                       "0",
                                       "4",
                                       "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}",
                                       "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}",
                                       "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":",
                                       "\"weight_map\":",
                                       "\"m.safetensors\"",
                                       "\"../m\""};

std::string from_program(std::string_view bytes) {
  std::string text = "{";
  for (const char c : bytes) text += kParts[static_cast<uint8_t>(c) % std::size(kParts)];
  return text;
}

std::string with_length(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(header).append(data);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 5) {
      case 0: read_file(input); break;
      case 1: read_file(with_length(input, "")); break;  // a true length, so that mutations reach what lies behind it
      case 2: cadre::read_shard_index(input, "fuzz"); break;
      case 3: read_file(with_length(from_program(input), std::string(data[0] / 5 % 12, 'x'))); break;
      default: cadre::read_shard_index(from_program(input), "fuzz");
    }
  } catch (const cadre::Error&) {
  }
  return 0;
}
