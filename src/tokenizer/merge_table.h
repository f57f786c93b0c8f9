// Which neighbouring tokens merge, at which rank (lower first), into what. Built once, then read by any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace cadre {

class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Entry {
    TokenId left = -1, right = -1;  // -1: an empty slot
    uint32_t rank = kNoRank;
    TokenId merged = -1;
  };

  // Room for num_merges; call once, before set.
  void reserve(size_t num_merges) { slots_.assign(std::bit_ceil(std::max<size_t>(16, 2 * num_merges)), Entry{}); }

  // A pair named twice keeps its later rank, as the reference implementation has it.
  void set(TokenId left, TokenId right, uint32_t rank, TokenId merged) {
    slots_[slot_of(left, right)] = {left, right, rank, merged};
  }

  // The pair's entry; rank is kNoRank when it does not merge.
  const Entry& find(TokenId left, TokenId right) const { return slots_[slot_of(left, right)]; }

 private:
  size_t slot_of(TokenId left, TokenId right) const {
    const uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
    const size_t mask = slots_.size() - 1;
    size_t at = (key * 0x9E3779B97F4A7C15 ^ (key * 0xD6E8FEB86659FD93) >> 32) & mask;
    while (slots_[at].left >= 0 && (slots_[at].left != left || slots_[at].right != right)) at = (at + 1) & mask;
    return at;
  }

  std::vector<Entry> slots_ = std::vector<Entry>(16);
};

}  // namespace cadre
