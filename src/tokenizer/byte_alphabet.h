// The alphabet byte-level tokenizers write bytes in: each of the 256 bytes is one printable character (GPT-2, 2019).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace cadre {

// The character of a byte, as UTF-8 (1 or 2 bytes).
std::string_view character_of_byte(unsigned char byte);

// Text written in the alphabet for these bytes.
std::string alphabet_text(std::string_view bytes);

// The bytes that text stands for; nullopt when it has a character that is not in the alphabet.
std::optional<std::string> alphabet_bytes(std::string_view text);

}  // namespace cadre
