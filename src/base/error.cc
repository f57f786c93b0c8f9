#include "base/error.h"

#include "base/utf8.h"

namespace cadre {

std::string quoted(std::string_view text, size_t max_bytes) {
  std::string out = "'";
  size_t pos = 0;
  while (pos < text.size() && pos < max_bytes) {
    const size_t length = utf8::sequence_length(text.substr(pos));
    const unsigned char byte = static_cast<unsigned char>(text[pos]);
    if (length == 0 || byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
      ++pos;
    } else {
      out += text.substr(pos, length);
      pos += length;
    }
  }
  if (pos < text.size()) out += "...";
  return out + "'";
}

}  // namespace cadre
