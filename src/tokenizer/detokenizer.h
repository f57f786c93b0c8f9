// Incremental detokenizer: text as tokens arrive, never a broken character; the pieces together equal decode() of all
// ids.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace cadre {

// Tokenizer::decode in terms of piece and first_piece, for implementations to share.
std::string decode_pieces(const Tokenizer& tokenizer, std::span<const TokenId> ids, bool skip_special_tokens);

class IncrementalDetokenizer {
 public:
  // The tokenizer must outlive the object. skip_special_tokens as in Tokenizer::decode.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);

  // Appends to *text what became showable with this token. At most 3 bytes (a cut character) are held back.
  void push(TokenId id, std::string* text);
  // End of the stream: appends what is still held back, U+FFFD for a character that never completed.
  void finish(std::string* text);
  // Bytes of a cut character that are held back.
  size_t num_held_bytes() const { return held_.size(); }

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  bool at_start_ = true;
  std::string held_;
};

}  // namespace cadre
