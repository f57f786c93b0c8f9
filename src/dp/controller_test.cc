#include "dp/controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "tests/support/scripted_model.h"
#include "tests/testing.h"
#include "tokenizer/byte_tokenizer.h"

namespace cadre {
namespace {

using testing::ScriptedModel;
using testing::ScriptedModelOptions;

// A gate that the model's step waits at: a test decides when a step may begin.
class Gate {
 public:
  void arrive() {
    std::unique_lock lock(mutex_);
    ++num_arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_open_ || num_allowed_ > 0; });
    if (!is_open_) --num_allowed_;
  }
  void wait_for_arrivals(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_arrived_ >= count; });
  }
  void allow(int64_t count) {
    const std::lock_guard lock(mutex_);
    num_allowed_ += count;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_arrived_ = 0, num_allowed_ = 0;
  bool is_open_ = false;
};

// One answer, collected from the engine's thread. Its sink may outlive it.
class Inbox {
 public:
  DeltaSink sink(int32_t num_choices = 1) {
    return [state = state_, num_choices](Delta&& delta) {
      const std::lock_guard lock(state->mutex);
      state->text += delta.text;
      if (!delta.finish) return;
      state->finish = delta.finish;
      state->is_done = ++state->num_finished == num_choices;
      state->changed.notify_all();
    };
  }
  FinishReason wait() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->is_done; });
    return *state_->finish;
  }
  std::string text() const {
    const std::lock_guard lock(state_->mutex);
    return state_->text;
  }
  bool is_done() const {
    const std::lock_guard lock(state_->mutex);
    return state_->is_done;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::string text;
    std::optional<FinishReason> finish;
    int32_t num_finished = 0;
    bool is_done = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Votes of ranks that are threads.
struct VoteTable {
  explicit VoteTable(size_t num_ranks) : coming(num_ranks) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<StepVote> coming, agreed;
  size_t num_votes = 0;
  uint64_t turn = 0;
};

class TableSync final : public StepSync {
 public:
  TableSync(std::shared_ptr<VoteTable> table, size_t rank) : table_(std::move(table)), rank_(rank) {}
  std::span<const StepVote> exchange(const StepVote& mine) override {
    std::unique_lock lock(table_->mutex);
    table_->coming[rank_] = mine;
    if (++table_->num_votes == table_->coming.size()) {
      table_->agreed = table_->coming;  // nobody reads the last ones any more: all have voted again
      table_->num_votes = 0;
      ++table_->turn;
      table_->changed.notify_all();
    } else {
      table_->changed.wait(lock, [&, turn = table_->turn] { return table_->turn != turn; });
    }
    return table_->agreed;
  }
  void set_step(int64_t) override {}
  void abort(const std::string&) override {}

 private:
  std::shared_ptr<VoteTable> table_;
  size_t rank_;
};

class ControllerTest : public ::testing::Test {
 protected:
  void make(ControllerOptions options = {}, int num_ranks = 1, ScriptedModelOptions model = {},
                                   EngineOptions engine_options = {}) {
    if (engine_options.num_kv_blocks == 0) engine_options.num_kv_blocks = 64;
    engine_options.eos_ids = {257};
    std::vector<std::unique_ptr<Engine>> engines;
    for (int rank = 0; rank < num_ranks; ++rank)
      engines.push_back(std::make_unique<Engine>(std::make_unique<ScriptedModel>(model), tokenizer, engine_options, clock));
    controller = std::make_unique<Controller>(std::move(engines), options);
  }
  GenerationRequest request(const std::string& prompt, int32_t n = 1) {
    return {.prompt = tokenizer->encode(prompt, false), .sampling = {.temperature = 0}, .n = n};
  }

  // However a test ends, the controller can go.
  void TearDown() override {
    gate.open();
    controller.reset();
  }
  ScriptedModelOptions gated() {
    return {.before_forward = [this](const StepInput&) { gate.arrive(); }};
  }
  std::optional<ErrorKind> refusal(GenerationRequest request) {
    try {
      controller->submit(std::move(request), [](Delta&&) { ADD_FAILURE() << "a refused request got an answer"; });
    } catch (const Error& e) {
      return e.kind();
    }
    return std::nullopt;
  }

  SteadyClock clock;
  Gate gate;
  std::shared_ptr<const Tokenizer> tokenizer = std::make_shared<ByteTokenizer>();
  std::unique_ptr<Controller> controller;
};

TEST_F(ControllerTest, Answers) {
  make();
  Inbox inbox;
  controller->submit(request("<<say hello>>"), inbox.sink());
  EXPECT_EQ(inbox.wait(), FinishReason::kStop);
  EXPECT_EQ(inbox.text(), "hello");
  EXPECT_TRUE(controller->wait_until_idle(60'000));
  EXPECT_TRUE(controller->is_healthy());
  EXPECT_EQ(controller->stats(0).num_finished_stop, 1u);
}

TEST_F(ControllerTest, RefusesBeforeQueueing) {
  make();
  Inbox inbox;
  EXPECT_EQ(refusal({.prompt = {}}), ErrorKind::kInvalidInput);
  EXPECT_EQ(refusal({.prompt = std::vector<int32_t>(5000, 'a')}), ErrorKind::kContextLength);
  EXPECT_TRUE(controller->wait_until_idle(60'000));
}

TEST_F(ControllerTest, AFullQueueIsSaidAndEmptiesAgain) {
  make({.max_queued_requests = 3, .max_queued_tokens = 100}, 1, gated(), {.max_num_seqs = 1});
  Inbox running, waiting[3], later;
  controller->submit(request("<<say r>>"), running.sink());
  gate.wait_for_arrivals(1);  // it is in its first step: the queue is empty
  controller->submit(request("<<say a>>"), waiting[0].sink());
  controller->submit(request("<<say b>>", 2), waiting[1].sink(2));
  EXPECT_EQ(controller->stats(0).num_waiting, 3);
  EXPECT_EQ(controller->stats(0).num_waiting_tokens, 27);
  EXPECT_EQ(refusal(request("<<say c>>")), ErrorKind::kOverloaded);
  gate.open();
  for (Inbox* inbox : {&running, &waiting[0], &waiting[1]}) EXPECT_EQ(inbox->wait(), FinishReason::kStop);
  EXPECT_TRUE(controller->wait_until_idle(60'000));
  controller->submit(request("<<say d>>"), later.sink());
  EXPECT_EQ(later.wait(), FinishReason::kStop);
}

TEST_F(ControllerTest, TheQueueIsBoundedByTokensButTakesAnythingWhenEmpty) {
  make({.max_queued_requests = 100, .max_queued_tokens = 20}, 1, gated(), {.max_num_seqs = 1});
  Inbox running, large;
  controller->submit(request("<<say r>>"), running.sink());
  gate.wait_for_arrivals(1);
  controller->submit(request("<<say a rather large one, of more than twenty tokens>>"), large.sink());
  EXPECT_EQ(refusal(request("b")), ErrorKind::kOverloaded);
  gate.open();
  EXPECT_EQ(large.wait(), FinishReason::kStop);
}

TEST_F(ControllerTest, CancelsTakeEffectBeforeTheNextStep) {
  make({}, 1, gated(), {.max_num_seqs = 2, .max_num_batched_tokens = 12});
  Inbox decoding, prefilling, waiting, arriving;
  const auto a = controller->submit(request("<<loop x>>"), decoding.sink());
  gate.wait_for_arrivals(1);
  const auto b = controller->submit(request("a prompt that takes several steps to prefill"), prefilling.sink());
  const auto c = controller->submit(request("waits"), waiting.sink());
  gate.allow(1);
  gate.wait_for_arrivals(2);  // a decodes, b is in its first chunk, c waits
  const auto d = controller->submit(request("on its way in"), arriving.sink());
  for (const auto handle : {a, b, c, d, d, a + 1000}) controller->cancel(handle);
  EXPECT_FALSE(decoding.is_done());
  gate.allow(1);
  for (Inbox* inbox : {&decoding, &prefilling, &waiting, &arriving}) EXPECT_EQ(inbox->wait(), FinishReason::kCancelled);
  EXPECT_TRUE(controller->wait_until_idle(60'000));
  const EngineStats stats = controller->stats(0);
  EXPECT_EQ(stats.num_steps, 2u);
  EXPECT_EQ(stats.num_cancelled_decode, 1u);
  EXPECT_EQ(stats.num_cancelled_prefill, 1u);
  EXPECT_EQ(stats.num_cancelled_waiting, 2u);
  EXPECT_EQ(stats.num_free_blocks, stats.num_blocks);
  controller->cancel(a);  // long finished
  EXPECT_TRUE(controller->wait_until_idle(60'000));
}

TEST_F(ControllerTest, DrainingRefusesNewRequestsAndEndsTheOthers) {
  make({}, 1, gated(), {.max_num_seqs = 1});
  Inbox running, waiting;
  controller->submit(request("<<say running>>"), running.sink());
  gate.wait_for_arrivals(1);
  controller->submit(request("<<say waiting>>"), waiting.sink());
  controller->begin_drain();
  EXPECT_EQ(refusal(request("late")), ErrorKind::kUnavailable);
  EXPECT_FALSE(controller->wait_until_idle(0));
  EXPECT_FALSE(controller->wait_until_idle(1));
  gate.open();
  EXPECT_TRUE(controller->wait_until_idle(60'000));
  EXPECT_EQ(running.text(), "running");
  EXPECT_EQ(waiting.text(), "waiting");
  EXPECT_EQ(refusal(request("late")), ErrorKind::kUnavailable);
}

TEST_F(ControllerTest, HealthIsProgress) {
  static ManualClock manual;  // outlives the controller
  make({.step_timeout_us = 1000, .clock = &manual}, 2, gated());
  manual.advance_us(5000);
  EXPECT_TRUE(controller->is_healthy());  // nothing to do
  Inbox inbox;
  controller->submit(request("<<say ab>>"), inbox.sink());
  gate.wait_for_arrivals(1);
  manual.advance_us(900);
  EXPECT_TRUE(controller->is_healthy());
  manual.advance_us(200);
  EXPECT_FALSE(controller->is_healthy());
  gate.allow(1);
  gate.wait_for_arrivals(2);  // the next step: progress again
  EXPECT_TRUE(controller->is_healthy());
  manual.advance_us(2000);
  EXPECT_FALSE(controller->is_healthy());
  gate.open();
  inbox.wait();
  EXPECT_TRUE(controller->wait_until_idle(60'000));
  manual.advance_us(5000);
  EXPECT_TRUE(controller->is_healthy());
}

TEST_F(ControllerTest, GoingAwayCancelsWhatIsLeft) {
  Inbox running, waiting, arriving;
  // So long that no answer comes to its end by itself.
  ScriptedModelOptions model = gated();
  model.max_position = 1'000'000;
  make({}, 1, model, {.max_num_seqs = 1, .num_kv_blocks = 70'000});
  controller->submit(request("<<loop x>>"), running.sink());
  gate.wait_for_arrivals(1);
  controller->submit(request("<<loop x>>", 3), waiting.sink(3));
  gate.allow(1);
  gate.wait_for_arrivals(2);
  controller->submit(request("<<loop x>>"), arriving.sink());
  std::thread opener([&] {
    gate.wait_for_arrivals(2);
    gate.open();
  });
  controller.reset();
  opener.join();
  for (Inbox* inbox : {&running, &waiting, &arriving}) {
    EXPECT_TRUE(inbox->is_done());
    EXPECT_EQ(inbox->wait(), FinishReason::kCancelled);
  }
}

TEST_F(ControllerTest, SpreadsOverTheLeastLoadedRanks) {
  make({}, 3, gated());
  std::vector<std::unique_ptr<Inbox>> inboxes;
  std::vector<RequestHandle> handles;
  for (int i = 0; i < 9; ++i) {
    inboxes.push_back(std::make_unique<Inbox>());
    handles.push_back(controller->submit(request("<<loop x>>"), inboxes.back()->sink()));
    gate.wait_for_arrivals(std::min(i + 1, 3));
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(controller->stats(rank).num_waiting + controller->stats(rank).num_running, 3);
  for (const auto handle : handles) controller->cancel(handle);
  gate.open();
  for (const auto& inbox : inboxes) EXPECT_EQ(inbox->wait(), FinishReason::kCancelled);
}

// One at a time, so that all ranks are equally idle: turns decide.
TEST_F(ControllerTest, MethodsAndPinsChooseTheRank) {
  const auto ranks_of = [&](LoadBalance method, const std::vector<GenerationRequest>& all) {
    make({.load_balance = method}, 3);
    std::vector<int> out;
    std::vector<std::unique_ptr<Inbox>> inboxes;
    for (const GenerationRequest& r : all) {
      inboxes.push_back(std::make_unique<Inbox>());
      out.push_back(controller->rank_of(controller->submit(r, inboxes.back()->sink())));
      inboxes.back()->wait();
      EXPECT_TRUE(controller->wait_until_idle(60'000));
    }
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(controller->status(static_cast<int>(i)).num_assigned, static_cast<uint64_t>(std::count(out.begin(), out.end(), static_cast<int>(i))));
    return out;
  };
  GenerationRequest plain = request("<<say a>>"), pinned = plain, with_room = plain;
  pinned.data_parallel_rank = 2;
  with_room.bootstrap_room = 7;
  for (const LoadBalance method : {LoadBalance::kRoundRobin, LoadBalance::kTotalRequests, LoadBalance::kTotalTokens})
    EXPECT_EQ(ranks_of(method, {plain, plain, pinned, plain, with_room}), (std::vector<int>{0, 1, 2, 2, 0})) << load_balance_name(method);
  EXPECT_EQ(ranks_of(LoadBalance::kFollowBootstrapRoom, {with_room, pinned, with_room}), (std::vector<int>{1, 2, 1}));
  EXPECT_EQ(refusal(plain), ErrorKind::kInvalidInput);
  pinned.data_parallel_rank = 3;
  EXPECT_EQ(refusal(pinned), ErrorKind::kInvalidInput);
}

TEST_F(ControllerTest, RunningTokensCountAsLoad) {
  make({}, 2, gated());
  Inbox long_one, short_ones[3];
  controller->submit(request("<<loop x>>" + std::string(300, '.') + "<<loop x>>"), long_one.sink());
  gate.wait_for_arrivals(1);  // it runs
  EXPECT_EQ(controller->status(0).load, (RankLoad{1, 320}));
  EXPECT_EQ(controller->stats(0).num_running_tokens, 320);
  for (Inbox& inbox : short_ones) EXPECT_EQ(controller->rank_of(controller->submit(request("<<loop x>>"), inbox.sink())), 1);
  EXPECT_EQ(controller->status(1).load, (RankLoad{3, 30}));
}

// A rank that only has a prompt runs it in small pieces while another one decodes, and in one go when nobody does.
TEST_F(ControllerTest, PromptsAreBoundedWhileAnotherRankDecodes) {
  for (const int64_t bound : {0, 5}) {
    std::atomic<int64_t> most_rows{0};
    std::vector<std::unique_ptr<Engine>> engines;
    std::vector<std::unique_ptr<StepSync>> syncs;
    const auto table = std::make_shared<VoteTable>(2);
    for (size_t rank = 0; rank < 2; ++rank) {
      const ScriptedModelOptions model{.before_forward = [&, rank](const StepInput& input) {
        int64_t num_rows = 0;
        for (const SequenceRows& rows : input.sequences) num_rows += static_cast<int64_t>(rows.tokens.size());
        if (rank == 1) most_rows = std::max(most_rows.load(), num_rows);
      }};
      engines.push_back(std::make_unique<Engine>(std::make_unique<ScriptedModel>(model), tokenizer,
                                                 EngineOptions{.max_prefill_tokens_per_step = bound, .num_kv_blocks = 256, .eos_ids = {257}}, clock));
      syncs.push_back(std::make_unique<TableSync>(table, rank));
    }
    controller = std::make_unique<Controller>(std::move(engines), ControllerOptions{}, std::move(syncs));
    const auto submit_to = [&](int rank, const std::string& prompt, DeltaSink sink) {
      GenerationRequest r = request(prompt);
      r.data_parallel_rank = rank;
      return controller->submit(std::move(r), std::move(sink));
    };
    std::string prompt(51, '.');
    prompt += "<<say x>>";
    Inbox alone, decoding, beside;
    submit_to(1, prompt, alone.sink());
    EXPECT_EQ(alone.wait(), FinishReason::kStop);
    EXPECT_EQ(most_rows, 60);
    EXPECT_TRUE(controller->wait_until_idle(60'000));
    most_rows = 0;
    Gate first_token;
    const auto handle = submit_to(0, "<<loop x>>", [&, sink = decoding.sink()](Delta&& delta) {
      sink(std::move(delta));
      first_token.arrive();
    });
    first_token.wait_for_arrivals(1);
    submit_to(1, prompt, beside.sink());
    first_token.open();
    EXPECT_EQ(beside.wait(), FinishReason::kStop);
    EXPECT_EQ(most_rows, bound > 0 ? bound : 60);
    controller->cancel(handle);
    decoding.wait();
    controller.reset();  // before what its threads use
  }
}

// A cancellation that comes when all ranks sleep keeps nobody waiting for idleness.
TEST_F(ControllerTest, LateCancellationsLeaveSleepingRanksIdle) {
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::unique_ptr<StepSync>> syncs;
  const auto table = std::make_shared<VoteTable>(2);
  for (size_t rank = 0; rank < 2; ++rank) {
    engines.push_back(std::make_unique<Engine>(std::make_unique<ScriptedModel>(), tokenizer, EngineOptions{.num_kv_blocks = 64, .eos_ids = {257}}, clock));
    syncs.push_back(std::make_unique<TableSync>(table, rank));
  }
  controller = std::make_unique<Controller>(std::move(engines), ControllerOptions{}, std::move(syncs));
  Inbox inbox;
  const auto handle = controller->submit(request("<<say x>>"), inbox.sink());
  inbox.wait();
  const int64_t start_us = clock.now_us();
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(controller->wait_until_idle(60'000));
    controller->cancel(handle);
  }
  EXPECT_TRUE(controller->wait_until_idle(60'000));
  EXPECT_LT(clock.now_us() - start_us, 50'000'000);  // not at the deadline of a wait
}

TEST_F(ControllerTest, AThrowingModelDoesNotStopTheRank) {
  make();
  Inbox bad, good;
  controller->submit(request("<<throw>>"), bad.sink());
  EXPECT_EQ(bad.wait(), FinishReason::kError);
  controller->submit(request("<<say fine>>"), good.sink());
  EXPECT_EQ(good.wait(), FinishReason::kStop);
}

// Submits, cancels and snapshots from many threads at once: for the thread sanitizer, and nothing gets lost.
TEST_F(ControllerTest, ManyThreadsAtOnce) {
  SCOPED_TRACE(testing::seed());
  make({.max_queued_requests = 50}, 2, {}, {.max_num_seqs = 4, .max_num_batched_tokens = 32, .num_kv_blocks = 16});
  constexpr int kThreads = 6, kRequests = 60;
  std::atomic<int> num_overloaded{0}, num_finished{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(testing::seed(), static_cast<uint64_t>(t));
      std::vector<std::unique_ptr<Inbox>> inboxes;
      for (int i = 0; i < kRequests; ++i) {
        auto inbox = std::make_unique<Inbox>();
        try {
          const bool loops = rng.below(2) == 0;
          const auto handle = controller->submit(request(loops ? "<<loop abc>>" : "<<say some words>>"), inbox->sink());
          inboxes.push_back(std::move(inbox));
          if (loops || rng.below(3) == 0) controller->cancel(handle);
        } catch (const Error& e) {
          EXPECT_EQ(e.kind(), ErrorKind::kOverloaded);
          ++num_overloaded;
          if (!inboxes.empty()) inboxes.back()->wait();
        }
        if (i % 7 == 0) {
          EXPECT_LE(controller->stats(static_cast<int>(rng.below(2))).num_waiting, 50);
          controller->is_healthy();
        }
      }
      for (const auto& inbox : inboxes) inbox->wait();
      num_finished += static_cast<int>(inboxes.size());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_finished + num_overloaded, kThreads * kRequests);
  EXPECT_TRUE(controller->wait_until_idle(60'000));
  uint64_t num_assigned = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const RankStatus status = controller->status(rank);
    EXPECT_EQ(status.stats.num_free_blocks, 16);
    EXPECT_EQ(status.load, RankLoad{});
    num_assigned += status.num_assigned;
  }
  EXPECT_EQ(num_assigned, static_cast<uint64_t>(num_finished));
}

}  // namespace
}  // namespace cadre
