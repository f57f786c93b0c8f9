// The equivalence matrix through the whole engine: every model over every layout and exchange that it divides over, either
// sync protocol, experts that stay or are replicated and moved after every step, ranks that share memory and ranks that share nothing but UCX connections. Requests of mixed lengths, half of
// them arriving while the others run, are answered as by one rank: to the bit, log-probabilities included, where no sum is
// split. (verify/layout_test.cc compares all logits, step by step, and the bytes that were sent.)
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <map>

#include "base/rng.h"
#include "dp/deployment.h"
#include "tests/support/answers.h"
#include "tests/support/layouts.h"
#include "tests/support/ucx_ranks.h"
#include "tests/testing.h"
#include "tokenizer/byte_tokenizer.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

using testing::Answer;

// UCX itself is not instrumented for threads.
#if defined(__SANITIZE_THREAD__)
constexpr bool kHasUcx = false;
#else
constexpr bool kHasUcx = true;
#endif

struct Asked {
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<std::vector<Answer>>> answers;
};

Asked make_requests(int64_t vocab) {
  Rng rng(testing::seed(), 3);
  Asked asked;
  for (int i = 0; i < 8; ++i) {
    GenerationRequest r;
    for (uint32_t n = 1 + rng.below(i % 3 == 0 ? 90 : 12); n > 0; --n) r.prompt.push_back(static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab))));
    r.sampling = {.temperature = i % 4 ? 0.0 : 1.0, .seed = 100 + i, .max_tokens = 1 + rng.below(10), .ignore_eos = true, .num_logprobs = 3};
    r.n = i == 4 ? 2 : 1;
    asked.requests.push_back(r);
  }
  return asked;
}

