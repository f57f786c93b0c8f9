#include "sched/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "config/bytes.h"

namespace cadre {
namespace {

int64_t blocks_for(int64_t num_tokens) { return (num_tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

}  // namespace

Scheduler::Scheduler(SchedulerOptions options, BlockPool& pool, PrefixCache* cache) : options_(options), pool_(pool), cache_(cache) {
  CADRE_CHECK(options_.max_num_seqs > 0 && options_.max_num_batched_tokens > 0 && options_.max_scored_rows > 0,
              "{} sequences, {} rows, {} scored rows", options_.max_num_seqs, options_.max_num_batched_tokens,
              options_.max_scored_rows);
  options_.max_num_seqs = std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
  running_.reserve(static_cast<size_t>(options_.max_num_seqs));
  scheduled_.reserve(static_cast<size_t>(options_.max_num_seqs));
}

void Scheduler::add(SchedSequence* sequence) {
  CADRE_CHECK(sequence->state == SchedSequence::State::kIdle && sequence->num_tokens > 0 &&
                  sequence->num_tokens <= sequence->max_tokens && blocks_for(sequence->max_tokens) <= pool_.num_blocks(),
              "a sequence of {} tokens growing to {} for {} blocks", sequence->num_tokens, sequence->max_tokens,
              pool_.num_blocks());
  sequence->state = SchedSequence::State::kWaiting;
  sequence->arrival = ++next_arrival_;
  num_waiting_tokens_ += sequence->num_tokens;
  waiting_.push_back(sequence);
}

void Scheduler::remove(SchedSequence* sequence) {
  switch (sequence->state) {
    case SchedSequence::State::kIdle: return;
    case SchedSequence::State::kWaiting:
      num_waiting_tokens_ -= sequence->num_tokens;
      waiting_.erase(std::find(waiting_.begin(), waiting_.end(), sequence));
      break;
    case SchedSequence::State::kRunning:
      running_.erase(std::find(running_.begin(), running_.end(), sequence));
      break;
  }
  release_blocks(sequence);
  sequence->state = SchedSequence::State::kIdle;
}

std::span<const ScheduledRows> Scheduler::schedule(bool others_decode) {
  scheduled_.clear();
  rows_left_ = options_.max_num_batched_tokens;
  scored_rows_left_ = options_.max_scored_rows;
  if (cache_)
    for (SchedSequence* sequence : running_) share_computed(sequence);
  // By index: preemption takes sequences off the end of running_.
  for (size_t i = 0; i < running_.size(); ++i) {
    SchedSequence* sequence = running_[i];
    if (sequence->num_uncomputed() != 1 || !make_room_for_next_row(sequence)) continue;
    schedule_chunk(sequence);
  }
  if (options_.max_prefill_tokens_per_step > 0 && (others_decode || !scheduled_.empty()))
    rows_left_ = std::min(rows_left_, options_.max_prefill_tokens_per_step);
  for (SchedSequence* sequence : running_)
    if (sequence->num_uncomputed() > 1) schedule_chunk(sequence);
  while (!waiting_.empty() && rows_left_ > 0 && num_running() < options_.max_num_seqs) {
    SchedSequence* sequence = waiting_.front();
    if (!admit(sequence)) break;
    schedule_chunk(sequence);
  }
  CADRE_CHECK(!scheduled_.empty() || !has_work(), "{} waiting, {} running, {} blocks free", num_waiting(), num_running(),
              num_free_blocks());
  return scheduled_;
}

int64_t Scheduler::num_running_tokens() const {
  int64_t sum = 0;
  for (const SchedSequence* sequence : running_) sum += sequence->num_tokens;
  return sum;
}

// False when the sequence itself had to give way. Later ones have no rows in this step yet.
bool Scheduler::make_room_for_next_row(SchedSequence* sequence) {
  const auto needed = static_cast<size_t>(blocks_for(sequence->num_tokens));
  while (sequence->blocks.size() < needed) {
    if (num_free_blocks() > 0) {
      sequence->blocks.push_back(allocate_block());
      continue;
    }
    const bool is_self = running_.back() == sequence;
    preempt_latest();
    if (is_self) return false;
  }
  return true;
}

void Scheduler::preempt_latest() {
  SchedSequence* victim = running_.back();
  running_.pop_back();
  release_blocks(victim);
  victim->state = SchedSequence::State::kWaiting;
  num_waiting_tokens_ += victim->num_tokens;
  waiting_.push_front(victim);
  ++num_preemptions_;
}

void Scheduler::schedule_chunk(SchedSequence* sequence) {
  int64_t num_rows = std::min(sequence->num_uncomputed(), rows_left_);
  if (num_rows <= 0) return;
  const int64_t start = sequence->num_computed;
  // A row scores the token after it; the prompt's last row has none in the prompt.
  const int64_t scored_end = sequence->num_prompt - 1;
  int64_t first_scored = std::max(start, sequence->score_from);
  int64_t num_scored = 0;
  if (sequence->score_from >= 0 && first_scored < scored_end) {
    num_scored = std::max<int64_t>(0, std::min(start + num_rows, scored_end) - first_scored);
    if (num_scored > scored_rows_left_) {
      num_rows = first_scored + scored_rows_left_ - start;
      num_scored = scored_rows_left_;
    }
    if (num_rows <= 0) return;
    scored_rows_left_ -= num_scored;
  }
  const bool samples = start + num_rows == sequence->num_tokens;
  // Logits come for a suffix of the rows: from the first scored one, or for the last alone.
  const int64_t num_logit_rows = num_scored > 0 ? start + num_rows - first_scored : (samples ? 1 : 0);
  scheduled_.push_back({sequence, start, num_rows, num_logit_rows, samples});
  rows_left_ -= num_rows;
}

bool Scheduler::admit(SchedSequence* sequence) {
  const SchedSequence* sibling = sibling_of(*sequence);
  int64_t num_shared = 0, num_cached = 0;
  if (sibling) {
    // A sibling still in its prompt: one step later its blocks can be shared instead of computed twice.
    if (sibling->num_computed < sibling->num_prompt) return false;
    // The last known token is always computed here: its logits are needed.
    num_shared = (std::min(sequence->num_prompt, sequence->num_tokens - 1)) / kKvBlockTokens;
  } else if (cache_ && sequence->score_from < 0 && sequence->group == 0) {
    // Held first, so that they are not among the free ones that are counted below.
    const int64_t most = (sequence->num_tokens - 1) / (kKvBlockTokens * cache_->blocks_per_entry());
    num_cached = cache_->acquire(sequence->prefix_keys, most, &sequence->held_entries, &sequence->blocks) * cache_->blocks_per_entry();
  }
  const int64_t needed = blocks_for(sequence->num_tokens) - num_shared - num_cached;
  if (num_free_blocks() < needed + num_running()) {
    release_blocks(sequence);
    return false;
  }

  waiting_.pop_front();
  num_waiting_tokens_ -= sequence->num_tokens;
  sequence->blocks.reserve(static_cast<size_t>(blocks_for(sequence->max_tokens)));
  for (int64_t i = 0; i < num_shared; ++i) {
    const BlockId id = sibling->blocks[static_cast<size_t>(i)];
    pool_.add_ref(id);
    sequence->blocks.push_back(id);
  }
  for (int64_t i = 0; i < needed; ++i) sequence->blocks.push_back(allocate_block());
  sequence->num_cached = num_cached * kKvBlockTokens;
  sequence->num_computed = (num_shared + num_cached) * kKvBlockTokens;
  sequence->state = SchedSequence::State::kRunning;
  sequence->has_started = true;
  running_.push_back(sequence);
  return true;
}

// The running sequence with the same prompt, if any. Prompts that are scored are computed by their owner, in full.
const SchedSequence* Scheduler::sibling_of(const SchedSequence& sequence) const {
  if (sequence.group == 0 || sequence.score_from >= 0) return nullptr;
  for (const SchedSequence* other : running_)
    if (other->group == sequence.group) return other;
  return nullptr;
}

BlockId Scheduler::allocate_block() {
  if (pool_.num_free() == 0) cache_->evict();
  return pool_.allocate();
}

// Entries of the prompt that have been computed since the last step can be found from now on.
void Scheduler::share_computed(SchedSequence* sequence) {
  const int64_t per_entry = cache_->blocks_per_entry();
  while (sequence->held_entries.size() < sequence->prefix_keys.size() && sequence->score_from < 0 && sequence->group == 0) {
    const auto next = static_cast<int64_t>(sequence->held_entries.size());
    if ((next + 1) * per_entry * kKvBlockTokens > sequence->num_computed) return;
    cache_->insert(sequence->prefix_keys[static_cast<size_t>(next)], std::span(sequence->blocks).subspan(static_cast<size_t>(next * per_entry), static_cast<size_t>(per_entry)),
                   &sequence->held_entries);
  }
}

void Scheduler::release_blocks(SchedSequence* sequence) {
  if (cache_) {
    if (sequence->state == SchedSequence::State::kRunning) share_computed(sequence);
    cache_->release(&sequence->held_entries);
  }
  for (const BlockId id : sequence->blocks) pool_.release(id);
  sequence->blocks.clear();
  sequence->num_computed = 0;
}

}  // namespace cadre
