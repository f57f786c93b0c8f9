// Whole deployments: ranks end, pause and fail together, as threads and as processes. (matrix_test.cc compares their answers.)
#include "dp/deployment.h"

#include <gtest/gtest.h>

#include <sys/socket.h>

#include <latch>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "comm/fault_injection.h"
#include "comm/inproc/inproc_world.h"
#include "config/model_config.h"
#include "tests/support/answers.h"
#include "tests/support/layouts.h"
#include "tests/testing.h"
#include "tokenizer/byte_tokenizer.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

using testing::Answer;

Layout layout(int dp, int attn_tp, int ep) { return testing::make_layout(dp, attn_tp, ep, ExchangeKind::kAuto); }

struct Setup {
  std::string model;
  Layout layout;
  DpSync sync = DpSync::kLockstep;
  EngineOptions engine{.max_num_seqs = 8, .max_num_batched_tokens = 48, .num_kv_blocks = 64, .seed = 5};
};

std::unique_ptr<Deployment> deploy(const Setup& setup, std::shared_ptr<ProcessRank> process = nullptr) {
  static const SteadyClock clock;
  const auto dir = testing::source_dir() / "tests" / "reference" / setup.model;
  DeploymentOptions options{.config = load_model_config(dir), .layout = setup.layout, .open_weights = [dir] { return open_checkpoint(dir); },
                            .decoder = {.max_batched_tokens = setup.engine.max_num_batched_tokens, .compute_mode = ComputeMode::kFast}, .engine = setup.engine};
  options.controller.sync = setup.sync;
  options.process = std::move(process);
  return std::make_unique<Deployment>(std::move(options), std::make_shared<ByteTokenizer>(), clock);
}

std::vector<GenerationRequest> requests(uint64_t seed, int64_t vocab) {
  Rng rng(seed, 3);
  std::vector<GenerationRequest> out;
  for (int i = 0; i < 10; ++i) {
    GenerationRequest r;
    for (uint32_t n = 1 + rng.below(i % 3 == 0 ? 90 : 12); n > 0; --n) r.prompt.push_back(static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab))));
    r.sampling = {.temperature = i % 2 ? 0.0 : 1.0, .seed = 100 + i, .max_tokens = 1 + rng.below(14), .ignore_eos = true, .num_logprobs = 3};
    r.n = i == 4 ? 2 : 1;
    out.push_back(r);
  }
  return out;
}

using Answers = std::vector<std::shared_ptr<std::vector<Answer>>>;

