// The simplest tokenizer, for scripted models in tests: ids 0..255 are bytes, special tokens follow in the given order.
// It keeps every promise of Tokenizer; it is not read from files.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace cadre {

struct ByteTokenizerOptions {
  std::vector<std::string> special_tokens = {"<|begin|>", "<|end|>"};  // ids 256, 257, ...; not empty, distinct
  std::string bos_token = "<|begin|>";                                 // one of special_tokens, or empty for none
  std::string eos_token = "<|end|>";
  bool add_bos_token = true;
  std::string chat_template =
      "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant: {% endif %}";
};

class ByteTokenizer final : public Tokenizer {
 public:
  // Throws Error when a special token is empty or repeated, or bos_token or eos_token is not among them.
  explicit ByteTokenizer(ByteTokenizerOptions options = {});

  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const override;
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  std::string_view piece(TokenId id) const override;
  bool is_special(TokenId id) const override;
  int32_t vocab_size() const override;
  std::optional<TokenId> id_of(std::string_view token) const override;
  std::optional<TokenId> bos_id() const override { return bos_id_; }
  std::optional<TokenId> eos_id() const override { return eos_id_; }
  const std::string& chat_template() const override { return options_.chat_template; }

 private:
  std::optional<TokenId> special_id(std::string_view token) const;

  ByteTokenizerOptions options_;
  std::string bytes_;  // the 256 bytes in order; pieces point into it
  std::optional<TokenId> bos_id_, eos_id_;
};

}  // namespace cadre
