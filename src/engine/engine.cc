#include "engine/engine.h"

#include <algorithm>
#include <random>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"
#include "comm/transport.h"
#include "engine/output_stream.h"
#include "engine/sampler.h"
#include "engine/validate.h"
#include "kv/block_pool.h"
#include "sched/scheduler.h"

namespace cadre {
namespace {

// Logits memory of prompt logprobs, beside one row per running sequence.
constexpr int64_t kScoredLogitBytes = int64_t{64} << 20;
// Answers up to this length grow without allocating; longer ones double their memory now and then.
constexpr int64_t kReservedNewTokens = 4096;

constexpr const char* kNotANumber =
    "The model produced a value that is not a number for this request, so its answer ends here; other requests go on. "
    "Try another prompt, and check the checkpoint with `cadre verify`.";
constexpr const char* kNothingToSample =
    "Every token is forbidden or impossible at this place, so the answer cannot go on; relax logit_bias or min_tokens.";

struct Request;

struct Sequence : SchedSequence {
  Sequence(Request& owner, int32_t choice, const Tokenizer& tokenizer, std::span<const int32_t> ending_ids, int64_t max_new);
  Request& request;
  int32_t choice_idx;
  std::vector<int32_t> tokens;  // prompt and generated; num_tokens of them
  OutputStream output;
  std::vector<OutputToken> prompt_scores;
  bool is_open = true;          // its last delta has not been sent
};

struct Request {
  uint64_t handle = 0;
  GenerationRequest request;
  DeltaSink sink;
  uint64_t seed = 0;
  std::vector<int32_t> ending_ids;
  int64_t max_new = 0;
  int64_t num_open = 0;
  bool is_prompt_counted = false;
  std::vector<std::unique_ptr<Sequence>> sequences;
};

Sequence::Sequence(Request& owner, int32_t choice, const Tokenizer& tokenizer, std::span<const int32_t> ending_ids,
                   int64_t max_new)
    : request(owner), choice_idx(choice), tokens(),
      output(tokenizer, owner.request.sampling, ending_ids, max_new) {
  const std::vector<int32_t>& prompt = owner.request.prompt;
  tokens.reserve(prompt.size() + static_cast<size_t>(std::min(max_new, kReservedNewTokens)));
  tokens.assign(prompt.begin(), prompt.end());
  num_prompt = num_tokens = static_cast<int64_t>(prompt.size());
  max_tokens = num_prompt + std::max<int64_t>(max_new, 1) - 1;
  if (choice == 0 && owner.request.sampling.num_prompt_logprobs >= 0) {
    score_from = 0;
    prompt_scores.reserve(prompt.size());
    prompt_scores.push_back({.token = prompt[0]});
  }
}

EngineOptions checked(EngineOptions options, const Model& model) {
  const auto expect_positive = [](const char* name, int64_t value) {
    if (value < 1) throw Error(ErrorKind::kInvalidInput, fmt::format("{}: expected 1 or more, found {}; raise it", name, value), name);
  };
  if (options.max_model_len == 0) options.max_model_len = model.max_position();
  expect_positive("max_num_seqs", options.max_num_seqs);
  expect_positive("max_num_batched_tokens", options.max_num_batched_tokens);
  expect_positive("num_kv_blocks", options.num_kv_blocks);
  expect_positive("max_model_len", options.max_model_len);
  if (options.max_prefill_tokens_per_step < 0)
    throw Error(ErrorKind::kInvalidInput, fmt::format("max_prefill_tokens_per_step: expected 0 (no bound) or more, found {}; raise it", options.max_prefill_tokens_per_step),
                "max_prefill_tokens_per_step");
  if (options.max_model_len > model.max_position())
    throw Error(ErrorKind::kInvalidInput,
                fmt::format("max_model_len: expected at most the model's context of {} tokens, found {}; lower it",
                            model.max_position(), options.max_model_len),
                "max_model_len");
  options.max_num_batched_tokens = std::min(options.max_num_batched_tokens, model.max_batched_tokens());
  options.max_num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  return options;
}

int64_t scored_rows(const Model& model) {
  const int64_t row_bytes = model.vocab_size() * static_cast<int64_t>(sizeof(float));
  return std::clamp<int64_t>(kScoredLogitBytes / row_bytes, 1, 256);
}

}  // namespace

struct Engine::Impl {
  Impl(std::unique_ptr<Model> the_model, std::shared_ptr<const Tokenizer> the_tokenizer, EngineOptions the_options,
       const Clock& the_clock);

