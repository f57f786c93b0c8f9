#include "tokenizer/jinja/string_literal.h"

#include <charconv>

#include "base/utf8.h"
#include "tokenizer/jinja/value.h"

namespace cadre::jinja {
namespace {

bool is_octal(char c) { return c >= '0' && c <= '7'; }

// Reads exactly num_digits hexadecimal digits.
char32_t hex_digits(std::string_view text, size_t num_digits) {
  uint32_t code = 0;
  const std::string_view digits = text.substr(0, num_digits);
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (digits.size() < num_digits || result.ptr != digits.data() + num_digits) fail("expected {} hexadecimal digits in the escape of a string, found fewer", num_digits);
  return code;
}

}  // namespace

size_t string_literal_end(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') ++i;
    else if (text[i] == text[0]) return i + 1;
  }
  fail("expected {} at the end of the string, found the end of the template", text[0]);
}

std::string unescaped(std::string_view literal) {
  std::string out;
  for (size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      out += literal[i];
      continue;
    }
    const char c = literal[++i];
    char32_t code = 0;
    switch (c) {
      case '\n': continue;
      case '\\': case '\'': case '"': out += c; continue;
      case 'a': out += '\a'; continue;
      case 'b': out += '\b'; continue;
      case 'f': out += '\f'; continue;
      case 'n': out += '\n'; continue;
      case 'r': out += '\r'; continue;
      case 't': out += '\t'; continue;
      case 'v': out += '\v'; continue;
      case 'N': fail("expected an escape by number in the string, found \\N; write the character itself");
      case 'x': case 'u': case 'U': {
        const size_t num_digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        code = hex_digits(literal.substr(i + 1), num_digits);
        i += num_digits;
        break;
      }
      default:
        if (!is_octal(c)) {
          out += '\\';
          out += c;
          continue;
        }
        code = static_cast<char32_t>(c - '0');
        for (int more = 0; more < 2 && i + 1 < literal.size() && is_octal(literal[i + 1]); ++more)
          code = code * 8 + static_cast<char32_t>(literal[++i] - '0');
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) fail("expected a character in the escape of a string, found the code {:#x}", static_cast<uint32_t>(code));
    utf8::append(out, code);
  }
  return out;
}

}  // namespace cadre::jinja
