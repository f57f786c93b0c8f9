#include "dp/controller.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"
#include "comm/transport.h"

namespace cadre {
namespace {

struct Submission {
  RequestHandle handle = 0;
  GenerationRequest request;
  DeltaSink sink;
};
struct Cancellation {
  RequestHandle handle = 0;
};
using Command = std::variant<Submission, Cancellation>;

int64_t num_prompt_tokens(const GenerationRequest& request) {
  return static_cast<int64_t>(request.prompt.size()) * request.n;
}

constexpr int64_t kNotBusy = -1;

// Everything but the engine is guarded by the controller's mutex; the engine belongs to the thread, but for its constants.
struct Rank {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<StepSync> sync;  // with the other ranks; null: none
  std::thread thread;
  std::condition_variable wake;
  std::vector<Command> inbox;
  // Submitted, and not in `published` yet.
  int64_t num_arriving = 0, num_arriving_tokens = 0;
  EngineStats published;         // of the last decision or step
  int64_t busy_since_us = kNotBusy;
  bool is_dead = false;          // its thread gave up

  int64_t num_queued() const { return num_arriving + published.num_waiting; }
  int64_t num_queued_tokens() const { return num_arriving_tokens + published.num_waiting_tokens; }
  bool is_idle() const { return inbox.empty() && busy_since_us == kNotBusy; }
};

}  // namespace

struct Controller::Impl {
  Rank& least_loaded();
  void check_room(const GenerationRequest& request) const;
  void run(Rank& rank);
  void run_alone(Rank& rank);
  void run_together(Rank& rank);
  bool take_commands(Rank& rank, std::vector<Command>* commands);
  void publish(Rank& rank);
  void rest(Rank& rank);
  static void refuse(Submission& submission);
  static void execute(Engine& engine, std::vector<Command>* commands);
  bool is_idle() const {
    return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->is_idle(); });
  }

  ControllerOptions options;
  SteadyClock steady_clock;
  const Clock* clock = nullptr;
  std::vector<std::unique_ptr<Rank>> ranks;

  mutable std::mutex mutex;
  std::condition_variable idle;
  uint64_t num_submitted = 0;
  int64_t num_wakes = 0;  // StepVote::num_wakes
  bool is_draining = false;
  bool is_stopping = false;
};

Controller::Controller(std::vector<std::unique_ptr<Engine>> engines, ControllerOptions options, std::vector<std::unique_ptr<StepSync>> syncs)
    : impl_(std::make_unique<Impl>()) {
  CADRE_CHECK(!engines.empty(), "a controller of no engine");
  impl_->options = options;
  impl_->clock = options.clock ? options.clock : &impl_->steady_clock;
  CADRE_CHECK(syncs.empty() || syncs.size() == engines.size(), "{} syncs of {} engines", syncs.size(), engines.size());
  syncs.resize(engines.size());
  for (auto& engine : engines) {
    impl_->ranks.push_back(std::make_unique<Rank>());
    impl_->ranks.back()->sync = std::move(syncs[impl_->ranks.size() - 1]);
    impl_->ranks.back()->published = engine->stats();
    impl_->ranks.back()->engine = std::move(engine);
  }
  for (auto& rank : impl_->ranks) rank->thread = std::thread([this, r = rank.get()] { impl_->run(*r); });
}

Controller::~Controller() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->is_draining = impl_->is_stopping = true;
  }
  for (auto& rank : impl_->ranks) rank->wake.notify_all();
  for (auto& rank : impl_->ranks) rank->thread.join();
}

RequestHandle Controller::submit(GenerationRequest request, DeltaSink sink) {
  // Engines of one controller have the same limits.
  impl_->ranks[0]->engine->validate(request);
  const std::lock_guard lock(impl_->mutex);
  if (impl_->is_draining)
    throw Error(ErrorKind::kUnavailable, "The server is shutting down and takes no new requests; send it to another or later");
  impl_->check_room(request);
  Rank& rank = impl_->least_loaded();
  if (rank.is_dead) throw Error(ErrorKind::kUnavailable, "The engine has stopped after a failure; the server has to be restarted");
  const auto num_ranks = static_cast<uint64_t>(impl_->ranks.size());
  const auto rank_idx = static_cast<uint64_t>(
      std::find_if(impl_->ranks.begin(), impl_->ranks.end(), [&](const auto& r) { return r.get() == &rank; }) - impl_->ranks.begin());
  // The handle names the rank, so that cancel() finds it without a table.
  const RequestHandle handle = ++impl_->num_submitted * num_ranks + rank_idx;
  rank.num_arriving += request.n;
  rank.num_arriving_tokens += num_prompt_tokens(request);
  rank.inbox.emplace_back(Submission{handle, std::move(request), std::move(sink)});
  ++impl_->num_wakes;
  for (const auto& r : impl_->ranks)
    if (r.get() == &rank || r->sync) r->wake.notify_one();
  return handle;
}

