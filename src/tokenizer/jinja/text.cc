#include "tokenizer/jinja/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace cadre::jinja {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Start of the character that ends at `end`.
size_t char_before(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && is_continuation(text[end]));
  return end;
}

char32_t char_at(std::string_view text, size_t offset, size_t* length) { return utf8::decode(text.substr(offset), length); }

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

size_t count_chars(std::string_view text) {
  size_t num_continuations = 0, pos = 0;
  for (; pos + 8 <= text.size(); pos += 8) {
    uint64_t bytes;
    std::memcpy(&bytes, text.data() + pos, 8);
    // Continuation bytes are 10xxxxxx: bit 7 set, bit 6 not. The product adds the eight bits up in its top byte.
    const uint64_t ones = 0x0101010101010101, marks = (bytes >> 7) & ~(bytes >> 6) & ones;
    num_continuations += static_cast<size_t>((marks * ones) >> 56);
  }
  for (; pos < text.size(); ++pos) num_continuations += is_continuation(text[pos]);
  return text.size() - num_continuations;
}

size_t byte_offset(std::string_view text, size_t char_idx) {
  size_t offset = 0;
  for (; char_idx > 0 && offset < text.size(); --char_idx) {
    ++offset;
    while (offset < text.size() && is_continuation(text[offset])) ++offset;
  }
  return offset;
}

std::string_view strip(std::string_view text, std::optional<std::string_view> chars, Side side) {
  std::u32string set;
  if (chars) for_each_char(*chars, [&](char32_t c) { return set.push_back(c), true; });
  std::sort(set.begin(), set.end());
  const auto drops = [&](char32_t c) { return chars ? std::binary_search(set.begin(), set.end(), c) : is_space(c); };
  size_t length = 0;
  if (side != Side::kRight)
    while (!text.empty() && drops(char_at(text, 0, &length))) text.remove_prefix(length);
  if (side != Side::kLeft) {
    while (!text.empty()) {
      const size_t start = char_before(text, text.size());
      if (!drops(char_at(text, start, &length))) break;
      text = text.substr(0, start);
    }
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator, int64_t max_splits) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t found = find_first(text, separator, start);
    if (found == text.npos) break;
    parts.push_back(text.substr(start, found - start));
    start = found + separator.size();
  }
  parts.push_back(text.substr(start));
  return parts;
}

std::vector<std::string_view> rsplit(std::string_view text, std::string_view separator, int64_t max_splits) {
  std::vector<std::string_view> parts;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t found = text.rfind(separator);
    if (found == text.npos) break;
    parts.push_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_space(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (;;) {
    text = strip(text, std::nullopt, Side::kLeft);
    if (text.empty()) return parts;
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) break;
    size_t end = 0, length = 0;
    while (end < text.size() && !is_space(char_at(text, end, &length))) end += length;
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  parts.push_back(text);  // with the space at its end
  return parts;
}

std::vector<std::string_view> rsplit_space(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (;;) {
    text = strip(text, std::nullopt, Side::kRight);
    if (text.empty()) break;
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(text);  // with the space at its start
      break;
    }
    size_t start = text.size(), length = 0;
    while (start > 0) {
      const size_t before = char_before(text, start);
      if (is_space(char_at(text, before, &length))) break;
      start = before;
    }
    parts.push_back(text.substr(start));
    text = text.substr(0, start);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0, pos = 0;
  while (pos < text.size()) {
    size_t length = 0;
    const char32_t c = char_at(text, pos, &length);
    if (!is_line_end(c)) {
      pos += length;
      continue;
    }
    const size_t end = pos;
    pos += length;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.push_back(text.substr(start, (keep_ends ? pos : end) - start));
    start = pos;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

size_t find_first(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return text.npos;
  if (needle.size() == 1) return text.find(needle[0], from);
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : text.npos;
}

size_t count_occurrences(std::string_view text, std::string_view needle) {
  if (needle.empty()) return count_chars(text) + 1;
  size_t count = 0;
  for (size_t pos = find_first(text, needle); pos != text.npos; pos = find_first(text, needle, pos + needle.size())) ++count;
  return count;
}

std::string replace(std::string_view text, std::string_view needle, std::string_view replacement, int64_t max_count) {
  std::string out;
  size_t pos = 0;
  if (needle.empty()) {
    for (int64_t count = 0; max_count < 0 || count < max_count; ++count) {
      out += replacement;
      if (pos == text.size()) return out;
      const size_t next = pos + byte_offset(text.substr(pos), 1);
      out += text.substr(pos, next - pos);
      pos = next;
    }
    return out += text.substr(pos);
  }
  for (int64_t count = 0; max_count < 0 || count < max_count; ++count) {
    const size_t found = find_first(text, needle, pos);
    if (found == text.npos) break;
    out += text.substr(pos, found - pos);
    out += replacement;
    pos = found + needle.size();
  }
  return out += text.substr(pos);
}

std::string python_repr(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for_each_char(text, [&](char32_t c) {
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      utf8::append(out, c);
    } else if (c < 0x100) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      fmt::format_to(std::back_inserter(out), "\\U{:08x}", static_cast<uint32_t>(c));
    }
    return true;
  });
  return out += quote;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  }
  return out;
}

void append_json_string(std::string& out, std::string_view text, bool ensure_ascii) {
  const auto escape = [&](char32_t unit) { fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<uint32_t>(unit)); };
  out += '"';
  for_each_char(text, [&](char32_t c) {
    switch (c) {
      case '"': out += "\\\""; return true;
      case '\\': out += "\\\\"; return true;
      case '\n': out += "\\n"; return true;
      case '\r': out += "\\r"; return true;
      case '\t': out += "\\t"; return true;
      case '\f': out += "\\f"; return true;
      case '\b': out += "\\b"; return true;
      default: break;
    }
    if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
      escape(c);
    } else if (ensure_ascii && c >= 0x10000) {
      escape(0xD800 + ((c - 0x10000) >> 10));
      escape(0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      utf8::append(out, c);
    }
    return true;
  });
  out += '"';
}

}  // namespace cadre::jinja
