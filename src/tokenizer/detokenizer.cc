#include "tokenizer/detokenizer.h"

#include "base/check.h"
#include "base/utf8.h"

namespace cadre {
namespace {

// Appends the bytes of one token; *at_start says that no bytes came before it.
void append_bytes(const Tokenizer& tokenizer, TokenId id, bool skip_special_tokens, bool* at_start,
                  std::string* bytes) {
  CADRE_CHECK(id >= 0, "token id {}", id);
  if (skip_special_tokens && tokenizer.is_special(id)) return;
  // What a stripped first token leaves may be nothing; it was the first all the same.
  if (tokenizer.piece(id).empty()) return;
  bytes->append(*at_start ? tokenizer.first_piece(id) : tokenizer.piece(id));
  *at_start = false;
}

}  // namespace

std::string decode_pieces(const Tokenizer& tokenizer, std::span<const TokenId> ids, bool skip_special_tokens) {
  std::string bytes;
  bool at_start = true;
  for (const TokenId id : ids) append_bytes(tokenizer, id, skip_special_tokens, &at_start, &bytes);
  return utf8::is_valid(bytes) ? bytes : utf8::replace_invalid(bytes);
}

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

void IncrementalDetokenizer::push(TokenId id, std::string* text) {
  append_bytes(tokenizer_, id, skip_special_tokens_, &at_start_, &held_);
  const size_t complete = utf8::complete_length(held_);
  if (complete == 0) return;
  const std::string_view ready(held_.data(), complete);
  if (utf8::is_valid(ready)) {
    text->append(ready);
  } else {
    // A cut character begins a part of its own, so what is replaced here is what the whole text would have replaced.
    text->append(utf8::replace_invalid(ready));
  }
  held_.erase(0, complete);
}

void IncrementalDetokenizer::finish(std::string* text) {
  text->append(utf8::replace_invalid(held_));
  held_.clear();
}

}  // namespace cadre
