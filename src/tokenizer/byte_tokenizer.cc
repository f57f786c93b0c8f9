#include "tokenizer/byte_tokenizer.h"

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/detokenizer.h"

namespace cadre {
namespace {

constexpr TokenId kNumBytes = 256;

}  // namespace

ByteTokenizer::ByteTokenizer(ByteTokenizerOptions options) : options_(std::move(options)) {
  for (int byte = 0; byte < kNumBytes; ++byte) bytes_ += static_cast<char>(byte);
  const auto& specials = options_.special_tokens;
  for (size_t i = 0; i < specials.size(); ++i) {
    if (specials[i].empty()) throw invalid_input("expected special tokens with text, found an empty one; name it");
    if (special_id(specials[i]) != kNumBytes + static_cast<TokenId>(i))
      throw invalid_input("expected distinct special tokens, found {} twice; drop one", cadre::quoted(specials[i]));
  }
  const auto named = [&](const std::string& token, const char* what) -> std::optional<TokenId> {
    if (token.empty()) return std::nullopt;
    const auto id = special_id(token);
    if (!id) throw invalid_input("expected {} among the special tokens, found {}; add it", what, cadre::quoted(token));
    return id;
  };
  bos_id_ = named(options_.bos_token, "bos_token");
  eos_id_ = named(options_.eos_token, "eos_token");
}

std::vector<TokenId> ByteTokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (!utf8::is_valid(text)) throw invalid_input("expected a prompt in UTF-8, found invalid bytes; encode it as UTF-8");
  std::vector<TokenId> ids;
  ids.reserve(text.size() + 1);
  while (!text.empty()) {
    TokenId best = static_cast<unsigned char>(text[0]);
    size_t best_bytes = 1;
    for (size_t i = 0; i < options_.special_tokens.size(); ++i) {
      const std::string& token = options_.special_tokens[i];
      if (!text.starts_with(token) || (best >= kNumBytes && token.size() <= best_bytes)) continue;
      best = kNumBytes + static_cast<TokenId>(i);
      best_bytes = token.size();
    }
    ids.push_back(best);
    text.remove_prefix(best_bytes);
  }
  if (add_special_tokens && options_.add_bos_token && bos_id_ && (ids.empty() || ids[0] != *bos_id_))
    ids.insert(ids.begin(), *bos_id_);
  return ids;
}

std::string ByteTokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  return decode_pieces(*this, ids, skip_special_tokens);
}

std::string_view ByteTokenizer::piece(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  if (id < kNumBytes) return std::string_view(bytes_).substr(static_cast<size_t>(id), 1);
  return options_.special_tokens[static_cast<size_t>(id - kNumBytes)];
}

bool ByteTokenizer::is_special(TokenId id) const { return id >= kNumBytes && id < vocab_size(); }

int32_t ByteTokenizer::vocab_size() const { return kNumBytes + static_cast<int32_t>(options_.special_tokens.size()); }

std::optional<TokenId> ByteTokenizer::special_id(std::string_view token) const {
  for (size_t i = 0; i < options_.special_tokens.size(); ++i)
    if (options_.special_tokens[i] == token) return kNumBytes + static_cast<TokenId>(i);
  return std::nullopt;
}

std::optional<TokenId> ByteTokenizer::id_of(std::string_view token) const {
  if (token.size() == 1) return static_cast<unsigned char>(token[0]);
  return special_id(token);
}

}  // namespace cadre
