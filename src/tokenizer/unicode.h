// Properties of characters and the normal forms of text, on utf8proc. Text is valid UTF-8 throughout.
#pragma once

#include <string>
#include <string_view>

namespace cadre {

bool is_white_space(char32_t c);     // White_Space
bool is_numeric(char32_t c);         // categories Nd, Nl, No
bool is_punctuation(char32_t c);     // categories P*, and ASCII punctuation
bool is_mark(char32_t c);            // categories M*
bool is_word_character(char32_t c);  // Alphabetic, marks, decimal digits, connectors, joiners (UTS 18)

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Unicode normalization (UAX 15), in time linear in the text but for the sorting of runs of marks (n log n).
std::string normalized(std::string_view text, NormalForm form);

// Full lower case of each character by itself (no final sigma, no language rules).
std::string lowercased(std::string_view text);

}  // namespace cadre
