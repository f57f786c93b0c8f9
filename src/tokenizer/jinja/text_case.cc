// Classes and cases of characters, from utf8proc and case_table.h.
#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "tokenizer/jinja/case_table.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {
namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_letter(char32_t c) {
  const auto cat = category(c);
  return cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO;
}
bool upper_char(char32_t c) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)); }
bool lower_char(char32_t c) { return utf8proc_islower(static_cast<utf8proc_int32_t>(c)); }
bool title_char(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }
bool is_cased(char32_t c) { return upper_char(c) || lower_char(c) || title_char(c); }
bool decimal_char(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

// Numeric_Type=Digit outside Nd: superscripts, subscripts, circled and parenthesised digits.
bool digit_char(char32_t c) {
  return decimal_char(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0x1369 && c <= 0x1371) || c == 0x19DA || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468) ||
         (c >= 0x2474 && c <= 0x247C) || (c >= 0x2488 && c <= 0x2490) || c == 0x24EA || (c >= 0x24F5 && c <= 0x24FD) ||
         c == 0x24FF || (c >= 0x2776 && c <= 0x277E) || (c >= 0x2780 && c <= 0x2788) || (c >= 0x278A && c <= 0x2792) ||
         (c >= 0x10A40 && c <= 0x10A43) || (c >= 0x10E60 && c <= 0x10E68) || (c >= 0x11052 && c <= 0x1105A) ||
         (c >= 0x1F100 && c <= 0x1F10A);
}

bool numeric_char(char32_t c) {
  static constexpr std::u32string_view kIdeographs = U"〇一二三四五六七八九十百千万億兆零壹貳參肆伍陸柒捌玖拾佰仟萬廿卅卌";
  const auto cat = category(c);
  return (cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO) || digit_char(c) || kIdeographs.find(c) != kIdeographs.npos;
}

// Case_Ignorable, by category but for the word-internal punctuation (UAX 29 MidLetter, MidNumLet, Single_Quote).
bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_ME: case UTF8PROC_CATEGORY_CF: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: break;
  }
  static constexpr std::u32string_view kMidWord = U"'.:··՟״‘’․‧︓﹒﹕＇．：";
  return kMidWord.find(c) != kMidWord.npos;
}

const SpecialCase* special_case(char32_t c) {
  const auto found = std::lower_bound(kSpecialCases.begin(), kSpecialCases.end(), c,
                                      [](const SpecialCase& entry, char32_t value) { return entry.code_point < value; });
  return found != kSpecialCases.end() && found->code_point == c ? &*found : nullptr;
}

void append_upper(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  } else if (const SpecialCase* special = special_case(c)) {
    out += special->upper;
  } else {
    utf8::append(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_title(std::string& out, char32_t c) {
  if (const SpecialCase* special = special_case(c)) out += special->title;
  else utf8::append(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

// A capital sigma is final when a cased character stands before it and none after it (case-ignorable ones aside).
bool is_final_sigma(const std::u32string& text, size_t idx) {
  size_t before = idx;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = idx + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::string& out, const std::u32string& text, size_t idx) {
  const char32_t c = text[idx];
  if (c < 0x80) out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  else if (c == 0x3A3) utf8::append(out, is_final_sigma(text, idx) ? 0x3C2 : 0x3C3);
  else if (c == 0x130) out += "i\xCC\x87";
  else utf8::append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

std::u32string decoded(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t c) { return out.push_back(c), true; });
  return out;
}

// True when text is not empty and every character satisfies the predicate.
template <typename Predicate>
bool all_chars(std::string_view text, Predicate predicate) {
  bool all = !text.empty();
  for_each_char(text, [&](char32_t c) { return all = all && predicate(c); });
  return all;
}

}  // namespace

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  const auto cat = category(c);
  return cat != UTF8PROC_CATEGORY_CN && cat < UTF8PROC_CATEGORY_ZS;  // Zs, Zl, Zp, Cc, Cf, Cs and Co come last
}

bool is_name_start(char32_t c) {
  if (c < 0x80) return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return is_letter(c) || category(c) == UTF8PROC_CATEGORY_NL;
}

bool is_name_char(char32_t c) {
  if (c < 0x80) return is_name_start(c) || (c >= '0' && c <= '9');
  const auto cat = category(c);
  return is_name_start(c) || cat == UTF8PROC_CATEGORY_MN || cat == UTF8PROC_CATEGORY_MC || cat == UTF8PROC_CATEGORY_ND ||
         cat == UTF8PROC_CATEGORY_PC || c == 0xB7 || c == 0x387;
}

bool is_word_char(char32_t c) { return c == '_' || is_letter(c) || numeric_char(c); }

std::string upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t c) { return append_upper(out, c), true; });
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const std::u32string chars = decoded(text);
  for (size_t i = 0; i < chars.size(); ++i) append_lower(out, chars, i);
  return out;
}