  void run_scheduled(std::span<const int64_t> dp_rows, int64_t order);
  void run_model(std::span<const int64_t> dp_rows, int64_t order);
  void process(const ScheduledRows& rows, std::span<float> logits, bool failed);
  bool score_prompt(Sequence& sequence, const ScheduledRows& rows, std::span<const float> logits);
  void sample(Sequence& sequence, std::span<float> logits);
  void finish(Sequence& sequence, FinishReason reason, const std::string& error = {});
  void deliver(Sequence& sequence);
  void close(Sequence& sequence, FinishReason reason);
  void cancel(Request& request);
  void erase_if_done(uint64_t handle);
  void count_cancelled(const Sequence& sequence);
  ServingLimits limits() const { return {vocab_size, options.max_model_len, options.num_kv_blocks}; }

  std::unique_ptr<Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  const EngineOptions options;
  const int64_t vocab_size;
  const Clock& clock;

  KvStore kv;
  BlockPool pool;
  Scheduler scheduler;
  Sampler sampler;
  uint64_t seed;
  uint64_t num_requests = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests;
  EngineStats counters;

  // Of the step, kept so that steps do not allocate.
  std::span<const ScheduledRows> scheduled;
  Buffer logits;
  std::vector<SequenceRows> rows;
  std::vector<uint8_t> failed;
  std::string model_error;  // what forward threw; empty when it did not
  Delta delta;
};

Engine::Impl::Impl(std::unique_ptr<Model> the_model, std::shared_ptr<const Tokenizer> the_tokenizer,
                   EngineOptions the_options, const Clock& the_clock)
    : model(std::move(the_model)),
      tokenizer(std::move(the_tokenizer)),
      options(checked(std::move(the_options), *model)),
      vocab_size(model->vocab_size()),
      clock(the_clock),
      kv(model->kv_layout(), options.num_kv_blocks),
      pool(options.num_kv_blocks),
      scheduler({.max_num_seqs = options.max_num_seqs, .max_num_batched_tokens = options.max_num_batched_tokens,
                 .max_prefill_tokens_per_step = options.max_prefill_tokens_per_step, .max_scored_rows = scored_rows(*model)}, pool),
      sampler(vocab_size),
      logits(static_cast<size_t>((options.max_num_seqs + scored_rows(*model)) * vocab_size) * sizeof(float)) {
  if (options.seed) {
    seed = *options.seed;
  } else {
    std::random_device device;
    seed = uint64_t{device()} << 32 | device();
  }
  rows.reserve(static_cast<size_t>(options.max_num_seqs));
  failed.reserve(static_cast<size_t>(options.max_num_seqs));
  delta.text.reserve(512);
  delta.tokens.reserve(64);
}

void Engine::Impl::run_scheduled(std::span<const int64_t> dp_rows, int64_t order) {
  run_model(dp_rows, order);
  size_t offset = 0;
  for (size_t i = 0; i < scheduled.size(); ++i) {
    const auto size = static_cast<size_t>(scheduled[i].num_logit_rows * vocab_size);
    process(scheduled[i], logits.as<float>().subspan(offset, size), failed[i] != 0);
    offset += size;
  }
  scheduled = {};
  ++counters.num_steps;
}

void Engine::Impl::run_model(std::span<const int64_t> dp_rows, int64_t order) {
  rows.clear();
  failed.assign(scheduled.size(), 0);
  int64_t num_logit_rows = 0;
  for (const ScheduledRows& s : scheduled) {
    const auto& sequence = static_cast<const Sequence&>(*s.sequence);
    rows.push_back({.tokens = std::span(sequence.tokens).subspan(static_cast<size_t>(s.start), static_cast<size_t>(s.num_rows)),
                    .start_position = s.start,
                    .blocks = sequence.blocks,
                    .num_logit_rows = s.num_logit_rows,
                    .num_prompt_tokens = sequence.num_prompt});
    num_logit_rows += s.num_logit_rows;
  }
  const auto step_logits = logits.as<float>().first(static_cast<size_t>(num_logit_rows * vocab_size));
  model_error.clear();
  try {
    model->forward({rows, dp_rows, order}, kv, {step_logits, failed});
    return;
  } catch (const PeerLost&) {
    throw;  // no step is possible any more: the owner's business
  } catch (const std::exception& e) {
    model_error = fmt::format("The model failed in this step ({}), so the answer ends here; send the request again", e.what());
  } catch (...) {
    model_error = "The model failed in this step, so the answer ends here; send the request again";
  }
  failed.assign(scheduled.size(), 1);
}

void Engine::Impl::process(const ScheduledRows& rows_run, std::span<float> own_logits, bool has_failed) {
  auto& sequence = static_cast<Sequence&>(*rows_run.sequence);
  const uint64_t handle = sequence.request.handle;
  Scheduler::advance(rows_run);
  if (has_failed) {
    finish(sequence, FinishReason::kError, model_error.empty() ? kNotANumber : model_error);
  } else if (!score_prompt(sequence, rows_run, own_logits)) {
    finish(sequence, FinishReason::kError, kNotANumber);
  } else if (rows_run.samples) {
    if (!std::exchange(sequence.request.is_prompt_counted, true))
      counters.num_prompt_tokens += static_cast<uint64_t>(sequence.num_prompt);
    if (sequence.request.max_new == 0) finish(sequence, FinishReason::kLength);
    else sample(sequence, own_logits.last(static_cast<size_t>(vocab_size)));
  }
  erase_if_done(handle);
}

// Takes the log-probabilities of prompt tokens off the rows that came for them. False when logits are not finite.
bool Engine::Impl::score_prompt(Sequence& sequence, const ScheduledRows& rows_run, std::span<const float> own_logits) {
  if (sequence.score_from < 0) return true;
  const int64_t end = rows_run.start + rows_run.num_rows;
  const int64_t first = end - rows_run.num_logit_rows;  // position of the first row with logits
  const int64_t scored_end = std::min(end, sequence.num_prompt - 1);
  for (int64_t position = std::max(first, sequence.score_from); position < scored_end; ++position) {
    const auto row = own_logits.subspan(static_cast<size_t>((position - first) * vocab_size), static_cast<size_t>(vocab_size));
    OutputToken score;
    const auto status = sampler.score(row, sequence.tokens[static_cast<size_t>(position + 1)],
                                      sequence.request.request.sampling.num_prompt_logprobs, &score);
    if (status != SampleStatus::kOk) return false;
    sequence.prompt_scores.push_back(std::move(score));
    sequence.score_from = position + 1;
  }
  return true;
}

void Engine::Impl::sample(Sequence& sequence, std::span<float> row) {
  const Request& request = sequence.request;
  OutputToken token;
  const SampleInput input{.params = &request.request.sampling,
                          .tokens = sequence.tokens,
                          .num_prompt = sequence.num_prompt,
                          .forbidden_ids = sequence.output.may_end() ? std::span<const int32_t>() : request.ending_ids,
                          .seed = request.seed,
                          .stream = static_cast<uint64_t>(sequence.choice_idx),
                          .index = sequence.output.num_tokens()};
  switch (sampler.sample(row, input, &token)) {
    case SampleStatus::kNotFinite: return finish(sequence, FinishReason::kError, kNotANumber);
    case SampleStatus::kNoneLeft: return finish(sequence, FinishReason::kError, kNothingToSample);
    case SampleStatus::kOk: break;
  }
  ++counters.num_generated_tokens;
  sequence.tokens.push_back(token.token);
  ++sequence.num_tokens;
  sequence.output.push(std::move(token), &delta);
  if (delta.finish) close(sequence, *delta.finish);
  deliver(sequence);
}

// Ends a sequence from outside its output.
void Engine::Impl::finish(Sequence& sequence, FinishReason reason, const std::string& error) {
  sequence.output.finish(reason, &delta);
  delta.error = error;
  close(sequence, reason);
  deliver(sequence);
}

void Engine::Impl::close(Sequence& sequence, FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: ++counters.num_finished_stop; break;
    case FinishReason::kLength: ++counters.num_finished_length; break;
    case FinishReason::kCancelled: count_cancelled(sequence); break;
    case FinishReason::kError: ++counters.num_failed; break;
  }
  scheduler.remove(&sequence);
  sequence.is_open = false;
  --sequence.request.num_open;
}

