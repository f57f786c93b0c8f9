#include "dp/controller.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"
#include "comm/transport.h"
#include "dp/admission.h"

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

// Ranks with experts in other places than their peers believe would answer wrongly without a sign of it.
void check_generations(std::span<const StepVote> votes) {
  for (const StepVote& vote : votes)
    if (vote.generation != votes[0].generation)
      throw Error(ErrorKind::kInternal, fmt::format("expected one generation of expert placements on all ranks, found {} and {}; restart the server", votes[0].generation, vote.generation));
}

constexpr int64_t kNotBusy = -1;
constexpr char kSendAgain[] = "; send the request again when the server has restarted";

// Everything but the engine is guarded by the controller's mutex; the engine belongs to the thread, but for its constants.
struct Rank {
  int idx = 0;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<StepSync> sync;  // with the other ranks; null: none
  std::unique_ptr<RankLink> link;  // instead of the two, for a rank in another process
  int64_t sent_wakes = 0;          // over the link
  int64_t heard_wakes = 0;         // voted with last
  std::thread thread;
  std::condition_variable wake;
  std::vector<Command> inbox;
  EngineStats published;         // of the last decision or step
  uint64_t num_taken = 0;        // assignments whose submission has left the inbox
  int64_t busy_since_us = kNotBusy;
  bool is_dead = false;          // its thread gave up
  std::string end_reason = "The engine has stopped";

  bool is_idle() const { return inbox.empty() && busy_since_us == kNotBusy; }
};

}  // namespace

struct Controller::Impl {
  // With the mutex held.
  bool is_healthy(const Rank& rank) const;
  void set_published(Rank& rank, const EngineStats& stats);
  void take_inbox(Rank& rank, std::vector<Command>* commands);
  void set_dead(Rank& rank);

  void give_up(Rank& rank, const std::string& reason);
  void run(Rank& rank);
  void run_alone(Rank& rank);
  void run_together(Rank& rank);
  void run_step(Rank& rank, std::span<const int64_t> dp_rows, int64_t order) const;
  void run_remote(Rank& rank);
  void take_report(Rank& rank, const RankReport& report);
  void lose(Rank& rank, const std::string& how);
  void report(Rank& rank, const EngineStats& stats, bool is_paused) const;
  bool take_commands(Rank& rank, std::vector<Command>* commands);
  void publish(Rank& rank);
  void rest(Rank& rank);
  void set_not_busy(Rank& rank);
  static void refuse(Submission& submission, const std::string& reason);
  static void execute(Engine& engine, std::vector<Command>* commands);
  bool is_idle() const {
    return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->is_idle(); });
  }

  ControllerOptions options;
  SteadyClock steady_clock;
  const Clock* clock = nullptr;
  std::vector<std::unique_ptr<Rank>> ranks;

  mutable std::mutex mutex;
  std::optional<Admission> admission;
  std::condition_variable idle;
  uint64_t num_submitted = 0;
  int64_t num_wakes = 0;  // StepVote::num_wakes
  uint64_t num_accepted = 0;
  bool is_draining = false;
  bool is_stopping = false;
};

