// A tokenizer of given pieces, for tests that need tokens of several bytes, half characters and special tokens. It does
// not encode.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace cadre::testing {

class PieceTokenizer final : public Tokenizer {
 public:
  // The last num_special pieces are special tokens.
  explicit PieceTokenizer(std::vector<std::string> pieces, size_t num_special = 0)
      : pieces_(std::move(pieces)), num_special_(num_special) {}

  std::vector<TokenId> encode(std::string_view, bool) const override { throw std::logic_error("PieceTokenizer encodes nothing"); }
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override {
    return decode_pieces(*this, ids, skip_special_tokens);
  }
  std::string_view piece(TokenId id) const override {
    return static_cast<size_t>(id) < pieces_.size() ? std::string_view(pieces_[static_cast<size_t>(id)]) : std::string_view();
  }
  bool is_special(TokenId id) const override {
    return static_cast<size_t>(id) < pieces_.size() && static_cast<size_t>(id) + num_special_ >= pieces_.size();
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  std::optional<TokenId> id_of(std::string_view) const override { return std::nullopt; }
  std::optional<TokenId> bos_id() const override { return std::nullopt; }
  std::optional<TokenId> eos_id() const override { return std::nullopt; }
  const std::string& chat_template() const override { return template_; }

 private:
  std::vector<std::string> pieces_;
  size_t num_special_;
  std::string template_;
};

}  // namespace cadre::testing
