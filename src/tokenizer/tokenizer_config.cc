#include "tokenizer/tokenizer_config.h"

#include <charconv>
#include <limits>

#include "base/error.h"
#include "tokenizer/json_kind.h"

namespace cadre {
namespace {

// A token written as its text or as an object with "content".
std::optional<std::string> token_text(const JsonObject& config, std::string_view key) {
  const json::value* value = config.find(key);
  if (value && value->is_object()) return config.maybe_object(key)->string("content");
  return config.maybe_string(key);
}

}  // namespace

AddedToken read_added_token(const JsonObject& token, TokenId id) {
  AddedToken added;
  added.content = token.string("content");
  added.id = id;
  added.single_word = token.maybe_boolean("single_word").value_or(false);
  added.lstrip = token.maybe_boolean("lstrip").value_or(false);
  added.rstrip = token.maybe_boolean("rstrip").value_or(false);
  added.special = token.maybe_boolean("special").value_or(false);
  added.normalized = token.maybe_boolean("normalized").value_or(!added.special);
  return added;
}

std::string read_chat_template(const JsonObject& holder) {
  const json::value* value = holder.find("chat_template");
  if (!value || !value->is_array()) return holder.maybe_string("chat_template").value_or("");
  const std::vector<JsonObject> named = json_sequence(holder, "chat_template");
  for (const JsonObject& one : named)
    if (one.string("name") == "default") return one.string("template");
  return named.size() == 1 ? named[0].string("template") : "";
}

TokenizerConfig read_tokenizer_config(const JsonObject& config) {
  TokenizerConfig read;
  read.bos_token = token_text(config, "bos_token");
  read.eos_token = token_text(config, "eos_token");
  if (config.maybe_boolean("split_special_tokens").value_or(false))
    throw unsupported(
        "{}: expected split_special_tokens false, found true; chat templates need their special tokens read",
        config.name());
  read.add_bos_token = config.maybe_boolean("add_bos_token");
  read.add_eos_token = config.maybe_boolean("add_eos_token");
  read.chat_template = read_chat_template(config);
  const auto added = config.maybe_object("added_tokens_decoder");
  if (!added) return read;
  for (const auto& entry : added->raw()) {
    const std::string_view key(entry.key().data(), entry.key().size());
    TokenId id = -1;
    const auto result = std::from_chars(key.data(), key.data() + key.size(), id);
    if (result.ec != std::errc() || result.ptr != key.data() + key.size() || id < 0)
      throw invalid_input("{}: expected ids from 0 to {} as keys, found {}; correct the file", added->name(),
                          std::numeric_limits<TokenId>::max(), cadre::quoted(key));
    read.added_tokens.push_back(
        read_added_token(json_object(entry.value(), fmt::format("{}.{}", added->name(), id)), id));
  }
  return read;
}

}  // namespace cadre
