#include "tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

namespace cadre {
namespace {

// Printable Latin-1 stands for itself; the other bytes take U+0100, U+0101, ... in their order.
constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<char, 512> utf8{};  // two bytes each, the second unused for ASCII
  std::array<uint8_t, 256> length{};
  std::array<int16_t, 0x200> byte_of{};  // by code point; -1 when none
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte_of) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int c = stands_for_itself(byte) ? byte : next++;
    const auto at = static_cast<size_t>(byte);
    alphabet.byte_of[static_cast<size_t>(c)] = static_cast<int16_t>(byte);
    alphabet.length[at] = c < 0x80 ? 1 : 2;
    alphabet.utf8[2 * at] = static_cast<char>(c < 0x80 ? c : 0xC0 | (c >> 6));
    alphabet.utf8[2 * at + 1] = static_cast<char>(0x80 | (c & 0x3F));
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string_view character_of_byte(unsigned char byte) {
  return {kAlphabet.utf8.data() + 2 * size_t{byte}, kAlphabet.length[byte]};
}

std::string alphabet_text(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) text += character_of_byte(static_cast<unsigned char>(byte));
  return text;
}

std::optional<std::string> alphabet_bytes(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const auto lead = static_cast<unsigned char>(text[pos++]);
    size_t c = lead;
    if (lead >= 0x80) {
      if (lead < 0xC2 || lead > 0xC7 || pos == text.size()) return std::nullopt;
      c = (size_t{lead} & 0x1F) << 6 | (static_cast<unsigned char>(text[pos++]) & 0x3F);
    }
    if (kAlphabet.byte_of[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte_of[c]);
  }
  return bytes;
}

}  // namespace cadre
