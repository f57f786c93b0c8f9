// The BPE model of a tokenizer.json: vocabulary and merges; turns one pre-tokenized piece into ids. Answers as the
// Hugging Face tokenizers library does: lowest rank first, the leftmost among equals. Immutable for its callers.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/merge_table.h"
#include "tokenizer/token_table.h"

namespace cadre {

// Working memory of BpeModel::encode; one per thread.
struct BpeScratch {
  struct Node {
    TokenId id;
    int32_t previous, next;  // -1 at the ends
    uint32_t rank;           // of the merge with the next one
  };
  std::vector<TokenId> symbols;
  std::vector<Node> nodes;
  std::vector<uint64_t> queue;  // rank << 32 | position, a min-heap
};

class BpeModel {
 public:
  // Reads the "model" object. Throws Error when it is not a BPE model that is served, or contradicts itself.
  // bytes_in: pieces come as raw bytes (a ByteLevel pre-tokenizer is the last step), not as characters of the
  // vocabulary.
  BpeModel(const JsonObject& model, bool bytes_in);

  // Appends the ids of a piece. Not empty; any length, in O(n log n).
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>* ids) const;

  const TokenTable& vocabulary() const { return vocabulary_; }

 private:
  void read_vocabulary(const JsonObject& model);
  void read_merges(const JsonObject& model);
  void index_bytes();
  void index_characters();
  void encode_bytes(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>* ids) const;
  void encode_characters(std::string_view text, BpeScratch& scratch, std::vector<TokenId>* ids) const;
  void append_symbols(std::string_view text, std::vector<TokenId>* symbols) const;
  TokenId unknown_id() const;
  void merge(BpeScratch& scratch, std::vector<TokenId>* ids) const;
  void merge_short(std::vector<TokenId>& symbols, std::vector<TokenId>* ids) const;
  void merge_long(BpeScratch& scratch, std::vector<TokenId>* ids) const;

  bool bytes_in_;
  bool bytes_as_characters_ = false;  // pieces come as bytes, but the vocabulary lacks some: merge their characters
  bool ignore_merges_ = false, byte_fallback_ = false, fuse_unknown_ = false;
  std::optional<std::string> unknown_token_;
  TokenTable vocabulary_;
  TokenTable raw_;  // bytes_in: the same tokens by the bytes they stand for
  MergeTable merges_;
  std::array<TokenId, 256> byte_ids_;      // bytes_in: of each byte; else of each ASCII character; -1 when none
  std::array<TokenId, 256> fallback_ids_;  // of "<0x00>" ... "<0xFF>"; -1 when none
  // No merge makes a token with U+2581 after another character, so text may be cut before such a U+2581.
  bool cuts_before_metaspace_ = false;

  // Whether merging a token's own text gives that token: 0 not tried, 1 yes, 2 no. The answer never changes, so threads
  // may race to find it.
  std::unique_ptr<std::atomic<uint8_t>[]> merges_to_itself_;
};

}  // namespace cadre
