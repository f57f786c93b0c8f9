// Tokens written whole in a text ("<|end|>"): finds them, the longest at the leftmost place. Immutable once built.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace cadre {

struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool single_word = false;  // not inside a longer word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // sought in the normalized text, by its own normalized form
  bool special = false;
};

class AddedTokenFinder {
 public:
  // pattern, not empty, in the text is the token; of equal patterns the first added counts.
  void add(std::string_view pattern, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // Calls visit(begin, end, id) for parts that cover text in order; id is -1 for text between tokens. Parts are not
  // empty.
  template <typename Visit>
  void split(std::string_view text, Visit&& visit) const {
    size_t done = 0;
    for (size_t from = 0; const auto match = next(text, from);) {
      from = match->end;
      size_t begin = match->begin, end = match->end;
      if (!extend(text, tokens_[match->token], done, &begin, &end)) continue;
      if (done < begin) visit(done, begin, TokenId{-1});
      visit(begin, end, tokens_[match->token].id);
      done = end;
    }
    if (done < text.size()) visit(done, text.size(), TokenId{-1});
  }

 private:
  // A trie: the children of a node are a list.
  struct Node {
    int32_t first_child = -1, next_sibling = -1, token = -1;
    char byte = 0;
  };
  struct Match {
    size_t begin, end, token;
  };
  struct Flags {
    TokenId id;
    bool single_word, lstrip, rstrip;
  };
  int32_t child(int32_t node, char byte) const;
  std::optional<Match> next(std::string_view text, size_t from) const;
  // Applies the token's flags to the match; false when they forbid it.
  static bool extend(std::string_view text, const Flags& token, size_t done, size_t* begin, size_t* end);

  std::vector<Node> nodes_;
  std::array<int32_t, 256> roots_ = filled_with_none();  // node of each first byte
  std::vector<Flags> tokens_;

  static constexpr std::array<int32_t, 256> filled_with_none() {
    std::array<int32_t, 256> roots{};
    for (auto& root : roots) root = -1;
    return roots;
  }
};

}  // namespace cadre
