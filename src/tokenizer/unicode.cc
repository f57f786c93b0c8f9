#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"

namespace cadre {
namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

// Below this every character is its own canonical normal form (composed) and no mark.
constexpr char32_t kFirstCombining = 0x300;

bool is_composed_already(std::string_view text) {
  // U+0300 is CC 80: every lead byte below CC stays below it.
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

int combining_class(utf8proc_int32_t c) {
  return c < static_cast<utf8proc_int32_t>(kFirstCombining) ? 0 : utf8proc_get_property(c)->combining_class;
}

void append_decomposition(char32_t c, utf8proc_option_t options, std::vector<utf8proc_int32_t>* out) {
  std::array<utf8proc_int32_t, 32> buffer;
  int boundary_class = UTF8PROC_BOUNDCLASS_START;
  const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer.data(), buffer.size(), options, &boundary_class);
  // The longest decomposition of Unicode is 18 characters.
  CADRE_CHECK(n >= 0 && static_cast<size_t>(n) <= buffer.size(), "decomposition of {:#x}: {}", static_cast<uint32_t>(c), n);
  out->insert(out->end(), buffer.begin(), buffer.begin() + n);
}

// utf8proc's own ordering swaps neighbours, which takes quadratic time on a long run of marks.
void order_marks(std::vector<utf8proc_int32_t>* text) {
  for (size_t begin = 0; begin < text->size();) {
    if (combining_class((*text)[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < text->size() && combining_class((*text)[end]) != 0) ++end;
    std::stable_sort(text->begin() + static_cast<std::ptrdiff_t>(begin), text->begin() + static_cast<std::ptrdiff_t>(end),
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

bool is_white_space(char32_t c) {
  switch (c) {
    case 0x20: case 0x85: case 0xA0: case 0x1680: case 0x2028: case 0x2029: case 0x202F: case 0x205F: case 0x3000:
      return true;
    default: return (c >= 0x09 && c <= 0x0D) || (c >= 0x2000 && c <= 0x200A);
  }
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c > 0x20 && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 0x7F);
  switch (category(c)) {
    case UTF8PROC_CATEGORY_PC: case UTF8PROC_CATEGORY_PD: case UTF8PROC_CATEGORY_PS: case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI: case UTF8PROC_CATEGORY_PF: case UTF8PROC_CATEGORY_PO:
      return true;
    default: return false;
  }
}

bool is_mark(char32_t c) {
  if (c < kFirstCombining) return false;
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC || kind == UTF8PROC_CATEGORY_ME;
}

bool is_word_character(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  // Other_Alphabetic symbols (circled and squared letters), and Join_Control.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D)
    return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_PC:
      return true;
    default: return is_mark(c);
  }
}

std::string normalized(std::string_view text, NormalForm form) {
  if (form == NormalForm::kNfc ? is_composed_already(text) : is_ascii(text)) return std::string(text);
  const bool compat = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    if (byte < 0x80) {
      characters.push_back(byte);
      text.remove_prefix(1);
      continue;
    }
    size_t length = 0;
    append_decomposition(utf8::decode(text, &length), options, &characters);
    text.remove_prefix(length);
  }
  order_marks(&characters);
  if (compose) {
    const auto n = utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
                                            static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    CADRE_CHECK(n >= 0, "composition: {}", n);
    characters.resize(static_cast<size_t>(n));
  }
  std::string out;
  out.reserve(characters.size());
  for (const auto c : characters) utf8::append(out, static_cast<char32_t>(c));
  return out;
}

std::string lowercased(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    size_t length = 0;
    const char32_t c = utf8::decode(text, &length);
    text.remove_prefix(length);
    if (c == 0x130) {
      out += "i\xCC\x87";  // the one character whose lower case is two
    } else {
      utf8::append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return out;
}

}  // namespace cadre
