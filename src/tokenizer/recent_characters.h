// Characters of Unicode 15 and 16, which PCRE2 10.42 (Unicode 14) takes for unassigned while the tokenizers library
// knows them: each has an older one that patterns may be shown in its place.
#pragma once

#include <string>
#include <string_view>

namespace cadre {

// An older character of the same general category and length in UTF-8; c itself when it is not recent.
char32_t stand_in(char32_t c);

// Of valid UTF-8.
bool has_recent_characters(std::string_view text);

// text with stand-ins: as long, and each character where it was.
std::string with_stand_ins(std::string_view text);

}  // namespace cadre