void Controller::cancel(RequestHandle handle) {
  const std::lock_guard lock(impl_->mutex);
  if (handle > (impl_->num_submitted + 1) * impl_->ranks.size()) return;
  Rank& rank = *impl_->ranks[handle % impl_->ranks.size()];
  if (rank.is_dead) return;
  rank.inbox.emplace_back(Cancellation{handle});
  rank.wake.notify_one();
}

void Controller::begin_drain() {
  const std::lock_guard lock(impl_->mutex);
  impl_->is_draining = true;
}

bool Controller::wait_until_idle(int64_t timeout_ms) {
  std::unique_lock lock(impl_->mutex);
  // Bounded so that the deadline stays within the clock's range.
  const int64_t bounded_ms = std::clamp<int64_t>(timeout_ms, 0, int64_t{1} << 40);
  return impl_->idle.wait_for(lock, std::chrono::milliseconds(bounded_ms),
                              [this] { return impl_->is_idle(); });
}

EngineStats Controller::stats(int rank) const {
  const std::lock_guard lock(impl_->mutex);
  const Rank& r = *impl_->ranks.at(static_cast<size_t>(rank));
  EngineStats stats = r.published;
  stats.num_waiting = r.num_queued();
  stats.num_waiting_tokens = r.num_queued_tokens();
  return stats;
}

int Controller::num_ranks() const { return static_cast<int>(impl_->ranks.size()); }

const Engine& Controller::engine(int rank) const { return *impl_->ranks.at(static_cast<size_t>(rank))->engine; }

bool Controller::is_healthy() const {
  const std::lock_guard lock(impl_->mutex);
  const int64_t now_us = impl_->clock->now_us();
  return std::all_of(impl_->ranks.begin(), impl_->ranks.end(), [&](const auto& rank) {
    return !rank->is_dead && (rank->busy_since_us == kNotBusy || now_us - rank->busy_since_us <= impl_->options.step_timeout_us);
  });
}

// By sequences, then by tokens still to be prefilled; the first of equals.
Rank& Controller::Impl::least_loaded() {
  const auto load = [](const Rank& rank) {
    return std::tuple(rank.is_dead, rank.num_queued() + rank.published.num_running, rank.num_queued_tokens());
  };
  return **std::min_element(ranks.begin(), ranks.end(), [&](const auto& a, const auto& b) { return load(*a) < load(*b); });
}

void Controller::Impl::check_room(const GenerationRequest& request) const {
  int64_t num_queued = 0, num_tokens = 0;
  for (const auto& rank : ranks) {
    num_queued += rank->num_queued();
    num_tokens += rank->num_queued_tokens();
  }
  if (num_queued == 0) return;
  if (num_queued + request.n > options.max_queued_requests)
    throw Error(ErrorKind::kOverloaded, fmt::format("The queue holds {} of at most {} waiting requests; try again later", num_queued,
                                                    options.max_queued_requests));
  if (num_tokens + num_prompt_tokens(request) > options.max_queued_tokens)
    throw Error(ErrorKind::kOverloaded, fmt::format("The queue holds {} of at most {} waiting prompt tokens; try again later",
                                                    num_tokens, options.max_queued_tokens));
}

// The thread of a rank.
void Controller::Impl::run(Rank& rank) {
  Engine& engine = *rank.engine;
  try {
    rank.sync ? run_together(rank) : run_alone(rank);
    engine.cancel_all();
  } catch (const PeerLost& e) {
    rank.sync->abort(e.what());
    engine.fail_all(fmt::format("A rank of the deployment was lost ({}); send the request again when the server has restarted", e.what()));
    const std::lock_guard lock(mutex);
    rank.is_dead = true;
  } catch (...) {
    // Even failing the requests failed: only a restart helps, and is_healthy() says so.
    if (rank.sync) rank.sync->abort("failed");
    const std::lock_guard lock(mutex);
    rank.is_dead = true;
  }
  std::vector<Command> left;
  {
    const std::lock_guard lock(mutex);
    std::swap(left, rank.inbox);
    rank.published = engine.stats();
    rank.num_arriving = rank.num_arriving_tokens = 0;
    rank.busy_since_us = kNotBusy;
    idle.notify_all();
  }
  for (Command& command : left)
    if (auto* submission = std::get_if<Submission>(&command)) refuse(*submission);
}

