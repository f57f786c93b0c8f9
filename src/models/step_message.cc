#include "models/step_message.h"

#include <cstring>

#include "base/check.h"

namespace cadre {
namespace {

// Of one sequence, before its tokens and blocks.
struct SequenceHeader {
  int64_t num_tokens, num_blocks, start_position, num_logit_rows, num_prompt_tokens;
};

}  // namespace

int64_t StepMessage::max_bytes(int64_t max_rows, int64_t max_blocks, int num_dp_ranks) {
  return 24 + num_dp_ranks * 8 + max_rows * static_cast<int64_t>(sizeof(SequenceHeader)) + (max_rows + max_blocks) * 4;
}

std::span<const std::byte> StepMessage::write(const StepInput& input) {
  bytes_.clear();
  const auto put = [&](const void* data, size_t bytes) { bytes_.insert(bytes_.end(), static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + bytes); };
  const int64_t counts[3] = {static_cast<int64_t>(input.sequences.size()), static_cast<int64_t>(input.dp_rows.size()), input.order};
  put(counts, sizeof(counts));
  put(input.dp_rows.data(), input.dp_rows.size_bytes());
  for (const SequenceRows& s : input.sequences) {
    const SequenceHeader header{static_cast<int64_t>(s.tokens.size()), static_cast<int64_t>(s.blocks.size()), s.start_position, s.num_logit_rows, s.num_prompt_tokens};
    put(&header, sizeof(header));
  }
  for (const SequenceRows& s : input.sequences) {
    put(s.tokens.data(), s.tokens.size_bytes());
    put(s.blocks.data(), s.blocks.size_bytes());
  }
  return bytes_;
}

std::span<const std::byte> StepMessage::write_stop() {
  const int64_t counts[3] = {kStop, 0, 0};
  bytes_.resize(sizeof(counts));
  std::memcpy(bytes_.data(), counts, sizeof(counts));
  return bytes_;
}

bool StepMessage::read(std::span<const std::byte> bytes) {
  size_t at = 0;
  const auto take = [&](void* out, size_t count) {
    CADRE_CHECK(at + count <= bytes.size(), "a step message of {} bytes ends early", bytes.size());
    if (count > 0) std::memcpy(out, bytes.data() + at, count);
    at += count;
  };
  int64_t counts[3];
  take(counts, sizeof(counts));
  sequences_.clear();
  dp_rows_.clear();
  if (counts[0] == kStop) return false;
  order_ = counts[2];
  dp_rows_.resize(static_cast<size_t>(counts[1]));
  take(dp_rows_.data(), dp_rows_.size() * 8);
  std::vector<SequenceHeader> headers(static_cast<size_t>(counts[0]));
  take(headers.data(), headers.size() * sizeof(SequenceHeader));
  values_.resize((bytes.size() - at) / 4);
  take(values_.data(), values_.size() * 4);
  const int32_t* value = values_.data();
  for (const SequenceHeader& h : headers) {
    SequenceRows s;
    s.tokens = {value, static_cast<size_t>(h.num_tokens)};
    s.blocks = {value + h.num_tokens, static_cast<size_t>(h.num_blocks)};
    s.start_position = h.start_position;
    s.num_logit_rows = h.num_logit_rows;
    s.num_prompt_tokens = h.num_prompt_tokens;
    value += h.num_tokens + h.num_blocks;
    sequences_.push_back(s);
  }
  CADRE_CHECK(value <= values_.data() + values_.size(), "a step message of {} bytes ends early", bytes.size());
  return true;
}

}  // namespace cadre