// Sends the scratch delta, if it says anything, and empties it. Its vectors keep their memory unless the sink took them.
void Engine::Impl::deliver(Sequence& sequence) {
  const bool prompt_is_scored = static_cast<int64_t>(sequence.prompt_scores.size()) == sequence.num_prompt;
  if (prompt_is_scored) delta.prompt_tokens = std::exchange(sequence.prompt_scores, {});
  if (!delta.text.empty() || !delta.tokens.empty() || !delta.prompt_tokens.empty() || delta.finish) {
    delta.choice_idx = sequence.choice_idx;
    delta.num_prompt_tokens = sequence.num_prompt;
    if (sequence.request.sink) {
      try {
        sequence.request.sink(std::move(delta));
      } catch (...) {
        // A receiver that breaks its promise loses the rest of its answer; the sequence runs to its end unheard.
        sequence.request.sink = nullptr;
      }
    }
  }
  delta.text.clear();
  delta.tokens.clear();
  delta.prompt_tokens.clear();
  delta.finish.reset();
  delta.stop_reason.reset();
  delta.stop_token.reset();
  delta.error.clear();
  delta.num_completion_tokens = 0;
}

void Engine::Impl::count_cancelled(const Sequence& sequence) {
  ++counters.num_cancelled;
  if (sequence.state == SchedSequence::State::kWaiting) ++counters.num_cancelled_waiting;
  else if (sequence.output.num_tokens() == 0) ++counters.num_cancelled_prefill;
  else ++counters.num_cancelled_decode;
}