Controller::Controller(std::vector<std::unique_ptr<Engine>> engines, ControllerOptions options, std::vector<std::unique_ptr<StepSync>> syncs,
                       std::vector<std::unique_ptr<RankLink>> links)
    : impl_(std::make_unique<Impl>()) {
  CADRE_CHECK(!engines.empty(), "a controller of no engine");
  impl_->options = options;
  impl_->clock = options.clock ? options.clock : &impl_->steady_clock;
  CADRE_CHECK(syncs.empty() || syncs.size() == engines.size(), "{} syncs of {} engines", syncs.size(), engines.size());
  syncs.resize(engines.size());
  impl_->admission.emplace(options.load_balance, static_cast<int>(engines.size() + links.size()),
                           QueueLimits{.max_requests = options.max_queued_requests, .max_tokens = options.max_queued_tokens});
  for (size_t i = 0; i < engines.size(); ++i) {
    auto rank = std::make_unique<Rank>();
    rank->idx = static_cast<int>(i);
    rank->sync = std::move(syncs[i]);
    rank->engine = std::move(engines[i]);
    impl_->set_published(*rank, rank->engine->stats());
    impl_->ranks.push_back(std::move(rank));
  }
  for (auto& link : links) {
    auto rank = std::make_unique<Rank>();
    rank->idx = static_cast<int>(impl_->ranks.size());
    rank->link = std::move(link);
    impl_->set_published(*rank, impl_->ranks[0]->published);  // ranks are alike
    impl_->ranks.push_back(std::move(rank));
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
  for (auto& rank : impl_->ranks) rank->link.reset();  // its threads call impl_; every rank's thread may have called it
}

RequestHandle Controller::submit(GenerationRequest request, DeltaSink sink) {
  // Engines of one controller have the same limits.
  impl_->ranks[0]->engine->validate(request);
  const std::lock_guard lock(impl_->mutex);
  if (impl_->is_draining)
    throw Error(ErrorKind::kUnavailable, "The server is shutting down and takes no new requests; send it to another or later");
  const RoutingWish wish{.rank = request.data_parallel_rank, .room = request.bootstrap_room};
  const auto rank_idx = static_cast<size_t>(impl_->admission->assign(wish, {request.n, num_prompt_tokens(request)}));
  Rank& rank = *impl_->ranks[rank_idx];
  // The handle names the rank, so that cancel() finds it without a table.
  const RequestHandle handle = ++impl_->num_submitted * impl_->ranks.size() + rank_idx;
  rank.inbox.emplace_back(Submission{handle, std::move(request), std::move(sink)});
  ++impl_->num_wakes;
  for (const auto& r : impl_->ranks)
    if (r.get() == &rank || r->sync || r->link) r->wake.notify_one();
  return handle;
}

void Controller::accept(RequestHandle handle, GenerationRequest request, DeltaSink sink) {
  const std::lock_guard lock(impl_->mutex);
  ++impl_->num_accepted;
  impl_->ranks[0]->inbox.emplace_back(Submission{handle, std::move(request), std::move(sink)});
  impl_->ranks[0]->wake.notify_one();
}

void Controller::cancel_accepted(RequestHandle handle) {
  const std::lock_guard lock(impl_->mutex);
  impl_->ranks[0]->inbox.emplace_back(Cancellation{handle});
  impl_->ranks[0]->wake.notify_one();
}

void Controller::set_wakes(int64_t num_wakes) {
  const std::lock_guard lock(impl_->mutex);
  impl_->num_wakes = std::max(impl_->num_wakes, num_wakes);
  impl_->ranks[0]->wake.notify_one();
}

int Controller::rank_of(RequestHandle handle) const { return static_cast<int>(handle % impl_->ranks.size()); }

void Controller::cancel(RequestHandle handle) {
  const std::lock_guard lock(impl_->mutex);
  if (handle > (impl_->num_submitted + 1) * impl_->ranks.size()) return;
  Rank& rank = *impl_->ranks[static_cast<size_t>(rank_of(handle))];
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

EngineStats Controller::stats(int rank) const { return status(rank).stats; }

RankStatus Controller::status(int rank) const {
  const std::lock_guard lock(impl_->mutex);
  const Rank& r = *impl_->ranks.at(static_cast<size_t>(rank));
  RankStatus status{.stats = r.published, .load = impl_->admission->router().load(rank), .num_assigned = impl_->admission->router().num_assigned(rank), .is_healthy = impl_->is_healthy(r)};
  const RankLoad queued = impl_->admission->queued(rank);
  status.stats.num_waiting = queued.num_requests;
  status.stats.num_waiting_tokens = queued.num_tokens;
  return status;
}

const ControllerOptions& Controller::options() const { return impl_->options; }

int Controller::num_ranks() const { return static_cast<int>(impl_->ranks.size()); }

const Engine& Controller::engine(int rank) const {
  const Rank& r = *impl_->ranks.at(static_cast<size_t>(rank));
  CADRE_CHECK(r.engine, "rank {} is in another process", rank);
  return *r.engine;
}

bool Controller::is_healthy() const {
  const std::lock_guard lock(impl_->mutex);
  return std::all_of(impl_->ranks.begin(), impl_->ranks.end(), [&](const auto& rank) { return impl_->is_healthy(*rank); });
}

bool Controller::Impl::is_healthy(const Rank& rank) const {
  return !rank.is_dead && (rank.busy_since_us == kNotBusy || clock->now_us() - rank.busy_since_us <= options.step_timeout_us);
}

void Controller::Impl::set_published(Rank& rank, const EngineStats& stats) {
  rank.published = stats;
  // With on_report, requests are routed elsewhere: this router assigns none.
  admission->publish(rank.idx, {stats.num_waiting, stats.num_running, stats.num_waiting_tokens, stats.num_running_tokens}, options.on_report ? 0 : rank.num_taken);
}

void Controller::Impl::take_inbox(Rank& rank, std::vector<Command>* commands) {
  commands->clear();
  std::swap(*commands, rank.inbox);
  rank.num_taken = options.on_report ? num_accepted : admission->router().num_assigned(rank.idx);
}

// Ranks that step together end together.
void Controller::Impl::set_dead(Rank& rank) {
  rank.is_dead = true;
  for (const auto& other : ranks)
    if (other.get() == &rank || rank.sync || rank.link) admission->remove(other->idx);
}

// Ends a rank whose thread cannot go on, whatever the reason: its peers must not wait for it, nor its requests for an answer.
void Controller::Impl::give_up(Rank& rank, const std::string& reason) {
  if (rank.sync) rank.sync->abort(reason);
  const std::string lost = fmt::format("A rank of the deployment was lost ({})", reason);
  try {
    rank.engine->fail_all(lost + kSendAgain);
  } catch (const std::exception&) {
    // Not even that: only a restart helps, and is_healthy() says so.
  }
  {
    const std::lock_guard lock(mutex);
    rank.end_reason = lost;
    set_dead(rank);
  }
  // Who steps with this rank steps no more, and one that stands still will not say so.
  for (const auto& other : ranks)
    if (other->link) lose(*other, reason);
}

// The thread of a rank.
void Controller::Impl::run(Rank& rank) {
  if (rank.link) return run_remote(rank);
  Engine& engine = *rank.engine;
  try {
    rank.sync ? run_together(rank) : run_alone(rank);
    engine.cancel_all();
  } catch (const std::exception& e) {
    give_up(rank, e.what());
  } catch (...) {
    give_up(rank, "unknown failure");
  }
  std::vector<Command> left;
  std::string reason;
  {
    const std::lock_guard lock(mutex);
    reason = rank.end_reason;
    take_inbox(rank, &left);
    rank.busy_since_us = clock->now_us();  // not idle before the last request has its end
  }
  for (Command& command : left)
    if (auto* submission = std::get_if<Submission>(&command)) refuse(*submission, reason);
  {
    const std::lock_guard lock(mutex);
    set_published(rank, engine.stats());
  }
  set_not_busy(rank);
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
      if (num_rows > 0) run_step(rank, {}, engine.order());
    } catch (const PeerLost&) {  // of the ranks that share this one's heads or experts
      throw;
    } catch (const std::exception& e) {
      engine.fail_all(fmt::format("The engine failed ({}); send the request again", e.what()));
    }
    publish(rank);
    if (!engine.has_work()) rest(rank);
  }
  execute(engine, &commands);
}