// Half at once, the rest when the first answer comes. is_pinned: all on the last rank, while the others have nothing to do.
void ask(Controller& controller, bool is_pinned, Asked* asked) {
  asked->answers.clear();
  std::latch first(1);
  std::atomic<bool> has_come{false};
  for (size_t i = 0; i < asked->requests.size(); ++i) {
    if (i == asked->requests.size() / 2) first.wait();
    GenerationRequest request = asked->requests[i];
    if (is_pinned) request.data_parallel_rank = controller.num_ranks() - 1;
    asked->answers.push_back(std::make_shared<std::vector<Answer>>(static_cast<size_t>(request.n)));
    controller.submit(std::move(request), [&, sink = testing::collector(asked->answers.back())](Delta&& delta) {
      sink(std::move(delta));
      if (!has_come.exchange(true)) first.count_down();
    });
  }
  EXPECT_TRUE(controller.wait_until_idle(120'000));
}

// Any valid placement, another each time: experts without reason in other places, some of them more than once, even on a rank.
struct RandomPlacements {
  uint64_t seed;
  uint64_t num_plans = 0;
  ExpertPlacement operator()(const eplb::LayerLoad& layer) {
    const ExpertPlacement& current = layer.current;
    Rng rng(seed, ++num_plans);
    std::vector<int32_t> slots(static_cast<size_t>(current.num_slots()), kEmptySlot);
    for (size_t s = 0; s < slots.size(); ++s) {
      if (static_cast<int64_t>(s) < current.num_experts()) slots[s] = static_cast<int32_t>(s);
      else if (rng.below(4) > 0) slots[s] = static_cast<int32_t>(rng.below(static_cast<uint32_t>(current.num_experts())));
    }
    std::shuffle(slots.begin(), slots.end(), rng);
    return ExpertPlacement(current.num_experts(), current.ep(), std::move(slots));
  }
};

class Matrix : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Deployment> deploy(const Layout& layout, DpSync sync, bool is_ucx, bool is_moving = false) const {
    static std::atomic<uint64_t> num_moving = testing::seed();
    static const SteadyClock clock;
    // Neither a bound on prompts nor the chunks that it makes change an answer.
    DeploymentOptions options{.config = config_, .layout = layout, .open_weights = [this] { return open_checkpoint(dir_); },
                              .decoder = {.max_batched_tokens = 48, .compute_mode = ComputeMode::kFast},
                              .engine = {.max_num_seqs = 8, .max_num_batched_tokens = 48, .max_prefill_tokens_per_step = sync == DpSync::kWaves ? 5 : 0, .num_kv_blocks = 64, .seed = 5}};
    options.controller.sync = sync;
    if (is_moving) {
      // Whole experts at once, or as much as the time of a step allows.
      options.decoder.balance = {.interval_steps = 1, .window_steps = 3, .layers_per_step = 2, .move_share = sync == DpSync::kWaves ? 0.5 : 1e12, .planner = RandomPlacements{testing::seed()}};
      options.decoder.replica_choice = static_cast<ReplicaChoice>(num_moving++ % 3);  // any of them
    }
    if (is_ucx) options.wrap_comm = [&layout](int rank, std::unique_ptr<CommWorld>) { return ucx_ranks(layout.world).lend(rank); };
    return std::make_unique<Deployment>(std::move(options), std::make_shared<ByteTokenizer>(), clock);
  }
  void expect_same(const Layout& layout, const Asked& got) const {
    const bool is_exact = testing::splits_no_sum(config_, layout);
    for (size_t i = 0; i < got.requests.size(); ++i)
      for (size_t c = 0; c < got.answers[i]->size(); ++c) {
        const Answer &a = (*got.answers[i])[c], &b = (*expected_.answers[i])[c];
        ASSERT_TRUE(a.finish == FinishReason::kLength) << a.error;
        if (is_exact) {
          ASSERT_TRUE(testing::same_tokens(a.tokens, b.tokens)) << "request " << i;
        }
        // Where sums are split, tokens are the same as long as each choice was decided.
        for (size_t t = 0; t < a.tokens.size() && got.requests[i].sampling.temperature == 0; ++t) {
          const auto& top = b.tokens[t].top;
          if (top[0].logprob - top[1].logprob <= 1e-3f) break;
          ASSERT_EQ(a.tokens[t].token, b.tokens[t].token) << "request " << i << " token " << t;
          ASSERT_NEAR(a.tokens[t].logprob, b.tokens[t].logprob, 1e-4) << "request " << i << " token " << t;
        }
      }
  }
  // Returns false after a failure.
  bool check(const std::string& name, const Layout& layout, DpSync sync, bool is_ucx, bool is_moving = false) {
    SCOPED_TRACE(fmt::format("{}, {}, {}, {}", name, sync == DpSync::kWaves ? "waves" : "lockstep", is_ucx ? "ucx" : "inproc", is_moving ? "moving" : "fixed"));
    Asked asked{.requests = expected_.requests, .answers = {}};
    const auto deployment = deploy(layout, sync, is_ucx, is_moving);
    ask(deployment->controller(), is_ucx && sync == DpSync::kWaves, &asked);
    if (is_moving) {
      const eplb::BalancerStats stats = deployment->balancer()->stats();
      EXPECT_GE(stats.num_layers_switched, 1);
      EXPECT_GE(stats.moved_slots, stats.num_layers_switched);
      EXPECT_EQ(stats.num_refused, 0);
    }
    expect_same(layout, asked);
    return !HasFailure();
  }

  static testing::UcxRanks& ucx_ranks(int size) { return ucx_ranks_.try_emplace(size, size).first->second; }
  static void TearDownTestSuite() { ucx_ranks_.clear(); }
  static inline std::map<int, testing::UcxRanks> ucx_ranks_;  // by size

  const std::filesystem::path dir_ = testing::model_dir(GetParam());
  const ModelConfig config_ = load_model_config(dir_);
  Asked expected_;
};

TEST_P(Matrix, EveryLayoutExchangeSyncAndTransportAnswersAsOneRank) {
  SCOPED_TRACE(testing::seed());
  {
    const auto one = deploy({}, DpSync::kLockstep, false);
    expected_ = make_requests(one->controller().engine(0).vocab_size());
    ask(one->controller(), false, &expected_);
  }
  int num_run = 0;
  for (const testing::LayoutCase& c : testing::layout_cases()) {
    if (!testing::can_run(config_, c.layout)) continue;
    ++num_run;
    for (const testing::NamedLayout& named : testing::with_every_exchange(c))
      for (const DpSync sync : {DpSync::kLockstep, DpSync::kWaves}) {
        if (c.layout.attn_dp == 1 && sync == DpSync::kWaves) continue;  // nobody to agree with
        for (const bool is_ucx : {false, true}) {
          if (is_ucx && !kHasUcx) continue;
          if (!check(named.name, named.layout, sync, is_ucx)) return;
          if (c.layout.ep == 1) continue;
          Layout redundant = named.layout;
          redundant.redundant_experts = 3;
          if (!check(named.name, redundant, sync, is_ucx, true)) return;
        }
      }
  }
  EXPECT_GE(num_run, config_.moe.router.num_experts > 0 ? 6 : 2);
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, Matrix, ::testing::ValuesIn(testing::matrix_models()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace cadre