std::string casefold(std::string_view text) {
  std::string out;
  for_each_char(text, [&](char32_t c) {
    utf8proc_int32_t folded[8];
    int last_boundclass = 0;
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 8, UTF8PROC_CASEFOLD, &last_boundclass);
    if (n < 0 || n > 8) utf8::append(out, c);
    else for (int i = 0; i < n; ++i) utf8::append(out, static_cast<char32_t>(folded[i]));
    return true;
  });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  const std::u32string chars = decoded(text);
  for (size_t i = 0; i < chars.size(); ++i) {
    if (i == 0) append_title(out, chars[i]);
    else append_lower(out, chars, i);
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  const std::u32string chars = decoded(text);
  bool after_cased = false;
  for (size_t i = 0; i < chars.size(); ++i) {
    if (after_cased) append_lower(out, chars, i);
    else append_title(out, chars[i]);
    after_cased = is_cased(chars[i]);
  }
  return out;
}

std::string swapcase(std::string_view text) {
  std::string out;
  const std::u32string chars = decoded(text);
  for (size_t i = 0; i < chars.size(); ++i) {
    if (upper_char(chars[i])) append_lower(out, chars, i);
    else if (lower_char(chars[i])) append_upper(out, chars[i]);
    else utf8::append(out, chars[i]);
  }
  return out;
}

bool is_alpha(std::string_view text) { return all_chars(text, is_letter); }
bool is_alnum(std::string_view text) {
  return all_chars(text, [](char32_t c) { return is_letter(c) || numeric_char(c); });
}
bool is_decimal(std::string_view text) { return all_chars(text, decimal_char); }
bool is_digit(std::string_view text) { return all_chars(text, digit_char); }
bool is_numeric(std::string_view text) { return all_chars(text, numeric_char); }
bool is_all_space(std::string_view text) { return all_chars(text, is_space); }
bool is_all_printable(std::string_view text) { return text.empty() || all_chars(text, is_printable); }

bool is_upper(std::string_view text) {
  bool cased = false, good = true;
  for_each_char(text, [&](char32_t c) {
    cased = cased || upper_char(c);
    return good = !lower_char(c) && !title_char(c);
  });
  return cased && good;
}

bool is_lower(std::string_view text) {
  bool cased = false, good = true;
  for_each_char(text, [&](char32_t c) {
    cased = cased || lower_char(c);
    return good = !upper_char(c) && !title_char(c);
  });
  return cased && good;
}

bool is_title(std::string_view text) {
  bool cased = false, after_cased = false, good = true;
  for_each_char(text, [&](char32_t c) {
    if (upper_char(c) || title_char(c)) {
      good = !after_cased;
      cased = after_cased = true;
    } else if (lower_char(c)) {
      good = after_cased;
      cased = true;
    } else {
      after_cased = false;
    }
    return good;
  });
  return cased && good;
}

bool is_identifier(std::string_view text) {
  bool first = true;
  return all_chars(text, [&](char32_t c) { return std::exchange(first, false) ? is_name_start(c) : is_name_char(c); });
}

}  // namespace cadre::jinja
