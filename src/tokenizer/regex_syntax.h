// Oniguruma regular expressions (Ruby syntax), as tokenizer.json files hold them, rewritten for PCRE2. Not a regex
// engine: the result means the same to PCRE2 with UTF, UCP, MULTILINE and newline LF.
#pragma once

#include <string>
#include <string_view>

namespace cadre {

// Rewrites what the two read differently: \s and \w as Unicode has them, \h, \v, \uHHHH, classes inside classes and
// their intersection (&&), property and script names, (?m), {,n}, and doubled quantifiers ({1,3}+ repeats, it is not
// possessive). Throws Error when the pattern is not understood.
std::string pcre2_from_oniguruma(std::string_view pattern);

// A pattern that matches exactly this text.
std::string pcre2_literal(std::string_view text);

}  // namespace cadre
