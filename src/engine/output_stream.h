// From sampled tokens to what the client gets, for one choice: detokenises, finds the end (ending id, stop string,
// length), cuts the stop text off, holds back what may still become stop text, and counts. Streaming and
// non-streaming answers both come from here, so they cannot differ.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/stop_matcher.h"
#include "tokenizer/detokenizer.h"

namespace cadre {

class OutputStream {
 public:
  // tokenizer, params and ending_ids (stop ids, and end-of-sequence ids unless ignored) must outlive the object.
  // max_tokens > 0: tokens after which the choice ends with kLength.
  OutputStream(const Tokenizer& tokenizer, const SamplingParams& params, std::span<const int32_t> ending_ids,
               int64_t max_tokens);

  // One sampled token. Appends what can be delivered now to delta->text and delta->tokens and, at the end, sets
  // delta->finish with its stop_reason or stop_token. Must not be called after the end.
  void push(OutputToken token, Delta* delta);

  // Ends the choice from outside (cancelled, failed, nothing to generate): delivers everything held back.
  void finish(FinishReason reason, Delta* delta);

  bool is_finished() const { return is_finished_; }
  int64_t num_tokens() const { return num_tokens_; }
  // Whether an ending id may be sampled next (min_tokens were).
  bool may_end() const { return num_tokens_ >= params_.min_tokens; }

 private:
  struct PendingToken {
    OutputToken token;
    uint64_t begin = 0;     // bytes of text before it
    bool has_text = false;  // it has bytes in the text from there on (the ending id has none)
  };

  bool is_ending_id(int32_t id) const;
  std::optional<size_t> read_text(std::string_view added, bool may_match);
  void end(FinishReason reason, bool may_match, Delta* delta);
  void deliver(uint64_t up_to, Delta* delta);
  void release_tokens(bool all, Delta* delta);

  const SamplingParams& params_;
  std::span<const int32_t> ending_ids_;
  int64_t max_tokens_;
  IncrementalDetokenizer detokenizer_;
  StopMatcher stops_;

  std::string added_;                    // scratch of push
  std::string pending_text_;             // not delivered yet
  std::vector<PendingToken> pending_;    // not delivered yet; their text may have been begun
  uint64_t num_delivered_bytes_ = 0;
  uint64_t num_text_bytes_ = 0;          // delivered and pending
  int64_t num_tokens_ = 0;
  bool is_finished_ = false;
};

}  // namespace cadre
