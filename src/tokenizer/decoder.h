// The decoder of a tokenizer.json, applied to each token once at load: from then on a text is its tokens' bytes in a
// row.
// One difference from the tokenizers library: where byte tokens in a row make no valid UTF-8, only the bytes that are wrong
// become U+FFFD, not every byte of the row; a stream could not know the row's end.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/pattern.h"

namespace cadre {

class Decoder {
 public:
  // Without a decoder, tokens are joined by spaces.
  Decoder();
  // Reads the "decoder" object. Throws Error for types, and orders of types, that are not served.
  explicit Decoder(const JsonObject& decoder);

  // Bytes of a token in a text after other bytes.
  std::string piece(std::string_view token) const { return apply(token, false); }
  // Bytes of a token that no other bytes precede.
  std::string first_piece(std::string_view token) const { return apply(token, true); }
  // Whether the two can differ.
  bool has_first_piece() const { return has_first_piece_; }

 private:
  // Rewrites the text of one token.
  using Step = std::function<void(std::string& token, bool is_first)>;
  std::string apply(std::string_view token, bool is_first) const;
  void read(const JsonObject& decoder);
  void read_replace(const JsonObject& part);
  void read_strip(const JsonObject& part);
  void read_metaspace(const JsonObject& part);
  void refuse_after(bool condition, const JsonObject& part, std::string_view before) const;

  std::vector<Step> steps_;
  bool has_first_piece_ = false;
  bool has_bytes_ = false;  // ByteFallback or ByteLevel was among the steps: tokens are no longer whole characters
  bool is_fused_ = false;   // Fuse was: later steps see the whole text
};

}  // namespace cadre