void Controller::Impl::run_step(Rank& rank, std::span<const int64_t> dp_rows, int64_t order) const {
  if (options.step_observer.begins) options.step_observer.begins(rank.idx, rank.engine->scheduled());
  rank.engine->run_scheduled(dp_rows, order);
  if (options.step_observer.ends) options.step_observer.ends(rank.idx);
}

// The same with all ranks at once: before each step they vote (sched/step_agreement.h).
void Controller::Impl::run_together(Rank& rank) {
  Engine& engine = *rank.engine;
  StepAgreement agreement(options.sync);
  std::vector<Command> commands;
  std::vector<int64_t> dp_rows;
  bool is_shared_step = false;  // others decode in it
  for (int64_t step = 0;; ++step) {
    StepVote vote;
    {
      std::unique_lock lock(mutex);
      rank.wake.wait(lock, [&] { return is_stopping || !rank.inbox.empty() || agreement.must_vote(num_wakes); });
      take_inbox(rank, &commands);
      vote.num_wakes = rank.heard_wakes = num_wakes;
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
      rest(rank);
      continue;
    }
    vote.num_rows = engine.schedule(is_shared_step);
    vote.num_samples = engine.num_scheduled_samples();
    vote.has_work = engine.has_work();
    vote.generation = engine.placement_generation();
    vote.order = engine.order();
    publish(rank);
    rank.sync->set_step(step);
    const std::span<const StepVote> votes = rank.sync->exchange(vote);
    check_generations(votes);
    const StepVerdict verdict = agreement.decide(votes);
    is_shared_step = others_decode(votes, options.first_rank + rank.idx);
    if (verdict == StepVerdict::kStop) return;
    if (verdict == StepVerdict::kRun) {
      dp_rows.resize(votes.size());
      for (size_t r = 0; r < votes.size(); ++r) dp_rows[r] = votes[r].num_rows;
      try {
        run_step(rank, dp_rows, votes[0].order);
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

// Forwards what comes for a rank in another process. Its requests go before the wake that counts them, so that a rank which
// has heard of a wake has its requests too.
void Controller::Impl::run_remote(Rank& rank) {
  const auto lost = [this, &rank](const std::string& how) { lose(rank, fmt::format("the connection to data-parallel rank {} {}", rank.idx, how)); };
  rank.link->start([this, &rank](const RankReport& r) { take_report(rank, r); }, lost);
  std::vector<Command> commands;
  for (bool is_last = false; !is_last;) {
    int64_t wakes = 0;
    bool is_dead = false;
    std::string reason;
    {
      std::unique_lock lock(mutex);
      rank.wake.wait(lock, [&] { return is_stopping || !rank.inbox.empty() || (num_wakes > rank.sent_wakes && !rank.is_dead); });
      commands.clear();
      std::swap(commands, rank.inbox);
      wakes = rank.sent_wakes = num_wakes;
      is_last = is_stopping;
      is_dead = rank.is_dead;
      reason = rank.end_reason;
      rank.busy_since_us = clock->now_us();
    }
    for (Command& command : commands) {
      if (auto* cancellation = std::get_if<Cancellation>(&command)) {
        rank.link->cancel(cancellation->handle);
        continue;
      }
      auto& submission = std::get<Submission>(command);
      if (is_dead) refuse(submission, reason);
      else rank.link->submit(submission.handle, submission.request, std::move(submission.sink));
    }
    rank.link->wake(wakes);
    {
      const std::lock_guard lock(mutex);
      is_dead = rank.is_dead;
      reason = rank.end_reason;
    }
    if (is_dead && !is_last) {
      rank.link->fail_all(reason + kSendAgain);  // what was handed over while the connection broke
      set_not_busy(rank);
    }
  }
  rank.link->stop();
  std::unique_lock lock(mutex);
  rank.wake.wait_for(lock, std::chrono::seconds(10), [&] { return rank.is_dead; });
  lock.unlock();
  rank.link->fail_all(std::string("The server has stopped") + kSendAgain);
}

void Controller::Impl::take_report(Rank& rank, const RankReport& report) {
  const std::lock_guard lock(mutex);
  rank.num_taken = report.num_taken;
  set_published(rank, report.stats);
  if (!report.is_paused) rank.busy_since_us = clock->now_us();  // it makes steps
  if (!report.is_paused || report.num_wakes < num_wakes || rank.sent_wakes < num_wakes || !rank.inbox.empty()) return;
  rank.busy_since_us = kNotBusy;
  if (is_idle()) idle.notify_all();
}

void Controller::Impl::lose(Rank& rank, const std::string& how) {
  const std::string lost = fmt::format("A rank of the deployment was lost ({})", how);
  bool is_expected;
  {
    const std::lock_guard lock(mutex);
    is_expected = is_stopping;
    if (!is_expected) rank.end_reason = lost;
    set_dead(rank);
    rank.wake.notify_all();
  }
  if (!is_expected) rank.link->fail_all(lost + kSendAgain);
  set_not_busy(rank);
}

void Controller::Impl::report(Rank& rank, const EngineStats& stats, bool is_paused) const {
  if (options.on_report) options.on_report({stats, rank.num_taken, rank.heard_wakes, is_paused});
}

// A request that was on its way to a rank which is no more.
void Controller::Impl::refuse(Submission& submission, const std::string& reason) {
  for (int32_t choice = 0; choice < submission.request.n; ++choice) {
    Delta delta;
    delta.choice_idx = choice;
    delta.finish = FinishReason::kError;
    delta.error = reason + kSendAgain;
    if (submission.sink) submission.sink(std::move(delta));
  }
}

// Waits for something to do. False when the controller is going away.
bool Controller::Impl::take_commands(Rank& rank, std::vector<Command>* commands) {
  std::unique_lock lock(mutex);
  rank.wake.wait(lock, [&] { return is_stopping || !rank.inbox.empty() || rank.busy_since_us != kNotBusy; });
  take_inbox(rank, commands);
  rank.busy_since_us = clock->now_us();
  return !is_stopping;
}

void Controller::Impl::publish(Rank& rank) {
  const EngineStats stats = rank.engine->stats();
  report(rank, stats, false);
  const std::lock_guard lock(mutex);
  set_published(rank, stats);
}

void Controller::Impl::rest(Rank& rank) {
  report(rank, rank.engine->stats(), true);
  set_not_busy(rank);
}

void Controller::Impl::set_not_busy(Rank& rank) {
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
