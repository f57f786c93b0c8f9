#include "tokenizer/token_table.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace cadre {
namespace {

constexpr uint64_t kMix1 = 0x9E3779B97F4A7C15, kMix2 = 0xD6E8FEB86659FD93;

uint64_t load(const char* at, size_t size) {
  uint64_t value = 0;
  std::memcpy(&value, at, size);
  return value;
}

uint64_t multiply_fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_of(std::string_view text) {
  uint64_t hash = kMix1 ^ text.size();
  const char* at = text.data();
  size_t left = text.size();
  for (; left > 8; at += 8, left -= 8) hash = multiply_fold(hash ^ load(at, 8), kMix2);
  if (left > 0) hash ^= load(at, left);
  return multiply_fold(hash, kMix2);
}

}  // namespace

void TokenTable::reserve(size_t num_tokens, size_t text_bytes) {
  arena_.reserve(text_bytes);
  spans_.reserve(num_tokens);
  const size_t num_slots = std::bit_ceil(std::max<size_t>(16, 2 * num_tokens));
  if (num_slots > slots_.size()) rehash(num_slots);
}

size_t TokenTable::slot_of(std::string_view text, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot slot = slots_[at];
    if (slot.id < 0 || (slot.tag == tag && this->text(slot.id) == text)) return at;
  }
}

void TokenTable::rehash(size_t num_slots) {
  slots_.assign(num_slots, Slot{});
  for (TokenId id = 0; id < end_id(); ++id) {
    if (!has(id)) continue;
    const uint64_t hash = hash_of(text(id));
    slots_[slot_of(text(id), hash)] = {static_cast<uint32_t>(hash >> 32), id};
  }
}

TokenTable::Added TokenTable::add(std::string_view text, TokenId id) {
  CADRE_CHECK(id >= 0 && arena_.size() + text.size() < kNone, "token id {}, {} bytes of text", id, arena_.size());
  if (has(id)) return Added::kIdTaken;
  if (2 * (num_tokens_ + 1) > slots_.size()) rehash(std::max<size_t>(16, 2 * slots_.size()));
  const uint64_t hash = hash_of(text);
  const size_t at = slot_of(text, hash);
  if (slots_[at].id >= 0) return Added::kTextTaken;
  if (static_cast<size_t>(id) >= spans_.size()) spans_.resize(static_cast<size_t>(id) + 1);
  spans_[static_cast<size_t>(id)] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(text.size())};
  arena_ += text;
  slots_[at] = {static_cast<uint32_t>(hash >> 32), id};
  ++num_tokens_;
  return Added::kNew;
}

TokenId TokenTable::find(std::string_view text) const {
  return slots_.empty() ? -1 : slots_[slot_of(text, hash_of(text))].id;
}

}  // namespace cadre