void Engine::Impl::cancel(Request& request) {
  for (const auto& sequence : request.sequences)
    if (sequence->is_open) finish(*sequence, FinishReason::kCancelled);
}

void Engine::Impl::erase_if_done(uint64_t handle) {
  const auto it = requests.find(handle);
  if (it != requests.end() && it->second->num_open == 0) requests.erase(it);
}

Engine::Engine(std::unique_ptr<Model> model, std::shared_ptr<const Tokenizer> tokenizer, EngineOptions options,
               const Clock& clock)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(tokenizer), std::move(options), clock)) {}

Engine::~Engine() = default;

void Engine::validate(const GenerationRequest& request) const { validate_request(request, impl_->limits()); }

void Engine::add(uint64_t handle, GenerationRequest request, DeltaSink sink) {
  auto entry = std::make_unique<Request>();
  Request& r = *entry;
  r.handle = handle;
  r.request = std::move(request);
  r.sink = std::move(sink);
  const uint64_t drawn = uint64_t{random_u32(impl_->seed, impl_->num_requests, 0)} << 32 |
                         random_u32(impl_->seed, impl_->num_requests, 1);
  ++impl_->num_requests;
  r.seed = r.request.sampling.seed.value_or(drawn);
  r.ending_ids = r.request.sampling.stop_token_ids;
  if (!r.request.sampling.ignore_eos)
    r.ending_ids.insert(r.ending_ids.end(), impl_->options.eos_ids.begin(), impl_->options.eos_ids.end());
  std::erase_if(r.ending_ids, [&](int32_t id) { return id < 0 || id >= impl_->vocab_size; });
  r.max_new = max_new_tokens(r.request, impl_->limits());
  const bool is_new = impl_->requests.emplace(handle, std::move(entry)).second;
  CADRE_CHECK(is_new, "handle {} is taken", handle);
  for (int32_t choice = 0; choice < r.request.n; ++choice) {
    r.sequences.push_back(std::make_unique<Sequence>(r, choice, *impl_->tokenizer, r.ending_ids, r.max_new));
    if (r.request.n > 1) r.sequences.back()->group = impl_->num_requests;
    ++r.num_open;
    impl_->scheduler.add(r.sequences.back().get());
  }
}

