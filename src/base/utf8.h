// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cadre::utf8 {

// Bytes of the valid sequence that text starts with (1 to 4), or 0 when it does not start with a complete valid one.
size_t sequence_length(std::string_view text);

// True when text, invalid so far, could become a valid sequence with more bytes (a cut character at the end of a stream).
bool is_incomplete_prefix(std::string_view text);

bool is_valid(std::string_view text);

// Each maximal invalid part becomes one U+FFFD, as the WHATWG decoder and Rust's from_utf8_lossy do.
std::string replace_invalid(std::string_view text);

// Length of the longest prefix of text that does not end in a cut character: what may be shown now while bytes may follow.
size_t complete_length(std::string_view text);

// Appends the encoding of a code point (must be a scalar value).
void append(std::string& out, char32_t code_point);

// Decodes the valid sequence text starts with; *length gets its bytes. U+FFFD and length 1 when it is invalid.
char32_t decode(std::string_view text, size_t* length);

}  // namespace cadre::utf8
