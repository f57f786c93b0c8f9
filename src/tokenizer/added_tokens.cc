#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/check.h"
#include "base/utf8.h"
#include "tokenizer/unicode.h"

namespace cadre {
namespace {

size_t last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

bool starts_with_word(std::string_view text) {
  size_t length = 0;
  return !text.empty() && is_word_character(utf8::decode(text, &length));
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && starts_with_word(text.substr(last_character(text)));
}

}  // namespace

void AddedTokenFinder::add(std::string_view pattern, const AddedToken& token) {
  CADRE_CHECK(!pattern.empty());
  int32_t at = -1;
  for (const char byte : pattern) {
    const int32_t known = at < 0 ? roots_[static_cast<unsigned char>(byte)] : child(at, byte);
    if (known >= 0) {
      at = known;
      continue;
    }
    const auto added = static_cast<int32_t>(nodes_.size());
    nodes_.push_back({.byte = byte});
    int32_t& list = at < 0 ? roots_[static_cast<unsigned char>(byte)] : nodes_[static_cast<size_t>(at)].first_child;
    nodes_.back().next_sibling = list;
    list = added;
    at = added;
  }
  Node& last = nodes_[static_cast<size_t>(at)];
  if (last.token >= 0) return;
  last.token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.single_word, token.lstrip, token.rstrip});
}

int32_t AddedTokenFinder::child(int32_t node, char byte) const {
  int32_t at = nodes_[static_cast<size_t>(node)].first_child;
  while (at >= 0 && nodes_[static_cast<size_t>(at)].byte != byte) at = nodes_[static_cast<size_t>(at)].next_sibling;
  return at;
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::next(std::string_view text, size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    int32_t node = roots_[static_cast<unsigned char>(text[begin])];
    std::optional<Match> longest;
    for (size_t end = begin + 1; node >= 0; ++end) {
      const int32_t token = nodes_[static_cast<size_t>(node)].token;
      if (token >= 0) longest = {begin, end, static_cast<size_t>(token)};
      if (end == text.size()) break;
      node = child(node, text[end]);
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

bool AddedTokenFinder::extend(std::string_view text, const Flags& token, size_t done, size_t* begin, size_t* end) {
  if (token.single_word && (ends_with_word(text.substr(0, *begin)) || starts_with_word(text.substr(*end))))
    return false;
  if (token.lstrip) {
    // White space that the token before has taken stays with it.
    size_t at = *begin, length = 0;
    while (at > done) {
      const size_t before = last_character(text.substr(0, at));
      if (!is_white_space(utf8::decode(text.substr(before), &length))) break;
      at = before;
    }
    *begin = std::max(at, done);
  }
  if (token.rstrip) {
    size_t length = 0;
    while (*end < text.size() && is_white_space(utf8::decode(text.substr(*end), &length))) *end += length;
  }
  return *begin < *end;  // a token of white space may have nothing left
}

}  // namespace cadre
