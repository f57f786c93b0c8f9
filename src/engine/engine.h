// One rank: admits requests, schedules steps, runs the model, samples, detokenises, delivers. Single-threaded: its owner
// calls step() in a loop (dp/controller). No clock and no threads of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/request.h"
#include "models/model.h"
#include "sched/scheduler.h"
#include "tokenizer/tokenizer.h"

namespace cadre {

struct EngineOptions {
  int64_t max_num_seqs = 256;              // sequences running at once
  int64_t max_num_batched_tokens = 2048;   // rows of one step: decode rows first, the rest for prefill chunks
  int64_t max_prefill_tokens_per_step = 0; // rows of prefill chunks while any rank decodes (sched/scheduler.h); 0: no bound
  int64_t num_kv_blocks = 0;               // blocks of 16 tokens in the pool
  int64_t max_model_len = 0;               // 0: the model's context length; else a smaller limit
  std::vector<int32_t> eos_ids;            // any of them ends a sequence unless ignore_eos
  std::optional<uint64_t> seed;            // of the seeds drawn for requests without one; absent: drawn at the start
};

// Counters since the start and gauges of now. Sequences are choices: a request with n choices counts n times, but its
// prompt once.
struct EngineStats {
  int64_t num_waiting = 0, num_running = 0;
  int64_t num_waiting_tokens = 0, num_running_tokens = 0;  // known tokens: prompt and generated so far
  int64_t num_free_blocks = 0, num_blocks = 0;
  uint64_t num_steps = 0, num_prompt_tokens = 0, num_generated_tokens = 0, num_preemptions = 0;
  uint64_t num_finished_stop = 0, num_finished_length = 0, num_cancelled = 0, num_failed = 0;
  // cancellations by the state the sequence was in
  uint64_t num_cancelled_waiting = 0, num_cancelled_prefill = 0, num_cancelled_decode = 0;
};

class Engine {
 public:
  // model, tokenizer and clock are shared with nobody else's thread, except the tokenizer and clock, which are immutable/safe.
  Engine(std::unique_ptr<Model> model, std::shared_ptr<const Tokenizer> tokenizer, EngineOptions options, const Clock& clock);
  ~Engine();

  // Throws Error when this engine can never serve the request; otherwise queues it. Thread-safe: reads only constants.
  void validate(const GenerationRequest& request) const;
  void add(uint64_t handle, GenerationRequest request, DeltaSink sink);  // validated before
  // Ends a request's open choices with kCancelled before the next step; an unknown handle is ignored.
  void cancel(uint64_t handle);
  void cancel_all();
  // Ends every request with kError and this sentence.
  void fail_all(const std::string& message);

  bool has_work() const;
  // One step: schedule, forward, sample, deliver. Returns the number of rows run (0 when there was nothing to do).
  // What the model throws ends the step's sequences with kError; the engine goes on.
  int64_t step();
  // The halves of step(), for an owner that acts in between: schedule() decides who runs and returns the number of rows;
  // if there are any, run_scheduled() must follow before anything is added or cancelled. dp_rows: rows of every
  // data-parallel rank, where there are several; then a rank without rows takes part too.
  int64_t schedule(bool others_decode = false);
  int64_t num_scheduled_samples() const;  // sequences that the scheduled step gives a token
  std::span<const ScheduledRows> scheduled() const;  // who runs in it; valid until run_scheduled()
  int64_t placement_generation() const;   // Model::placement_generation()
  int64_t order() const;                  // Model::order()
  void run_scheduled(std::span<const int64_t> dp_rows = {}, int64_t order = 0);
  EngineStats stats() const;
  // The options in force: limits lowered to what the model was built for.
  const EngineOptions& options() const;
  int64_t max_model_len() const;
  int64_t vocab_size() const;
  const Tokenizer& tokenizer() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre
