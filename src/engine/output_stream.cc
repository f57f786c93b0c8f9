#include "engine/output_stream.h"

#include <algorithm>

#include "base/check.h"

namespace cadre {

OutputStream::OutputStream(const Tokenizer& tokenizer, const SamplingParams& params,
                           std::span<const int32_t> ending_ids, int64_t max_tokens)
    : params_(params), ending_ids_(ending_ids), max_tokens_(max_tokens),
      detokenizer_(tokenizer, params.skip_special_tokens), stops_(params.stop) {
  // Room for what a stop string of usual length and a cut character hold back, so that steps do not allocate.
  size_t longest_stop = 0;
  for (const std::string& stop : params.stop) longest_stop = std::max(longest_stop, stop.size());
  const size_t room = std::min<size_t>(longest_stop, 256) + 16;
  pending_.reserve(room);
  pending_text_.reserve(room);
  added_.reserve(room);
}

bool OutputStream::is_ending_id(int32_t id) const {
  return std::find(ending_ids_.begin(), ending_ids_.end(), id) != ending_ids_.end();
}

void OutputStream::push(OutputToken token, Delta* delta) {
  CADRE_CHECK(!is_finished_, "token {} after the end", token.token);
  const bool may_match = may_end();
  ++num_tokens_;
  delta->num_completion_tokens = num_tokens_;
  const int32_t id = token.token;
  const bool ends = may_match && is_ending_id(id);
  const uint64_t begin = num_text_bytes_;
  const size_t num_held_before = detokenizer_.num_held_bytes();
  added_.clear();
  if (!ends || params_.include_stop) detokenizer_.push(id, &added_);
  const bool has_text = !added_.empty() || detokenizer_.num_held_bytes() > num_held_before;
  pending_.push_back({std::move(token), begin, has_text});

  if (ends) {
    // What include_stop adds is the ending token's own text: it ends the answer, so no stop string is looked for in it.
    read_text(added_, false);
    delta->stop_token = id;
    end(FinishReason::kStop, !params_.include_stop, delta);
    return;
  }
  if (const auto stop_idx = read_text(added_, may_match)) {
    delta->stop_reason = params_.stop[*stop_idx];
    is_finished_ = true;
    delta->finish = FinishReason::kStop;
    deliver(num_text_bytes_, delta);
    release_tokens(true, delta);
    return;
  }
  if (num_tokens_ >= max_tokens_) {
    end(FinishReason::kLength, may_match, delta);
    return;
  }
  deliver(num_text_bytes_ - stops_.num_held(), delta);
  release_tokens(false, delta);
}

void OutputStream::finish(FinishReason reason, Delta* delta) {
  CADRE_CHECK(!is_finished_, "finished twice");
  delta->num_completion_tokens = num_tokens_;
  end(reason, false, delta);
}

// Flushes the detokenizer and everything held back. A replacement character for a cut end is text like any other: a
// stop string may be complete with it.
void OutputStream::end(FinishReason reason, bool may_match, Delta* delta) {
  is_finished_ = true;
  delta->finish = reason;
  added_.clear();
  detokenizer_.finish(&added_);
  if (const auto stop_idx = read_text(added_, may_match)) {
    delta->finish = FinishReason::kStop;
    delta->stop_token.reset();
    delta->stop_reason = params_.stop[*stop_idx];
  }
  deliver(num_text_bytes_, delta);
  release_tokens(true, delta);
}

// Appends to the pending text; at a match cuts it where the answer ends and returns the stop string's index.
std::optional<size_t> OutputStream::read_text(std::string_view added, bool may_match) {
  const auto match = stops_.push(added, may_match);
  if (!match) {
    pending_text_ += added;
    num_text_bytes_ += added.size();
    return std::nullopt;
  }
  pending_text_ += added.substr(0, match->end);
  num_text_bytes_ += match->end;
  if (!params_.include_stop) {
    const size_t stop_bytes = params_.stop[match->stop_idx].size();
    CADRE_CHECK(pending_text_.size() >= stop_bytes, "{} bytes of a stop string were delivered", stop_bytes);
    pending_text_.resize(pending_text_.size() - stop_bytes);
    num_text_bytes_ -= stop_bytes;
  }
  return match->stop_idx;
}

void OutputStream::deliver(uint64_t up_to, Delta* delta) {
  const auto num_bytes = static_cast<size_t>(up_to - num_delivered_bytes_);
  if (num_bytes == 0) return;
  delta->text.append(pending_text_, 0, num_bytes);
  pending_text_.erase(0, num_bytes);
  num_delivered_bytes_ = up_to;
}

// A token goes out once some of its text has; one without text follows its predecessor. At the end all go, and those
// whose text was cut away say so.
void OutputStream::release_tokens(bool all, Delta* delta) {
  size_t num_released = 0;
  for (PendingToken& pending : pending_) {
    const bool is_shown = pending.has_text && pending.begin < num_delivered_bytes_;
    if (pending.has_text && !is_shown && !all) break;
    pending.token.in_text = is_shown;
    delta->tokens.push_back(std::move(pending.token));
    ++num_released;
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<int64_t>(num_released));
}

}  // namespace cadre