void Engine::cancel(uint64_t handle) {
  const auto it = impl_->requests.find(handle);
  if (it == impl_->requests.end()) return;
  impl_->cancel(*it->second);
  impl_->erase_if_done(handle);
}

void Engine::cancel_all() {
  for (const auto& [handle, request] : impl_->requests) impl_->cancel(*request);
  impl_->requests.clear();
}

void Engine::fail_all(const std::string& message) {
  // A step that was cut off left these as they were.
  impl_->delta = Delta{};
  impl_->scheduled = {};
  for (const auto& [handle, request] : impl_->requests) {
    for (const auto& sequence : request->sequences) {
      if (sequence->is_open && !sequence->output.is_finished()) impl_->finish(*sequence, FinishReason::kError, message);
      impl_->scheduler.remove(sequence.get());  // where finish() did not
    }
  }
  impl_->requests.clear();
}

bool Engine::has_work() const { return impl_->scheduler.has_work(); }

int64_t Engine::step() {
  const int64_t num_rows = schedule();
  if (num_rows > 0) run_scheduled({}, order());
  return num_rows;
}

int64_t Engine::num_scheduled_samples() const {
  return std::count_if(impl_->scheduled.begin(), impl_->scheduled.end(), [](const ScheduledRows& rows) { return rows.samples; });
}

std::span<const ScheduledRows> Engine::scheduled() const { return impl_->scheduled; }

int64_t Engine::placement_generation() const { return impl_->model->placement_generation(); }
int64_t Engine::order() const { return impl_->model->order(); }

int64_t Engine::schedule(bool others_decode) {
  CADRE_CHECK(impl_->scheduled.empty(), "{} sequences are scheduled already", impl_->scheduled.size());
  impl_->scheduled = impl_->scheduler.schedule(others_decode);
  int64_t num_rows = 0;
  for (const ScheduledRows& rows : impl_->scheduled) num_rows += rows.num_rows;
  return num_rows;
}

void Engine::run_scheduled(std::span<const int64_t> dp_rows, int64_t order) { impl_->run_scheduled(dp_rows, order); }

EngineStats Engine::stats() const {
  EngineStats stats = impl_->counters;
  stats.num_waiting = impl_->scheduler.num_waiting();
  stats.num_running = impl_->scheduler.num_running();
  stats.num_waiting_tokens = impl_->scheduler.num_waiting_tokens();
  stats.num_running_tokens = impl_->scheduler.num_running_tokens();
  stats.num_free_blocks = impl_->pool.num_free();
  stats.num_blocks = impl_->pool.num_blocks();
  stats.num_preemptions = impl_->scheduler.num_preemptions();
  return stats;
}

const EngineOptions& Engine::options() const { return impl_->options; }
int64_t Engine::max_model_len() const { return impl_->options.max_model_len; }
int64_t Engine::vocab_size() const { return impl_->vocab_size; }
const Tokenizer& Engine::tokenizer() const { return *impl_->tokenizer; }

}  // namespace cadre
