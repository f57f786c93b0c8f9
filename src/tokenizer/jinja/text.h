// Strings as Python's str has them, on valid UTF-8: positions count code points, "whitespace" and case are Unicode's.
// Pure functions; views returned point into their arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace cadre::jinja {

bool is_space(char32_t c);       // str.isspace of one character
bool is_printable(char32_t c);   // str.isprintable of one character
bool is_name_char(char32_t c);   // may stand in an identifier, at any place but the first
bool is_name_start(char32_t c);
bool is_word_char(char32_t c);   // \w of Python's re

size_t count_chars(std::string_view text);
// Byte offset of character number char_idx (text.size() when there are fewer).
size_t byte_offset(std::string_view text, size_t char_idx);

// Calls visit(char32_t) for each character; visit returns false to stop.
template <typename Visit>
void for_each_char(std::string_view text, Visit visit) {
  while (!text.empty()) {
    size_t length = 1;
    const auto first = static_cast<unsigned char>(text[0]);
    if (!visit(first < 0x80 ? char32_t{first} : utf8::decode(text, &length))) return;
    text.remove_prefix(length);
  }
}

enum class Side { kLeft, kRight, kBoth };
// Drops whitespace, or any of the characters in chars, from the sides.
std::string_view strip(std::string_view text, std::optional<std::string_view> chars, Side side);

// max_splits < 0 means no limit. An empty separator is the caller's error.
std::vector<std::string_view> split(std::string_view text, std::string_view separator, int64_t max_splits);
std::vector<std::string_view> rsplit(std::string_view text, std::string_view separator, int64_t max_splits);
std::vector<std::string_view> split_space(std::string_view text, int64_t max_splits);
std::vector<std::string_view> rsplit_space(std::string_view text, int64_t max_splits);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

// First place of the needle from `from` on, in linear time; npos when there is none.
size_t find_first(std::string_view text, std::string_view needle, size_t from = 0);
// Occurrences that do not overlap; an empty needle is found between all characters.
size_t count_occurrences(std::string_view text, std::string_view needle);
// Replaces at most max_count of them (all when negative).
std::string replace(std::string_view text, std::string_view needle, std::string_view replacement, int64_t max_count);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string casefold(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);
std::string swapcase(std::string_view text);

bool is_alpha(std::string_view text);
bool is_alnum(std::string_view text);
bool is_decimal(std::string_view text);
bool is_digit(std::string_view text);
bool is_numeric(std::string_view text);
bool is_all_space(std::string_view text);
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);
bool is_title(std::string_view text);
bool is_identifier(std::string_view text);
bool is_all_printable(std::string_view text);

// The literal Python's repr writes.
std::string python_repr(std::string_view text);
// & < > ' " as character references.
std::string escape_html(std::string_view text);
// JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text, bool ensure_ascii);

}  // namespace cadre::jinja