// Submits half, and the rest when the first answers come, so that ranks run dry and fill again.
Answers ask(Controller& controller, const std::vector<GenerationRequest>& all) {
  Answers out;
  std::latch first(1);
  std::atomic<bool> has_come{false};
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == all.size() / 2) first.wait();
    out.push_back(std::make_shared<std::vector<Answer>>(static_cast<size_t>(all[i].n)));
    controller.submit(all[i], [&, sink = testing::collector(out.back())](Delta&& delta) {
      sink(std::move(delta));
      if (!has_come.exchange(true)) first.count_down();
    });
  }
  EXPECT_TRUE(controller.wait_until_idle(120'000));
  return out;
}

// Ranks that are processes, played by threads that share nothing but their connections.
class Processes {
 public:
  explicit Processes(const Setup& setup) {
    const Layout& l = setup.layout;
    auto worlds = make_inproc_worlds(l.world);
    std::vector<std::shared_ptr<ProcessRank>> places;
    for (int r = 0; r < l.world; ++r) {
      places.push_back(std::make_shared<ProcessRank>());
      places.back()->comm = std::move(worlds[static_cast<size_t>(r)]);
    }
    for (int dp = 1; dp < l.attn_dp; ++dp) {
      int pair[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
      places[0]->leader_sockets.push_back(pair[0]);
      places[static_cast<size_t>(l.leader_of(dp))]->front_socket = pair[1];
    }
    for (int r = 1; r < l.world; ++r)
      others_.emplace_back([this, setup, place = places[static_cast<size_t>(r)]] {
        if (!deploy(setup, place)->run_until_stopped()) ++num_lost_;
      });
    front_ = deploy(setup, places[0]);
  }
  ~Processes() { stop(); }
  void stop() {
    front_.reset();
    for (std::thread& t : others_) t.join();
    others_.clear();
  }
  Deployment& front() { return *front_; }
  int num_lost() const { return num_lost_; }

 private:
  std::unique_ptr<Deployment> front_;
  std::vector<std::thread> others_;
  std::atomic<int> num_lost_{0};
};

TEST(Deployment, RanksThatAreProcessesAnswerAsThreadsDo) {
  for (const std::string model : {"deepseek_v2", "gpt_oss"}) {
    const auto one = deploy({model, Layout{}});
    const auto asked = requests(testing::seed(), one->controller().engine(0).vocab_size());
    const Answers expected = ask(one->controller(), asked);
    for (const Layout& l : {layout(3, 1, 3), layout(2, 1, 2), layout(2, 2, 4), layout(1, 2, 2)})
      for (const DpSync sync : {DpSync::kLockstep, DpSync::kWaves}) {
        SCOPED_TRACE(fmt::format("{} dp {} tp {}", model, l.attn_dp, l.attn_tp));
        Processes processes({model, l, sync});
        Controller& controller = processes.front().controller();
        EXPECT_EQ(controller.num_ranks(), l.attn_dp);
        for (int round = 0; round < 2; ++round) {
          const Answers got = ask(controller, asked);
          for (size_t i = 0; i < asked.size(); ++i)
            for (size_t c = 0; c < got[i]->size(); ++c) {
              ASSERT_TRUE((*got[i])[c].finish == FinishReason::kLength) << (*got[i])[c].error;
              if (l.attn_tp == 1) {
                ASSERT_TRUE(testing::same_tokens((*got[i])[c].tokens, (*expected[i])[c].tokens)) << "request " << i;
              }
            }
        }
        const RequestHandle handle = controller.submit({.prompt = {1, 2}, .sampling = {.max_tokens = 800, .ignore_eos = true}}, nullptr);
        controller.cancel(handle);
        controller.cancel(handle);
        EXPECT_TRUE(controller.wait_until_idle(60'000));
        for (int r = 0; r < l.attn_dp; ++r) EXPECT_EQ(controller.stats(r).num_free_blocks, controller.stats(r).num_blocks);
        processes.stop();
        EXPECT_EQ(processes.num_lost(), 0);
      }
  }
}

TEST(Deployment, CancellationsAndPausesLeaveNothingBehind) {
  for (const DpSync sync : {DpSync::kLockstep, DpSync::kWaves}) {
    const auto deployment = deploy({"mixtral", layout(3, 1, 3), sync});
    Controller& controller = deployment->controller();
    Rng rng(testing::seed(), 9);
    for (int round = 0; round < 30; ++round) {
      std::vector<RequestHandle> handles;
      Answers answers;
      for (uint32_t n = rng.below(6); n > 0; --n) {
        GenerationRequest r{.prompt = std::vector<int32_t>(1 + rng.below(40), 7), .sampling = {.max_tokens = 20, .ignore_eos = true}};
        answers.push_back(std::make_shared<std::vector<Answer>>(1));
        handles.push_back(controller.submit(r, testing::collector(answers.back())));
      }
      for (const RequestHandle h : handles)
        if (rng.below(2)) controller.cancel(h);
      if (rng.below(3) == 0) controller.cancel(12345);
      ASSERT_TRUE(controller.wait_until_idle(60'000));
      for (const auto& a : answers) EXPECT_TRUE((*a)[0].finish.has_value());
    }
    for (int r = 0; r < 3; ++r) EXPECT_EQ(controller.stats(r).num_free_blocks, controller.stats(r).num_blocks);
    EXPECT_TRUE(controller.is_healthy());
  }
}

TEST(Deployment, EndsWhileItRuns) {
  for (const Layout& l : {layout(2, 1, 2), layout(2, 2, 4), layout(1, 2, 2)}) {
    auto deployment = deploy({"deepseek_v2_lite", l});
    std::latch first(1);
    std::atomic<bool> has_come{false};
    std::atomic<int> num_finished{0};
    for (int i = 0; i < 5; ++i)
      deployment->controller().submit({.prompt = {1, 2, 3}, .sampling = {.max_tokens = 900, .ignore_eos = true}}, [&](Delta&& delta) {
        if (delta.finish) ++num_finished;
        if (!has_come.exchange(true)) first.count_down();
      });
    first.wait();
    deployment.reset();
    EXPECT_EQ(num_finished, 5);
  }
}

// A rank that drops out, stands still or is late in the middle of a step, at a vote or within a layer.
struct LossCase {
  Layout layout;
  int rank = 0;  // of the world: who fails
  std::string group;
  Fault fault;
  DpSync sync = DpSync::kLockstep;
};

std::vector<LossCase> loss_cases() {
  std::vector<LossCase> out;
  for (const Fault::At at : {Fault::At::kStart, Fault::At::kFinish})
    for (const Fault::Kind kind : {Fault::Kind::kDrop, Fault::Kind::kFreeze}) {
      const Fault early{.at = at, .call = 3, .kind = kind}, late{.at = at, .call = 61, .kind = kind};
      for (const DpSync sync : {DpSync::kLockstep, DpSync::kWaves}) {
        out.push_back({layout(3, 1, 3), 2, "world", late, sync});
        out.push_back({layout(3, 1, 3), 0, "attn_dp", early, sync});
        out.push_back({layout(2, 2, 4), 2, "attn_dp", late, sync});    // a leader with a follower
        out.push_back({layout(2, 2, 4), 3, "world", late, sync});      // a follower
        out.push_back({layout(2, 2, 4), 1, "attn_tp.0", late, sync});
        out.push_back({layout(2, 1, 1), 1, "world", early, sync});     // no experts spread: only dense halves and votes
      }
      out.push_back({layout(1, 2, 2), 1, "attn_tp.0", late});
      if (kind == Fault::Kind::kDrop) out.push_back({layout(1, 2, 2), 0, "world", early});  // frozen, it could tell nobody
    }
  return out;
}

void expect_all_end(const LossCase& c) {
  static const SteadyClock clock;
  const auto dir = testing::source_dir() / "tests" / "reference" / "qwen3_moe";
  const bool is_freeze = c.fault.kind == Fault::Kind::kFreeze;
  const auto gate = std::make_shared<FaultGate>();
  DeploymentOptions options{.config = load_model_config(dir), .layout = c.layout, .open_weights = [&] { return open_checkpoint(dir); },
                            .decoder = {.max_batched_tokens = 48}, .engine = {.max_num_seqs = 8, .max_num_batched_tokens = 48, .num_kv_blocks = 64}};
  options.controller.sync = c.sync;
  if (is_freeze) options.step_timeout_us = 200'000;
  options.wrap_comm = [&](int rank, std::unique_ptr<CommWorld> comm) {
    if (rank != c.rank) return comm;
    Fault fault = c.fault;
    fault.group = c.group, fault.gate = gate;
    return inject_faults(std::move(comm), {fault});
  };
  Deployment deployment(std::move(options), std::make_shared<ByteTokenizer>(), clock);
  Controller& controller = deployment.controller();
  Answers answers;
  for (int i = 0; i < 5; ++i) {
    const auto answer = std::make_shared<std::vector<Answer>>(1);
    try {
      controller.submit({.prompt = {1, 2, 3}, .sampling = {.max_tokens = 200, .ignore_eos = true}}, testing::collector(answer));
      answers.push_back(answer);
    } catch (const Error& e) {  // lost already
      EXPECT_TRUE(e.kind() == ErrorKind::kUnavailable) << e.what();
    }
  }
  // A rank that stands still can end its own requests only when it goes on, long after the others ended theirs.
  const RankCoords lost = c.layout.coords(c.rank);
  for (int dp = 0; is_freeze && dp < c.layout.attn_dp; ++dp)
    while ((lost.attn_tp > 0 || dp != lost.attn_dp) && controller.stats(dp).num_failed == 0) std::this_thread::yield();
  gate->open();
  ASSERT_TRUE(controller.wait_until_idle(60'000));
  const std::string name = fmt::format("rank {}", c.rank);
  for (const auto& a : answers) {
    EXPECT_TRUE((*a)[0].finish == FinishReason::kError);
    // Where a vote was cut off, its own reason.
    const std::string& error = (*a)[0].error;
    EXPECT_TRUE(error.find(name) != std::string::npos || error.find("lost (injected fault") != std::string::npos) << error;
  }
  EXPECT_FALSE(controller.is_healthy());
  EXPECT_THROW(controller.submit({.prompt = {1}}, nullptr), Error);
}

// Every request ends with a sentence that names the rank, none hangs, and new ones are refused.
TEST(Deployment, ALostRankEndsEveryRequestWithItsName) {
  for (const LossCase& c : loss_cases()) {
    SCOPED_TRACE(fmt::format("{} at {} {} of {}, rank {} of {}, {}", c.fault.kind == Fault::Kind::kDrop ? "drop" : "freeze", c.fault.at == Fault::At::kStart ? "start" : "finish",
                             c.fault.call, c.group, c.rank, c.layout.world, c.sync == DpSync::kWaves ? "waves" : "lockstep"));
    expect_all_end(c);
  }
}

// A rank that is late now and then, before and within exchanges, changes no answer.
TEST(Deployment, ALateRankChangesNoAnswer) {
  static const SteadyClock clock;
  const struct Setup setup{"qwen3_moe", layout(3, 1, 3)};
  const auto one = deploy({setup.model, Layout{}});
  const auto asked = requests(testing::seed(), one->controller().engine(0).vocab_size());
  SCOPED_TRACE(testing::seed());
  const Answers expected = ask(one->controller(), asked);
  std::atomic<int64_t> num_delays{0};
  std::vector<Fault> faults;
  for (int64_t call = 1; call < 2000; call += 3)
    faults.push_back({.at = call % 2 ? Fault::At::kStart : Fault::At::kFinish, .call = call, .kind = Fault::Kind::kDelay, .hook = [&] {
      ++num_delays;
      for (int i = 0; i < 50; ++i) std::this_thread::yield();
    }});
  const auto dir = testing::model_dir(setup.model);
  DeploymentOptions options{.config = load_model_config(dir), .layout = setup.layout, .open_weights = [&] { return open_checkpoint(dir); },
                            .decoder = {.max_batched_tokens = setup.engine.max_num_batched_tokens, .compute_mode = ComputeMode::kFast}, .engine = setup.engine};
  options.wrap_comm = [&](int rank, std::unique_ptr<CommWorld> comm) { return rank == 1 ? inject_faults(std::move(comm), faults) : std::move(comm); };
  Deployment late(std::move(options), std::make_shared<ByteTokenizer>(), clock);
  const Answers got = ask(late.controller(), asked);
  EXPECT_GT(num_delays, 10);
  for (size_t i = 0; i < asked.size(); ++i)
    for (size_t c = 0; c < got[i]->size(); ++c) EXPECT_TRUE(testing::same_tokens((*got[i])[c].tokens, (*expected[i])[c].tokens)) << "request " << i;
}

TEST(Deployment, ARankThatCannotLoadEndsAllWithItsReason) {
  static const SteadyClock clock;
  const auto dir = testing::source_dir() / "tests" / "reference" / "mixtral";
  std::atomic<int> opened{0};
  DeploymentOptions options{.config = load_model_config(dir), .layout = layout(3, 1, 3),
                            .open_weights = [&]() -> std::unique_ptr<WeightSource> {
                              if (opened++ == 1) throw invalid_input("the disk is gone");
                              return open_checkpoint(dir);
                            },
                            .decoder = {.max_batched_tokens = 64}, .engine = {.num_kv_blocks = 16}};
  try {
    Deployment deployment(std::move(options), std::make_shared<ByteTokenizer>(), clock);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "the disk is gone");
  }
}

}  // namespace
}  // namespace cadre
