#include "tokenizer/bpe.h"

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"

namespace cadre {
namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581
// Tables are indexed by id, so ids may not lie far beyond the number of tokens.
constexpr int64_t kMaxUnusedIds = int64_t{1} << 20;
// Up to this many symbols scanning for the lowest rank is faster than a heap.
constexpr size_t kShortPiece = 48;

enum : uint8_t { kNotTried = 0, kYes = 1, kNo = 2 };

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

size_t character_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

void refuse_unserved(const JsonObject& model) {
  const std::string type = model.maybe_string("type").value_or("BPE");
  if (type != "BPE")
    throw unsupported(
        "{}: expected a model of type BPE, found {}; Unigram, WordPiece and WordLevel tokenizers are not served",
        model.name(), cadre::quoted(type));
  if (model.maybe_number("dropout").value_or(0) != 0)
    throw unsupported("{}: expected no dropout, found {}; set it to null, serving needs one answer", model.name(),
                      model.number("dropout"));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string affix = model.maybe_string(key).value_or("");
    if (!affix.empty())
      throw unsupported("{}: expected no {}, found {}; such vocabularies are not served", model.name(), key,
                        cadre::quoted(affix));
  }
}

// The two tokens of a merge, written as ["a", "b"] or "a b".
std::pair<std::string_view, std::string_view> merge_pair(const json::value& value, const JsonObject& model,
                                                         size_t rank) {
  if (value.is_array() && value.get_array().size() == 2 && value.get_array()[0].is_string() &&
      value.get_array()[1].is_string())
    return {view(value.get_array()[0].get_string()), view(value.get_array()[1].get_string())};
  if (value.is_string()) {
    const std::string_view text = view(value.get_string());
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  throw invalid_input("{}.merges[{}]: expected two tokens as \"a b\" or [\"a\", \"b\"], found {}; correct the file",
                      model.name(), rank, describe(value));
}

// True when text has U+2581 behind another character than U+2581.
bool has_metaspace_inside(std::string_view text) {
  for (size_t at = text.find(kMetaspace, 1); at != text.npos; at = text.find(kMetaspace, at + 1))
    if (!text.substr(0, at).ends_with(kMetaspace)) return true;
  return false;
}

}  // namespace

BpeModel::BpeModel(const JsonObject& model, bool bytes_in) : bytes_in_(bytes_in) {
  refuse_unserved(model);
  ignore_merges_ = model.maybe_boolean("ignore_merges").value_or(false);
  byte_fallback_ = model.maybe_boolean("byte_fallback").value_or(false);
  fuse_unknown_ = model.maybe_boolean("fuse_unk").value_or(false);
  unknown_token_ = model.maybe_string("unk_token");
  byte_ids_.fill(-1);
  fallback_ids_.fill(-1);
  read_vocabulary(model);
  read_merges(model);
  if (bytes_in_) index_bytes();
  if (!bytes_in_) index_characters();
  merges_to_itself_ = std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(vocabulary_.end_id()));
}

void BpeModel::read_vocabulary(const JsonObject& model) {
  const auto vocab = model.maybe_object("vocab");
  if (!vocab)
    throw invalid_input("{}: expected a 'vocab' of tokens and ids, found none; the file is cut or of another kind",
                        model.name());
  const json::object& tokens = vocab->raw();
  size_t text_bytes = 0;
  for (const auto& token : tokens) text_bytes += token.key().size();
  vocabulary_.reserve(tokens.size(), text_bytes);
  const int64_t end = 4 * static_cast<int64_t>(tokens.size()) + kMaxUnusedIds;
  for (const auto& token : tokens) {
    const std::string_view text(token.key().data(), token.key().size());
    const json::value& id = token.value();
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= end)
      throw invalid_input("{}: expected an id from 0 to {} for token {}, found {}; correct the file", vocab->name(),
                          end - 1, cadre::quoted(text), describe(id));
    const auto number = static_cast<TokenId>(id.get_int64());
    if (vocabulary_.add(text, number) != TokenTable::Added::kNew)
      throw invalid_input("{}: expected each id once, found {} for {} and for {}; correct the file", vocab->name(),
                          number, cadre::quoted(vocabulary_.text(number)), cadre::quoted(text));
  }
}

