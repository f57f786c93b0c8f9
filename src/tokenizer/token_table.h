// Tokens by text and by id: an open-addressing table over one arena. Built once, then read by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace cadre {

class TokenTable {
 public:
  enum class Added { kNew, kTextTaken, kIdTaken };

  // Room for num_tokens in all, text_bytes together.
  void reserve(size_t num_tokens, size_t text_bytes);
  // Adds a token unless its text or its id is there already. id >= 0; memory grows with the highest id.
  Added add(std::string_view text, TokenId id);

  // -1 when there is no such token.
  TokenId find(std::string_view text) const;
  bool has(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < spans_.size() && spans_[static_cast<size_t>(id)].begin != kNone;
  }
  // Text of a token; empty when there is none.
  std::string_view text(TokenId id) const {
    if (!has(id)) return {};
    const Span span = spans_[static_cast<size_t>(id)];
    return {arena_.data() + span.begin, span.size};
  }
  size_t size() const { return num_tokens_; }
  // One more than the highest id.
  int32_t end_id() const { return static_cast<int32_t>(spans_.size()); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Span {
    uint32_t begin = kNone, size = 0;
  };
  struct Slot {
    uint32_t tag = 0;  // high half of the hash, to skip most comparisons
    TokenId id = -1;
  };
  void rehash(size_t num_slots);
  // The slot of text, or the empty one where it belongs.
  size_t slot_of(std::string_view text, uint64_t hash) const;

  std::string arena_;
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // power of two, at most half full
  size_t num_tokens_ = 0;
};

}  // namespace cadre
