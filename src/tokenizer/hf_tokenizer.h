// The Tokenizer of a Hugging Face tokenizer.json. Answers as the tokenizers library (0.2x) does, and adds the begin and
// end tokens as transformers does.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_config.h"

namespace cadre {

class HfTokenizer final : public Tokenizer {
 public:
  // Throws Error when the file is of a kind that is not served or contradicts itself.
  HfTokenizer(const JsonObject& tokenizer, TokenizerConfig config);

  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const override;
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  std::string_view piece(TokenId id) const override { return pieces_.view(id); }
  std::string_view first_piece(TokenId id) const override {
    return first_pieces_.empty() ? pieces_.view(id) : first_pieces_.view(id);
  }
  bool is_special(TokenId id) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.spans.size()); }
  std::optional<TokenId> id_of(std::string_view token) const override;
  std::optional<TokenId> bos_id() const override { return bos_id_; }
  std::optional<TokenId> eos_id() const override { return eos_id_; }
  const std::string& chat_template() const override { return config_.chat_template; }

 private:
  struct Scratch {
    MatchScratch match;
    BpeScratch bpe;
  };
  // Bytes by id.
  struct Pieces {
    struct Span {
      uint32_t begin = 0, size = 0;
    };
    std::string arena;
    std::vector<Span> spans;
    bool empty() const { return spans.empty(); }
    std::string_view view(TokenId id) const {
      if (id < 0 || static_cast<size_t>(id) >= spans.size()) return {};
      const Span span = spans[static_cast<size_t>(id)];
      return std::string_view(arena).substr(span.begin, span.size);
    }
    void set(TokenId id, std::string_view bytes);
  };

  void read_added_tokens(const JsonObject& tokenizer);
  void add_token(AddedToken token, const std::string& where);
  void index_added_tokens();
  void index_pieces();
  void set_frame(const JsonObject& tokenizer);
  std::optional<TokenId> configured_id(const std::optional<std::string>& token, const char* what) const;
  void encode_plain(std::string_view text, bool starts_text, Scratch& scratch, std::vector<TokenId>* ids) const;
  void encode_normalized(std::string_view text, bool starts_text, Scratch& scratch, std::vector<TokenId>* ids) const;

  TokenizerConfig config_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  BpeModel model_;
  Decoder decoder_;
  std::map<std::string, AddedToken, std::less<>> added_;  // by content
  std::set<TokenId> added_ids_;                           // of added tokens outside of the vocabulary
  std::map<TokenId, std::string> normalized_content_;     // of added tokens that normalization changes
  AddedTokenFinder plain_finder_, normalized_finder_;
  std::vector<bool> special_;  // by id, as far as the highest special one
  Pieces pieces_, first_pieces_;
  std::optional<TokenId> bos_id_, eos_id_;
  SpecialFrame frame_;
};

}  // namespace cadre
