// A replay against the engine that it stands for: same requests, same moments, and a step for a step.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "engine/engine.h"
#include "replay/cluster.h"
#include "tests/support/scripted_model.h"
#include "tests/testing.h"
#include "tokenizer/byte_tokenizer.h"

namespace cadre {
namespace {

constexpr int64_t kStepUs = 1000;

replay::Trace random_trace(uint64_t seed, uint64_t round) {
  replay::Trace trace;
  uint64_t draws = 0;
  const auto draw = [&](uint32_t below) { return static_cast<int64_t>(random_u32(seed, round, draws++) % below); };
  int64_t step = 0;
  for (int64_t i = 5 + draw(60); i > 0; --i) {
    step += draw(4) == 0 ? draw(60) : 0;
    trace.requests.push_back(
        {.arrival_us = step * kStepUs, .prompt_tokens = 1 + draw(120), .output_tokens = 1 + draw(40)});
  }
  return trace;
}

TEST(ReplayEngine, EveryTokenComesInTheStepThatTheEngineGivesIt) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE("CADRE_SEED=" + std::to_string(seed));
  const SteadyClock clock;
  uint64_t preemptions = 0;
  for (uint64_t round = 0; round < 30; ++round) {
    const replay::Trace trace = random_trace(seed, round);
    const auto draw = [&](uint64_t what, uint32_t below) {
      return static_cast<int64_t>(random_u32(seed, 1000 + round, what) % below);
    };
    const SchedulerOptions scheduler{.max_num_seqs = 1 + draw(0, 12),
                                     .max_num_batched_tokens = 16 + draw(1, 100),
                                     .max_prefill_tokens_per_step = draw(2, 2) * (1 + draw(3, 30))};
    const int64_t num_blocks = 12 + draw(4, 40);
    const replay::ClusterResult replayed = replay::replay_trace(
        trace, {.scheduler = scheduler,
                .num_kv_blocks = num_blocks,
                .max_model_len = 200,
                .queue = {.max_requests = INT64_MAX, .max_tokens = INT64_MAX},
                .cost = [](std::span<const replay::StepShape>, double) { return static_cast<double>(kStepUs); },
                .balance = {}});

    Engine engine(std::make_unique<testing::ScriptedModel>(testing::ScriptedModelOptions{.max_position = 200}),
                  std::make_shared<ByteTokenizer>(),
                  {.max_num_seqs = scheduler.max_num_seqs,
                   .max_num_batched_tokens = scheduler.max_num_batched_tokens,
                   .max_prefill_tokens_per_step = scheduler.max_prefill_tokens_per_step,
                   .num_kv_blocks = num_blocks,
                   .seed = 1},
                  clock);
    int64_t now_us = 0;
    std::vector<int64_t> first_us(trace.requests.size(), -1), last_us(trace.requests.size(), -1);
    for (size_t next = 0; next < trace.requests.size() || engine.has_work();) {
      if (!engine.has_work()) now_us = std::max(now_us, trace.requests[next].arrival_us);
      for (; next < trace.requests.size() && trace.requests[next].arrival_us <= now_us; ++next) {
        GenerationRequest request{
            .prompt = std::vector<int32_t>(static_cast<size_t>(trace.requests[next].prompt_tokens), 65)};
        request.sampling.max_tokens = trace.requests[next].output_tokens;
        request.sampling.ignore_eos = true;
        engine.validate(request);
        engine.add(next + 1, std::move(request), [&, i = next](Delta&& delta) {
          if (first_us[i] < 0) first_us[i] = now_us;
          if (delta.finish) last_us[i] = now_us;
        });
      }
      now_us += kStepUs;  // deliveries are at the step's end
      engine.step();
    }
    for (size_t i = 0; i < trace.requests.size(); ++i) {
      ASSERT_EQ(replayed.outcomes[i].end, replay::Outcome::End::kAnswered);
      EXPECT_EQ(replayed.outcomes[i].last_token_us, static_cast<double>(last_us[i]))
          << "request " << i << " of round " << round;
    }
    EXPECT_EQ(static_cast<uint64_t>(replayed.totals.steps), engine.stats().num_steps);
    EXPECT_EQ(replayed.totals.preemptions, engine.stats().num_preemptions);
    preemptions += engine.stats().num_preemptions;
  }
  EXPECT_GT(preemptions, 0u);
}

}  // namespace
}  // namespace cadre
