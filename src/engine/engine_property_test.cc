// What must hold for any traffic: an answer is the same to the bit whatever the company, the chunks, the preemptions and
// the order; nothing is lost; everything ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/rng.h"
#include "engine/engine.h"
#include "tests/support/answers.h"
#include "tests/support/scripted_model.h"
#include "tests/testing.h"
#include "tokenizer/byte_tokenizer.h"

namespace cadre {
namespace {

using testing::Answer;
using testing::ScriptedModel;
using testing::ScriptedModelLog;
using testing::ScriptedModelOptions;
using Answers = std::shared_ptr<std::vector<Answer>>;

const SteadyClock kClock;
const auto kTokenizer = std::make_shared<const ByteTokenizer>();
constexpr int64_t kMaxLen = 160;

std::unique_ptr<Engine> make_engine(EngineOptions options, std::shared_ptr<ScriptedModelLog> log = nullptr) {
  options.eos_ids = {257};
  return std::make_unique<Engine>(
      std::make_unique<ScriptedModel>(ScriptedModelOptions{.max_position = kMaxLen, .num_layers = 2, .mean_answer_tokens = 30},
                                      std::move(log)),
      kTokenizer, options, kClock);
}

GenerationRequest random_request(Rng& rng) {
  GenerationRequest request;
  const uint32_t kind = rng.below(10);
  if (kind == 0) request.prompt = kTokenizer->encode("<<say some words \xC3\xA9\\xE2\\x82, then\\!nan>>", false);
  else if (kind == 1) request.prompt = kTokenizer->encode("<<say some words \\xF0\\x9F\\x98\\x80>>", false);
  else if (kind == 2) request.prompt = kTokenizer->encode("<<loop abcab>>", false);
  else
    for (uint32_t i = 1 + rng.below(kind == 3 ? 100 : 30); i > 0; --i)
      request.prompt.push_back(static_cast<int32_t>(rng.below(256)));
  const auto maybe = [&] { return rng.below(4) == 0; };
  SamplingParams& p = request.sampling;
  p.temperature = maybe() ? 0 : 0.5 + double{rng.uniform()};
  p.seed = rng();
  p.max_tokens = 1 + rng.below(kind < 7 ? 40 : 100);
  if (maybe()) p.top_k = 1 + static_cast<int32_t>(rng.below(50));
  if (maybe()) p.top_p = 0.5 + 0.5 * double{rng.uniform()};
  if (maybe()) p.min_p = 0.1 * double{rng.uniform()};
  if (maybe()) p.repetition_penalty = 1.3;
  if (maybe()) p.frequency_penalty = 0.5;
  if (maybe()) p.presence_penalty = -0.5;
  if (maybe()) p.logit_bias = {{'a', 2.0f}, {'b', 2.0f}};
  if (maybe()) p.min_tokens = std::min<int64_t>(*p.max_tokens, rng.below(10));
  if (maybe()) p.ignore_eos = true;
  if (maybe()) p.stop = {"ca", "ab"};
  if (maybe()) p.include_stop = true;
  if (maybe()) p.num_logprobs = static_cast<int32_t>(rng.below(4));
  if (maybe()) p.num_prompt_logprobs = static_cast<int32_t>(rng.below(3));
  if (rng.below(20) == 0) p.max_tokens = p.min_tokens = 0;
  if (maybe()) request.n = 2 + static_cast<int32_t>(rng.below(2));
  return request;
}

Answers submit(Engine& engine, uint64_t handle, const GenerationRequest& request) {
  auto answers = std::make_shared<std::vector<Answer>>(static_cast<size_t>(request.n));
  engine.validate(request);
  engine.add(handle, request, testing::collector(answers));
  return answers;
}

void expect_idle(const Engine& engine) {
  EXPECT_FALSE(engine.has_work());
  EXPECT_EQ(engine.stats().num_free_blocks, engine.stats().num_blocks);
  EXPECT_EQ(engine.stats().num_waiting_tokens, 0);
}

// Answers of each request alone in an engine with room for everything.
std::vector<Answers> alone(const std::vector<GenerationRequest>& requests) {
  const auto engine = make_engine({.max_num_batched_tokens = 2048, .num_kv_blocks = 100});
  std::vector<Answers> out;
  for (const GenerationRequest& request : requests) {
    out.push_back(submit(*engine, out.size() + 1, request));
    while (engine->has_work()) engine->step();
  }
  expect_idle(*engine);
  return out;
}

TEST(EngineProperties, AnswersDoNotDependOnCompanyChunksOrPreemption) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 60; ++i) requests.push_back(random_request(rng));
  const std::vector<Answers> expected = alone(requests);
  uint64_t num_preemptions = 0;
  for (int round = 0; round < 25; ++round) {
    const auto log = std::make_shared<ScriptedModelLog>();
    const EngineOptions options{.max_num_seqs = 1 + rng.below(16), .max_num_batched_tokens = 1 + rng.below(64),
                                .num_kv_blocks = 10 + rng.below(round % 2 ? 4 : 20)};
    SCOPED_TRACE(fmt::format("round {}: {} sequences, {} rows, {} blocks", round, options.max_num_seqs,
                             options.max_num_batched_tokens, options.num_kv_blocks));
    const auto engine = make_engine(options, log);
    std::vector<size_t> order(requests.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), rng);
    std::vector<Answers> got(requests.size());
    std::vector<std::pair<uint64_t, Answers>> strangers;
    size_t num_added = 0;
    uint64_t handle = 0;
    while (num_added < order.size() || engine->has_work()) {
      while (num_added < order.size() && rng.below(3) == 0) {
        got[order[num_added]] = submit(*engine, ++handle, requests[order[num_added]]);
        ++num_added;
      }
      if (num_added < order.size() && rng.below(6) == 0) {
        ++handle;
        strangers.emplace_back(handle, submit(*engine, handle, random_request(rng)));
      }
      if (!strangers.empty() && rng.below(8) == 0) engine->cancel(strangers[rng.below(static_cast<uint32_t>(strangers.size()))].first);
      ASSERT_LE(engine->step(), options.max_num_batched_tokens);
    }
    expect_idle(*engine);
    for (size_t i = 0; i < requests.size(); ++i)
      for (size_t choice = 0; choice < got[i]->size(); ++choice) {
        SCOPED_TRACE(fmt::format("request {} choice {}", i, choice));
        testing::expect_same((*got[i])[choice], (*expected[i])[choice]);
      }
    for (const auto& [stranger, answers] : strangers)
      for (const Answer& answer : *answers) ASSERT_TRUE(answer.finish);
    num_preemptions += engine->stats().num_preemptions;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(num_preemptions, 10u);
}