void BpeModel::read_merges(const JsonObject& model) {
  const json::array* merges = model.maybe_array("merges");
  if (!merges)
    throw invalid_input("{}: expected a list 'merges', found none; the file is cut or of another kind", model.name());
  merges_.reserve(merges->size());
  cuts_before_metaspace_ = !bytes_in_ && vocabulary_.find(kMetaspace) >= 0;
  std::string merged;
  uint32_t rank = 0;
  for (size_t i = 0; i < merges->size(); ++i) {
    const json::value& value = (*merges)[i];
    if (value.is_string() && view(value.get_string()).starts_with("#version")) continue;
    const auto [left, right] = merge_pair(value, model, i);
    merged.assign(left).append(right);
    const TokenId left_id = vocabulary_.find(left), right_id = vocabulary_.find(right),
                  merged_id = vocabulary_.find(merged);
    if (left_id < 0 || right_id < 0 || merged_id < 0)
      throw invalid_input("{}.merges[{}]: expected tokens of the vocabulary, found {}, which is none; correct the file",
                          model.name(), i,
                          cadre::quoted(left_id < 0    ? left
                                        : right_id < 0 ? right
                                                       : merged));
    merges_.set(left_id, right_id, rank++, merged_id);
    if (cuts_before_metaspace_ && has_metaspace_inside(merged)) cuts_before_metaspace_ = false;
  }
}

// Bytes go by a table of 256 when each byte that text can hold has its token.
void BpeModel::index_bytes() {
  for (int byte = 0; byte < 256; ++byte) {
    const auto at = static_cast<size_t>(byte);
    byte_ids_[at] = vocabulary_.find(character_of_byte(static_cast<unsigned char>(byte)));
    const bool in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    if (in_utf8 && byte_ids_[at] < 0) {
      bytes_in_ = false;
      bytes_as_characters_ = true;
      return;
    }
  }
  raw_.reserve(static_cast<size_t>(vocabulary_.end_id()), vocabulary_.size() * 8);
  for (TokenId id = 0; id < vocabulary_.end_id(); ++id) {
    if (!vocabulary_.has(id)) continue;
    if (const auto bytes = alphabet_bytes(vocabulary_.text(id))) raw_.add(*bytes, id);
  }
}

void BpeModel::index_characters() {
  for (int c = 0; c < 256; ++c) {
    const char character = static_cast<char>(c);
    byte_ids_[static_cast<size_t>(c)] = c < 0x80 ? vocabulary_.find({&character, 1}) : -1;
    fallback_ids_[static_cast<size_t>(c)] = vocabulary_.find(fmt::format("<0x{:02X}>", c));
  }
}

void BpeModel::encode(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>* ids) const {
  CADRE_CHECK(!piece.empty());
  if (bytes_in_) return encode_bytes(piece, scratch, ids);
  std::string characters;
  if (bytes_as_characters_) piece = characters = alphabet_text(piece);
  if (ignore_merges_) {
    const TokenId id = vocabulary_.find(piece);
    if (id >= 0) return ids->push_back(id);
  }
  if (!cuts_before_metaspace_) return encode_characters(piece, scratch, ids);
  while (!piece.empty()) {
    // To the next U+2581 behind another character.
    size_t cut = piece.find(kMetaspace, 1);
    while (cut != piece.npos && piece.substr(0, cut).ends_with(kMetaspace)) cut = piece.find(kMetaspace, cut + 1);
    encode_characters(piece.substr(0, cut), scratch, ids);
    piece.remove_prefix(std::min(cut, piece.size()));
  }
}

void BpeModel::encode_bytes(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>* ids) const {
  const TokenId whole = raw_.find(piece);
  std::atomic<uint8_t>* memo = whole >= 0 ? &merges_to_itself_[static_cast<size_t>(whole)] : nullptr;
  if (whole >= 0 && (ignore_merges_ || memo->load(std::memory_order_relaxed) == kYes)) return ids->push_back(whole);
  scratch.symbols.clear();
  for (const char byte : piece) scratch.symbols.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
  const size_t before = ids->size();
  merge(scratch, ids);
  if (memo) memo->store(ids->size() == before + 1 && ids->back() == whole ? kYes : kNo, std::memory_order_relaxed);
}

void BpeModel::encode_characters(std::string_view text, BpeScratch& scratch, std::vector<TokenId>* ids) const {
  const TokenId whole = vocabulary_.find(text);
  std::atomic<uint8_t>* memo = whole >= 0 ? &merges_to_itself_[static_cast<size_t>(whole)] : nullptr;
  if (memo && memo->load(std::memory_order_relaxed) == kYes) return ids->push_back(whole);
  scratch.symbols.clear();
  append_symbols(text, &scratch.symbols);
  const size_t before = ids->size();
  merge(scratch, ids);
  if (memo) memo->store(ids->size() == before + 1 && ids->back() == whole ? kYes : kNo, std::memory_order_relaxed);
}