// Commands that came in before a step take effect before it.
void Controller::Impl::run_alone(Rank& rank) {
  Engine& engine = *rank.engine;
  std::vector<Command> commands;
  while (take_commands(rank, &commands)) {
    try {
      execute(engine, &commands);
      const int64_t num_rows = engine.schedule();
      publish(rank);  // a step may be long: what runs in it waits no more
      if (num_rows > 0) engine.run_scheduled();
    } catch (const std::exception& e) {
      engine.fail_all(fmt::format("The engine failed ({}); send the request again", e.what()));
    }
    publish(rank);
    if (!engine.has_work()) rest(rank);
  }
  execute(engine, &commands);
}

// The same with all ranks at once: before each step they vote (sched/step_agreement.h).
void Controller::Impl::run_together(Rank& rank) {
  Engine& engine = *rank.engine;
  StepAgreement agreement(options.sync);
  std::vector<Command> commands;
  std::vector<int64_t> dp_rows(ranks.size());
  for (int64_t step = 0;; ++step) {
    StepVote vote;
    {
      std::unique_lock lock(mutex);
      rank.wake.wait(lock, [&] { return is_stopping || !rank.inbox.empty() || agreement.must_vote(num_wakes); });
      std::swap(commands, rank.inbox);
      vote.num_wakes = num_wakes;
      vote.is_stopping = is_stopping;
      if (agreement.must_vote(num_wakes) || is_stopping) rank.busy_since_us = clock->now_us();
    }
    try {
      execute(engine, &commands);
    } catch (const std::exception& e) {
      engine.fail_all(fmt::format("The engine failed ({}); send the request again", e.what()));
    }
    if (!vote.is_stopping && !agreement.must_vote(vote.num_wakes)) {  // a cancellation that came too late
      publish(rank);
      continue;
    }
    vote.num_rows = engine.schedule();
    vote.has_work = engine.has_work();
    publish(rank);
    rank.sync->set_step(step);
    const std::span<const StepVote> votes = rank.sync->exchange(vote);
    const StepVerdict verdict = agreement.decide(votes);
    if (verdict == StepVerdict::kStop) return;
    if (verdict == StepVerdict::kRun) {
      for (size_t r = 0; r < votes.size(); ++r) dp_rows[r] = votes[r].num_rows;
      try {
        engine.run_scheduled(dp_rows);
      } catch (const PeerLost&) {
        throw;
      } catch (const std::exception& e) {
        engine.fail_all(fmt::format("The engine failed ({}); send the request again", e.what()));
      }
      publish(rank);
    }
    if (verdict == StepVerdict::kPause) rest(rank);
  }
}

// A request that was on its way to a rank which is no more.
void Controller::Impl::refuse(Submission& submission) {
  for (int32_t choice = 0; choice < submission.request.n; ++choice) {
    Delta delta;
    delta.choice_idx = choice;
    delta.finish = FinishReason::kError;
    delta.error = "The engine has stopped; send the request again when the server has restarted";
    if (submission.sink) submission.sink(std::move(delta));
  }
}

// Waits for something to do. False when the controller is going away.
bool Controller::Impl::take_commands(Rank& rank, std::vector<Command>* commands) {
  std::unique_lock lock(mutex);
  rank.wake.wait(lock, [&] { return is_stopping || !rank.inbox.empty() || rank.busy_since_us != kNotBusy; });
  commands->clear();
  std::swap(*commands, rank.inbox);
  rank.busy_since_us = clock->now_us();
  return !is_stopping;
}

void Controller::Impl::publish(Rank& rank) {
  const EngineStats stats = rank.engine->stats();
  const std::lock_guard lock(mutex);
  rank.published = stats;
  rank.num_arriving = rank.num_arriving_tokens = 0;
  for (const Command& command : rank.inbox) {
    const auto* submission = std::get_if<Submission>(&command);
    if (!submission) continue;
    rank.num_arriving += submission->request.n;
    rank.num_arriving_tokens += num_prompt_tokens(submission->request);
  }
}

void Controller::Impl::rest(Rank& rank) {
  const std::lock_guard lock(mutex);
  rank.busy_since_us = kNotBusy;
  if (is_idle()) idle.notify_all();
}

void Controller::Impl::execute(Engine& engine, std::vector<Command>* commands) {
  for (Command& command : *commands) {
    if (auto* submission = std::get_if<Submission>(&command)) {
      engine.add(submission->handle, std::move(submission->request), std::move(submission->sink));
    } else {
      engine.cancel(std::get<Cancellation>(command).handle);
    }
  }
  commands->clear();
}

}  // namespace cadre
