// Text to token ids and back. Tokenizer is what the rest of the program sees; load_tokenizer reads a Hugging Face
// tokenizer.json (byte-level BPE, or BPE with metaspace and byte fallback). Immutable after construction: any thread
// may use it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cadre {

using TokenId = int32_t;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of text. Invalid UTF-8 is refused with Error. Added tokens written in the text ("<|end|>") become their ids.
  // add_special_tokens: apply the begin (and end) tokens the tokenizer's own files ask for (add_bos_token,
  // post-processor templates); never a second begin token when the text already starts with it.
  virtual std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const = 0;

  // Text of ids; invalid UTF-8 becomes U+FFFD. skip_special_tokens drops added tokens marked special. Ids without a
  // token (padding rows of the embedding) decode to nothing; ids outside [0, 2^31) are the caller's bug.
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const = 0;

  // The bytes token `id` contributes to a text in which it follows other bytes (not necessarily whole characters);
  // empty for ids without a token. decode(ids) == replace_invalid(first_piece of the first, then the pieces).
  virtual std::string_view piece(TokenId id) const = 0;
  // The bytes `id` contributes when no token before it contributed any: sentencepiece-style decoders drop a leading
  // space.
  virtual std::string_view first_piece(TokenId id) const { return piece(id); }

  virtual bool is_special(TokenId id) const = 0;
  // One more than the highest id that has a token (the model's vocabulary may be larger: padding rows).
  virtual int32_t vocab_size() const = 0;
  // The id of exactly this token text, or nullopt.
  virtual std::optional<TokenId> id_of(std::string_view token) const = 0;

  // From tokenizer_config.json; empty or nullopt when the files name none.
  virtual std::optional<TokenId> bos_id() const = 0;
  virtual std::optional<TokenId> eos_id() const = 0;
  // The chat template of tokenizer_config.json or chat_template.jinja; empty when there is none.
  virtual const std::string& chat_template() const = 0;
};

// Reads tokenizer.json, tokenizer_config.json and chat_template.jinja or chat_template.json (all but the first
// optional) from a model folder. Throws Error for kinds that are not served (Unigram, WordPiece), naming what was
// found.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_dir);

// The same from the files' text. config_json: tokenizer_config.json, empty for none. chat_template: a template that
// takes the place of the config's, when not empty.
std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view tokenizer_json, std::string_view config_json = {},
                                               std::string chat_template = {});

}  // namespace cadre
