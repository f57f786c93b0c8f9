#include "tokenizer/hf_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/json_kind.h"
#include "tokenizer/recent_characters.h"

namespace cadre {
namespace {

// As for the vocabulary: tables are indexed by id.
constexpr int64_t kMaxUnusedIds = int64_t{1} << 20;

template <typename Part>
Part read_part(const JsonObject& tokenizer, std::string_view key) {
  const auto object = tokenizer.maybe_object(key);
  return object ? Part(*object) : Part();
}

BpeModel read_model(const JsonObject& tokenizer, bool bytes_in) {
  const auto model = tokenizer.maybe_object("model");
  if (!model)
    throw invalid_input("{}: expected a 'model', found none; the file is cut or of another kind", tokenizer.name());
  return BpeModel(*model, bytes_in);
}

bool starts_with(const std::vector<TokenId>& ids, const std::vector<TokenId>& prefix) {
  return ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
}

}  // namespace

void HfTokenizer::Pieces::set(TokenId id, std::string_view bytes) {
  spans[static_cast<size_t>(id)] = {static_cast<uint32_t>(arena.size()), static_cast<uint32_t>(bytes.size())};
  arena += bytes;
}

HfTokenizer::HfTokenizer(const JsonObject& tokenizer, TokenizerConfig config)
    : config_(std::move(config)),
      normalizer_(read_part<Normalizer>(tokenizer, "normalizer")),
      pre_tokenizer_(read_part<PreTokenizer>(tokenizer, "pre_tokenizer")),
      model_(read_model(tokenizer, pre_tokenizer_.gives_bytes())),
      decoder_(read_part<Decoder>(tokenizer, "decoder")) {
  read_added_tokens(tokenizer);
  index_added_tokens();
  index_pieces();
  set_frame(tokenizer);
  config_.added_tokens.clear();
}

void HfTokenizer::read_added_tokens(const JsonObject& tokenizer) {
  const int64_t end = 4 * static_cast<int64_t>(model_.vocabulary().size()) + kMaxUnusedIds;
  if (tokenizer.maybe_array("added_tokens")) {
    for (const JsonObject& token : json_sequence(tokenizer, "added_tokens"))
      add_token(read_added_token(token, static_cast<TokenId>(token.integer("id", 0, end - 1))), token.name());
  }
  // The config repeats the tokens, and now and then has more; of what both name, tokenizer.json counts.
  for (AddedToken& token : config_.added_tokens) {
    if (token.id >= end)
      throw invalid_input("tokenizer_config.json: expected ids of added tokens below {}, found {}; correct the file",
                          end, token.id);
    if (!added_.contains(token.content)) add_token(std::move(token), "tokenizer_config.json");
  }
}

void HfTokenizer::add_token(AddedToken token, const std::string& where) {
  if (token.content.empty()) return;
  const TokenTable& vocabulary = model_.vocabulary();
  const TokenId known = id_of(token.content).value_or(-1);
  if (known >= 0 && known != token.id)
    throw invalid_input("{}: expected id {} for the added token {}, which has it elsewhere, found {}; correct the file",
                        where, known, cadre::quoted(token.content), token.id);
  if (vocabulary.has(token.id) && vocabulary.text(token.id) != token.content)
    throw invalid_input(
        "{}: expected a free id for the added token {}, found {}, which is {} in the vocabulary; correct the file",
        where, cadre::quoted(token.content), token.id, cadre::quoted(vocabulary.text(token.id)));
  if (known < 0 && !added_ids_.insert(token.id).second)
    throw invalid_input("{}: expected a free id for the added token {}, found {}, which another has; correct the file",
                        where, cadre::quoted(token.content), token.id);
  added_.insert_or_assign(token.content, std::move(token));
}

void HfTokenizer::index_added_tokens() {
  Scratch scratch;
  for (const auto& [content, token] : added_) {
    if (token.special && static_cast<size_t>(token.id) >= special_.size())
      special_.resize(static_cast<size_t>(token.id) + 1);
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
    if (!token.normalized) {
      plain_finder_.add(content, token);
      continue;
    }
    const std::string pattern = normalizer_.apply(content, scratch.match);
    if (!pattern.empty()) normalized_finder_.add(pattern, token);
    if (pattern != content) normalized_content_[token.id] = pattern;
  }
}

void HfTokenizer::index_pieces() {
  const TokenTable& vocabulary = model_.vocabulary();
  int32_t end = vocabulary.end_id();
  for (const auto& [content, token] : added_) end = std::max(end, token.id + 1);
  pieces_.spans.resize(static_cast<size_t>(end));
  if (decoder_.has_first_piece()) first_pieces_.spans.resize(static_cast<size_t>(end));
  const auto set = [&](TokenId id, std::string_view text) {
    pieces_.set(id, decoder_.piece(text));
    if (decoder_.has_first_piece()) first_pieces_.set(id, decoder_.first_piece(text));
  };
  for (TokenId id = 0; id < vocabulary.end_id(); ++id)
    if (vocabulary.has(id)) set(id, vocabulary.text(id));
  for (const auto& [content, token] : added_) {
    // The decoder undoes normalization, so it is given the normalized form.
    const auto found = normalized_content_.find(token.id);
    if (!vocabulary.has(token.id) || found != normalized_content_.end())
      set(token.id, found != normalized_content_.end() ? found->second : content);
  }
}

std::optional<TokenId> HfTokenizer::configured_id(const std::optional<std::string>& token, const char* what) const {
  if (!token || token->empty()) return std::nullopt;
  const auto id = id_of(*token);
  if (!id)
    throw invalid_input("tokenizer_config.json: expected a token of the vocabulary as {}, found {}; correct the file",
                        what, cadre::quoted(*token));
  return id;
}

void HfTokenizer::set_frame(const JsonObject& tokenizer) {
  bos_id_ = configured_id(config_.bos_token, "bos_token");
  eos_id_ = configured_id(config_.eos_token, "eos_token");
  if (const auto processor = tokenizer.maybe_object("post_processor")) frame_ = read_post_processor(*processor);
  if (!config_.add_bos_token && !config_.add_eos_token) return;
  // Either flag of the config replaces the post-processor's tokens, as transformers has it.
  const auto one = [](std::optional<bool> add, const std::optional<TokenId>& id, const char* what) {
    if (!add.value_or(false)) return std::vector<TokenId>{};
    if (!id)
      throw invalid_input("tokenizer_config.json: expected a {0}_token beside add_{0}_token true, found none; name it",
                          what);
    return std::vector<TokenId>{*id};
  };
  if (config_.add_bos_token) frame_.prefix = one(config_.add_bos_token, bos_id_, "bos");
  if (config_.add_eos_token) frame_.suffix = one(config_.add_eos_token, eos_id_, "eos");
}

std::vector<TokenId> HfTokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (!utf8::is_valid(text)) throw invalid_input("expected text in UTF-8, found invalid bytes; encode it as UTF-8");
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3 + 2);
  Scratch scratch;
  scratch.match.set_has_recent_characters(has_recent_characters(text));
  plain_finder_.split(text, [&](size_t begin, size_t end, TokenId id) {
    if (id >= 0) return ids.push_back(id);
    encode_plain(text.substr(begin, end - begin), begin == 0, scratch, &ids);
  });
  if (!add_special_tokens) return ids;
  if (!starts_with(ids, frame_.prefix)) ids.insert(ids.begin(), frame_.prefix.begin(), frame_.prefix.end());
  ids.insert(ids.end(), frame_.suffix.begin(), frame_.suffix.end());
  return ids;
}

