#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "tokenizer/recent_characters.h"

namespace cadre {
namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(stand_in(c))); }

// Below this every character is its own canonical normal form (composed) and no mark.
constexpr char32_t kFirstCombining = 0x300;

bool is_composed_already(std::string_view text) {
  // U+0300 is CC 80: every lead byte below CC stays below it.
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

// Marks and characters with a decomposition that came after Unicode 9.0, by whose tables the tokenizers library
// normalizes: to it they are ordinary characters. (1F16C is older; it got its decomposition later.)
constexpr std::array<std::pair<char32_t, char32_t>, 41> kAfterUnicode9{{
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1F16C, 0x1F16C},
    {0x1FBF0, 0x1FBF9},
}};

bool is_after_unicode9(char32_t c) {
  const auto after = std::upper_bound(kAfterUnicode9.begin(), kAfterUnicode9.end(), c,
                                      [](char32_t c, const auto& range) { return c < range.first; });
  return (after != kAfterUnicode9.begin() && c <= (after - 1)->second) || stand_in(c) != c;
}

// Plain Latin and the common ideographs: no marks, and nothing that joins what is before it.
bool is_plain(char32_t c) { return c < kFirstCombining || (c >= 0x3400 && c <= 0x9FFF); }

int combining_class(char32_t c) {
  return is_plain(c) || is_after_unicode9(c) ? 0
                                             : utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

// A character with its combining class.
struct Classed {
  char32_t c;
  int combining;
};

void append_decomposition(char32_t c, utf8proc_option_t options, std::vector<Classed>* out) {
  std::array<utf8proc_int32_t, 32> buffer;
  int boundary_class = UTF8PROC_BOUNDCLASS_START;
  const auto n =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer.data(), buffer.size(), options, &boundary_class);
  // The longest decomposition of Unicode is 18 characters.
  CADRE_CHECK(n >= 0 && static_cast<size_t>(n) <= buffer.size(), "decomposition of {:#x}: {}", static_cast<uint32_t>(c),
              n);
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    const auto part = static_cast<char32_t>(buffer[i]);
    out->push_back({part, combining_class(part)});
  }
}

// The one character that a and b compose to; 0 when there is none.
char32_t composed_pair(char32_t a, char32_t b) {
  std::array<utf8proc_int32_t, 2> pair{static_cast<utf8proc_int32_t>(a), static_cast<utf8proc_int32_t>(b)};
  const auto n =
      utf8proc_normalize_utf32(pair.data(), 2, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  return n == 1 && !is_after_unicode9(static_cast<char32_t>(pair[0])) ? static_cast<char32_t>(pair[0]) : 0;
}

// utf8proc's own ordering swaps neighbours, which takes quadratic time on a long run of marks.
void order_marks(std::vector<Classed>* text) {
  const auto by_class = [](const Classed& a, const Classed& b) { return a.combining < b.combining; };
  const auto is_starter = [](const Classed& c) { return c.combining == 0; };
  for (auto begin = text->begin(); begin != text->end();) {
    begin = std::find_if_not(begin, text->end(), is_starter);
    const auto end = std::find_if(begin, text->end(), is_starter);
    if (!std::is_sorted(begin, end, by_class)) std::stable_sort(begin, end, by_class);
    begin = end;
  }
}

// Canonical composition: each character that no other of its class or above parts from the last starter joins it, if
// they compose. (utf8proc's own would go by its own classes.)
void compose(std::vector<Classed>* text) {
  constexpr size_t kNone = SIZE_MAX;
  size_t size = 0;  // of what is composed so far, at the front of text
  size_t starter = kNone;
  int last_class = 0;
  for (size_t i = 0; i < text->size(); ++i) {
    const Classed next = (*text)[i];
    const bool reaches = starter != kNone && (size == starter + 1 || last_class < next.combining);
    if (reaches && !is_plain(next.c)) {
      if (const char32_t both = composed_pair((*text)[starter].c, next.c)) {
        (*text)[starter].c = both;
        continue;
      }
    }
    if (next.combining == 0) starter = size;
    last_class = next.combining;
    (*text)[size++] = next;
  }
  text->resize(size);
}

}  // namespace

bool is_white_space(char32_t c) {
  switch (c) {
    case 0x20:
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000: return true;
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
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return true;
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
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return is_mark(c);
  }
}

std::string normalized(std::string_view text, NormalForm form) {
  if (form == NormalForm::kNfc ? is_composed_already(text) : is_ascii(text)) return std::string(text);
  const bool compat = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0));
  std::vector<Classed> characters;
  characters.reserve(text.size());
  while (!text.empty()) {
    size_t length = 0;
    const char32_t c = utf8::decode(text, &length);
    text.remove_prefix(length);
    // Below U+00A0 nothing decomposes, by compatibility neither.
    if (c < 0xA0 || is_after_unicode9(c)) {
      characters.push_back({c, 0});
    } else {
      append_decomposition(c, options, &characters);
    }
  }
  order_marks(&characters);
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) compose(&characters);
  std::string out;
  out.reserve(characters.size() * 3);
  for (const Classed& character : characters) utf8::append(out, character.c);
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
