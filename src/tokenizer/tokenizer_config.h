// What a tokenizer_config.json says that tokenizer.json does not: begin and end tokens, chat template, further added
// tokens.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/added_tokens.h"

namespace cadre {

struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token;
  std::optional<bool> add_bos_token, add_eos_token;  // unset: as the post-processor of tokenizer.json has it
  std::string chat_template;                         // empty when there is none
  std::vector<AddedToken> added_tokens;              // "added_tokens_decoder"
};

// Reads the file's object. Throws Error for values of the wrong type.
TokenizerConfig read_tokenizer_config(const JsonObject& config);

// The template a "chat_template" value holds: a string, or a list of named ones, of which "default" is taken. Empty for
// a list without it that names several.
std::string read_chat_template(const JsonObject& holder);

// One added token with its flags; the id comes apart, each file writes it elsewhere.
AddedToken read_added_token(const JsonObject& token, TokenId id);

}  // namespace cadre