// A part without plain added tokens.
void HfTokenizer::encode_plain(std::string_view text, bool starts_text, Scratch& scratch,
                               std::vector<TokenId>* ids) const {
  if (normalizer_.is_identity()) return encode_normalized(text, starts_text, scratch, ids);
  encode_normalized(normalizer_.apply(text, scratch.match), starts_text, scratch, ids);
}

void HfTokenizer::encode_normalized(std::string_view text, bool starts_text, Scratch& scratch,
                                    std::vector<TokenId>* ids) const {
  normalized_finder_.split(text, [&](size_t begin, size_t end, TokenId id) {
    if (id >= 0) return ids->push_back(id);
    pre_tokenizer_.run(text.substr(begin, end - begin), starts_text && begin == 0, scratch.match,
                       [&](std::string_view piece, bool) { model_.encode(piece, scratch.bpe, ids); });
  });
}

std::string HfTokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  return decode_pieces(*this, ids, skip_special_tokens);
}

bool HfTokenizer::is_special(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < special_.size() && special_[static_cast<size_t>(id)];
}

std::optional<TokenId> HfTokenizer::id_of(std::string_view token) const {
  const auto added = added_.find(token);
  if (added != added_.end()) return added->second.id;
  const TokenId id = model_.vocabulary().find(token);
  return id >= 0 ? std::optional<TokenId>(id) : std::nullopt;
}

}  // namespace cadre