// One symbol per character; bytes or the unknown token for a character without one. A character that has none of these
// is dropped. An unknown token is written when the next known character comes, so bytes in between come before it: so
// does the reference implementation.
void BpeModel::append_symbols(std::string_view text, std::vector<TokenId>* symbols) const {
  TokenId pending = -1;
  while (!text.empty()) {
    const size_t length = character_length(text[0]);
    const std::string_view character = text.substr(0, length);
    text.remove_prefix(length);
    const TokenId id = length == 1 ? byte_ids_[static_cast<unsigned char>(character[0])] : vocabulary_.find(character);
    if (id >= 0) {
      if (pending >= 0) symbols->push_back(pending);
      pending = -1;
      symbols->push_back(id);
      continue;
    }
    const auto fallback = [&](char byte) { return fallback_ids_[static_cast<unsigned char>(byte)]; };
    if (byte_fallback_ &&
        std::all_of(character.begin(), character.end(), [&](char byte) { return fallback(byte) >= 0; })) {
      for (const char byte : character) symbols->push_back(fallback(byte));
      continue;
    }
    if (!unknown_token_ || (pending >= 0 && fuse_unknown_)) continue;
    if (pending >= 0) symbols->push_back(pending);
    pending = unknown_id();
  }
  if (pending >= 0) symbols->push_back(pending);
}

TokenId BpeModel::unknown_id() const {
  const TokenId id = vocabulary_.find(*unknown_token_);
  if (id < 0)
    throw invalid_input(
        "expected the tokenizer's unk_token {} in its vocabulary, which it is not; the text has a character that "
        "needs it",
        cadre::quoted(*unknown_token_));
  return id;
}

void BpeModel::merge(BpeScratch& scratch, std::vector<TokenId>* ids) const {
  if (scratch.symbols.size() <= kShortPiece) {
    merge_short(scratch.symbols, ids);
  } else {
    merge_long(scratch, ids);
  }
}

void BpeModel::merge_short(std::vector<TokenId>& symbols, std::vector<TokenId>* ids) const {
  size_t n = symbols.size();
  std::array<uint32_t, kShortPiece> rank;  // of symbol i with symbol i + 1
  std::array<TokenId, kShortPiece> merged;
  const auto look_up = [&](size_t i) {
    const auto& entry = merges_.find(symbols[i], symbols[i + 1]);
    rank[i] = entry.rank;
    merged[i] = entry.merged;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    const size_t at = static_cast<size_t>(
        std::min_element(rank.begin(), rank.begin() + static_cast<std::ptrdiff_t>(n - 1)) - rank.begin());
    if (rank[at] == MergeTable::kNoRank) break;
    symbols[at] = merged[at];
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(at + 2), symbols.begin() + static_cast<std::ptrdiff_t>(n),
              symbols.begin() + static_cast<std::ptrdiff_t>(at + 1));
    std::copy(rank.begin() + at + 1, rank.begin() + (n - 1), rank.begin() + at);
    std::copy(merged.begin() + at + 1, merged.begin() + (n - 1), merged.begin() + at);
    --n;
    if (at > 0) look_up(at - 1);
    if (at + 1 < n) look_up(at);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(n));
}

void BpeModel::merge_long(BpeScratch& scratch, std::vector<TokenId>* ids) const {
  auto& nodes = scratch.nodes;
  auto& queue = scratch.queue;
  const auto count = static_cast<int32_t>(scratch.symbols.size());
  nodes.clear();
  queue.clear();
  for (int32_t i = 0; i < count; ++i)
    nodes.push_back({scratch.symbols[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1, MergeTable::kNoRank});
  const auto node = [&](int32_t i) -> BpeScratch::Node& { return nodes[static_cast<size_t>(i)]; };
  // Looks up the merge of node i with its next one; true when there is one.
  const auto look_up = [&](int32_t i) {
    BpeScratch::Node& left = node(i);
    left.rank = left.next < 0 ? MergeTable::kNoRank : merges_.find(left.id, node(left.next).id).rank;
    if (left.rank == MergeTable::kNoRank) return false;
    queue.push_back(uint64_t{left.rank} << 32 | static_cast<uint32_t>(i));
    return true;
  };
  for (int32_t i = 0; i < count; ++i) look_up(i);
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const uint64_t top = queue.back();
    queue.pop_back();
    const auto at = static_cast<int32_t>(static_cast<uint32_t>(top));
    BpeScratch::Node& left = node(at);
    if (left.rank != static_cast<uint32_t>(top >> 32)) continue;  // the pair has changed since
    BpeScratch::Node& right = node(left.next);
    left.id = merges_.find(left.id, right.id).merged;
    left.next = right.next;
    right.rank = MergeTable::kNoRank;
    if (left.next >= 0) node(left.next).previous = at;
    if (look_up(at)) std::push_heap(queue.begin(), queue.end(), std::greater<>());
    if (left.previous >= 0 && look_up(left.previous)) std::push_heap(queue.begin(), queue.end(), std::greater<>());
  }
  for (int32_t i = 0; i >= 0; i = node(i).next) ids->push_back(node(i).id);
}

}  // namespace cadre