TEST(EngineProperties, FirstTokensComeInOrderOfArrival) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  for (int round = 0; round < 30; ++round) {
    const auto engine = make_engine({.max_num_seqs = 1 + rng.below(6), .max_num_batched_tokens = 2 + rng.below(30),
                                     .num_kv_blocks = 10 + rng.below(10)});
    std::vector<uint64_t> order;
    for (uint64_t handle = 1; handle <= 30; ++handle) {
      const std::string filler(rng.below(80), 'x');
      GenerationRequest request{.prompt = kTokenizer->encode(filler + "<<loop a>>", false),
                                .sampling = {.temperature = 0, .max_tokens = 1 + rng.below(60)}};
      engine->add(handle, request, [&order, handle, is_first = true](Delta&&) mutable {
        if (is_first) order.push_back(handle);
        is_first = false;
      });
    }
    while (engine->has_work()) engine->step();
    ASSERT_EQ(order.size(), 30u);
    ASSERT_TRUE(std::is_sorted(order.begin(), order.end()));
  }
}

// Ten thousand requests through small engines, a third of them cancelled at random moments.
TEST(EngineProperties, Soak) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  const auto engine = make_engine({.max_num_seqs = 12, .max_num_batched_tokens = 48, .num_kv_blocks = 40});
  struct Open {
    uint64_t handle;
    Answers answers;
  };
  std::vector<Open> open;
  uint64_t num_requests = 0, num_choices = 0, num_seen = 0;
  const auto settle = [&] {
    std::erase_if(open, [&](const Open& o) {
      const bool is_done = std::all_of(o.answers->begin(), o.answers->end(), [](const Answer& a) { return a.finish.has_value(); });
      if (is_done) num_seen += o.answers->size();
      return is_done;
    });
  };
  while (num_requests < 10'000 || engine->has_work()) {
    while (num_requests < 10'000 && open.size() < 40) {
      GenerationRequest request = random_request(rng);
      request.sampling.max_tokens = std::min<int64_t>(*request.sampling.max_tokens, 12);
      request.sampling.min_tokens = 0;
      request.prompt.resize(std::min<size_t>(request.prompt.size(), 30));
      open.push_back({++num_requests, submit(*engine, num_requests, request)});
      num_choices += static_cast<uint64_t>(request.n);
    }
    if (rng.below(3) == 0) engine->cancel(open[rng.below(static_cast<uint32_t>(open.size()))].handle);
    engine->step();
    settle();
  }
  expect_idle(*engine);
  EXPECT_EQ(num_seen, num_choices);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.num_finished_stop + stats.num_finished_length + stats.num_cancelled + stats.num_failed, num_choices);
  EXPECT_EQ(stats.num_cancelled, stats.num_cancelled_waiting + stats.num_cancelled_prefill + stats.num_cancelled_decode);
  EXPECT_GT(stats.num_cancelled, 1000u);
}

// Cancelling at every step of a fixed run, one run per step: blocks return and the others' answers stay.
TEST(EngineProperties, ACancelAtAnyStepLeavesNoTrace) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(random_request(rng));
  const std::vector<Answers> expected = alone(requests);
  for (int64_t cancel_at = 0;; ++cancel_at) {
    const auto engine = make_engine({.max_num_seqs = 4, .max_num_batched_tokens = 16, .num_kv_blocks = 14});
    std::vector<Answers> got;
    for (size_t i = 0; i < requests.size(); ++i) got.push_back(submit(*engine, i + 1, requests[i]));
    int64_t num_steps = 0;
    for (; engine->has_work(); ++num_steps) {
      if (num_steps == cancel_at) engine->cancel(static_cast<uint64_t>(cancel_at) % 3 + 1);
      engine->step();
    }
    expect_idle(*engine);
    for (size_t i = 0; i < requests.size(); ++i)
      for (size_t choice = 0; choice < got[i]->size(); ++choice)
        if ((*got[i])[choice].finish != FinishReason::kCancelled) testing::expect_same((*got[i])[choice], (*expected[i])[choice]);
    if (::testing::Test::HasFailure() || cancel_at > num_steps) return;
  }
}

}  // namespace
}  // namespace cadre
