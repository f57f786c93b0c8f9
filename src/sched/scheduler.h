// Who runs in this step. Continuous batching with chunked prefill under a budget of rows; first come, first served;
// preemption by recomputation. Decides from counts alone: no tensors, no token values, no threads, no clock, and the
// same decisions for the same calls.
//
// The rules, in order:
//  1. Every running sequence that needs one row gets it (the budget is never smaller than the number of running ones).
//  2. The rest of the budget goes to prompts, earliest arrival first, as large a chunk as fits. While somebody decodes, here
//     or on a rank that steps together with this one, prompts get no more than max_prefill_tokens_per_step rows of it: a
//     step lasts as long as its longest rank, so that a long prompt on one would hold up the tokens of all. It is one row
//     at least, so a prompt always gets on.
//  3. Waiting sequences start in order of arrival, never past one another, when all blocks of their known tokens are
//     free and as many blocks stay free as sequences run (each may soon need one).
//  4. When a running sequence needs a block and none is free, the latest arrived running sequence gives all of its
//     blocks back and waits again, in front. The earliest never loses its blocks, so it always ends: no starvation.
//  5. With a prefix cache, a sequence that starts takes the blocks that hold the beginning of its prompt and computes the
//     rest; the last known token is always computed. Blocks of idle entries count as free.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/prefix_cache.h"

namespace cadre {

struct SchedulerOptions {
  int64_t max_num_seqs = 256;             // running at once; at most max_num_batched_tokens of them
  int64_t max_num_batched_tokens = 2048;  // rows of one step
  int64_t max_prefill_tokens_per_step = 0;  // of them for prompts while somebody decodes; 0: no such bound
  int64_t max_scored_rows = 256;          // rows of one step that need logits only for prompt logprobs
};

// What the scheduler knows of a sequence. The owner keeps the object (at a fixed address) and sets the first part.
struct SchedSequence {
  int64_t num_tokens = 0;      // known ids: prompt and generated; the scheduler's advance() does not change it
  int64_t max_tokens = 0;      // num_tokens never grows past it
  int64_t num_prompt = 0;
  int64_t score_from = -1;     // prompt rows from here on need logits each; -1: none
  uint64_t group = 0;          // sequences of one group share the prompt; 0: alone
  std::span<const uint64_t> prefix_keys;  // of the prompt's leading entries (kv/prefix_cache.h); may be empty

  enum class State : uint8_t { kIdle, kWaiting, kRunning };
  State state = State::kIdle;
  int64_t num_computed = 0;    // leading tokens whose KV is in the blocks
  std::vector<BlockId> blocks;
  uint64_t arrival = 0;
  bool has_started = false;    // ran at least once: waiting again means it was preempted
  int64_t num_cached = 0;      // leading tokens that it found in the prefix cache when it started last
  std::vector<int32_t> held_entries;  // of the prefix cache, one for each of the leading keys

  int64_t num_uncomputed() const { return num_tokens - num_computed; }
};

// Rows start .. start + num_rows - 1 of a sequence run in this step; the last num_logit_rows of them need logits.
struct ScheduledRows {
  SchedSequence* sequence = nullptr;
  int64_t start = 0;
  int64_t num_rows = 0;
  int64_t num_logit_rows = 0;
  bool samples = false;  // the last row is the last known token: its logits choose the next one
};

class Scheduler {
 public:
  // The pool, and the cache of its blocks, must outlive the scheduler. cache: null for none.
  Scheduler(SchedulerOptions options, BlockPool& pool, PrefixCache* cache = nullptr);

  // Queues a sequence; its blocks at max_tokens must not be more than the pool has (a bug otherwise).
  void add(SchedSequence* sequence);
  // Takes a sequence out in whatever state it is; its blocks return to the pool.
  void remove(SchedSequence* sequence);

  // The rows of the next step, single rows first, then prompt chunks, each in order of arrival. Valid until the next call.
  // Empty only when nothing is queued or running. others_decode: a rank that steps together with this one does.
  std::span<const ScheduledRows> schedule(bool others_decode = false);
  // The scheduled rows were computed: to be called for each before the next schedule().
  static void advance(const ScheduledRows& rows) { rows.sequence->num_computed = rows.start + rows.num_rows; }

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_waiting_tokens() const { return num_waiting_tokens_; }
  int64_t num_running_tokens() const;  // known ones, in the cache or to be computed
  uint64_t num_preemptions() const { return num_preemptions_; }
  std::span<SchedSequence* const> running() const { return running_; }

 private:
  bool make_room_for_next_row(SchedSequence* sequence);
  void preempt_latest();
  void schedule_chunk(SchedSequence* sequence);
  bool admit(SchedSequence* sequence);
  const SchedSequence* sibling_of(const SchedSequence& sequence) const;
  void release_blocks(SchedSequence* sequence);
  int64_t num_free_blocks() const { return pool_.num_free() + (cache_ ? cache_->num_idle_blocks() : 0); }
  BlockId allocate_block();
  void share_computed(SchedSequence* sequence);

  SchedulerOptions options_;
  BlockPool& pool_;
  PrefixCache* cache_;
  std::deque<SchedSequence*> waiting_;     // by arrival; all later than every running one
  std::vector<SchedSequence*> running_;    // by arrival
  std::vector<ScheduledRows> scheduled_;
  int64_t rows_left_ = 0, scored_rows_left_ = 0;  // of the step being scheduled
  int64_t num_waiting_tokens_ = 0;
  uint64_t num_preemptions_ = 0, next_arrival_ = 0;
};

}  // namespace cadre
