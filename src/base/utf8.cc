#include "base/utf8.h"

#include "base/check.h"

namespace cadre::utf8 {
namespace {

struct Lead {
  int length;              // bytes of the sequence, 0 when the byte cannot start one
  unsigned char low, high;  // allowed range of the second byte
};

Lead lead_of(unsigned char b) {
  if (b < 0x80) return {1, 0, 0};
  if (b < 0xC2) return {0, 0, 0};
  if (b < 0xE0) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b < 0xF0) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b < 0xF4) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Bytes from the start that belong to one sequence as far as it is valid; *complete tells whether all are there.
size_t valid_part(std::string_view text, bool* complete) {
  *complete = false;
  if (text.empty()) return 0;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  if (lead.length == 0) return 0;
  size_t n = 1;
  while (n < static_cast<size_t>(lead.length) && n < text.size()) {
    const unsigned char b = static_cast<unsigned char>(text[n]);
    const unsigned char low = n == 1 ? lead.low : 0x80, high = n == 1 ? lead.high : 0xBF;
    if (b < low || b > high) return n;
    ++n;
  }
  *complete = n == static_cast<size_t>(lead.length);
  return n;
}

}  // namespace

size_t sequence_length(std::string_view text) {
  bool complete;
  const size_t n = valid_part(text, &complete);
  return complete ? n : 0;
}

bool is_incomplete_prefix(std::string_view text) {
  bool complete;
  const size_t n = valid_part(text, &complete);
  return !complete && n > 0 && n == text.size();
}

bool is_valid(std::string_view text) {
  while (!text.empty()) {
    const size_t n = sequence_length(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

std::string replace_invalid(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    bool complete;
    const size_t n = valid_part(text, &complete);
    if (complete) {
      out += text.substr(0, n);
    } else {
      out += "\xEF\xBF\xBD";
    }
    text.remove_prefix(n > 0 ? n : 1);
  }
  return out;
}

size_t complete_length(std::string_view text) {
  const size_t from = text.size() > 3 ? text.size() - 3 : 0;
  for (size_t pos = from; pos < text.size(); ++pos)
    if (is_incomplete_prefix(text.substr(pos))) return pos;
  return text.size();
}

void append(std::string& out, char32_t c) {
  CADRE_CHECK(c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF), "code point {:#x}", static_cast<uint32_t>(c));
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

char32_t decode(std::string_view text, size_t* length) {
  const size_t n = sequence_length(text);
  if (n == 0) {
    *length = 1;
    return 0xFFFD;
  }
  *length = n;
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  switch (n) {
    case 1: return byte(0);
    case 2: return ((byte(0) & 0x1F) << 6) | (byte(1) & 0x3F);
    case 3: return ((byte(0) & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F);
    default:
      return ((byte(0) & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F);
  }
}

}  // namespace cadre::utf8
