#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tests/support/answers.h"
#include "tests/support/scripted_model.h"
#include "tokenizer/byte_tokenizer.h"

namespace cadre {
namespace {

using testing::Answer;
using testing::ScriptedModel;
using testing::ScriptedModelLog;
using testing::ScriptedModelOptions;
using Answers = std::shared_ptr<std::vector<Answer>>;

class EngineTest : public ::testing::Test {
 protected:
  void start(EngineOptions options = {}, ScriptedModelOptions model = {}) {
    if (options.num_kv_blocks == 0) options.num_kv_blocks = 64;
    if (options.eos_ids.empty()) options.eos_ids = {257};
    engine = std::make_unique<Engine>(std::make_unique<ScriptedModel>(model, log), tokenizer, options, clock);
  }
  Answers add(const std::string& prompt, SamplingParams sampling = {.temperature = 0}, int32_t n = 1) {
    GenerationRequest request{.prompt = tokenizer->encode(prompt, false), .sampling = std::move(sampling), .n = n};
    engine->validate(request);
    auto answers = std::make_shared<std::vector<Answer>>(static_cast<size_t>(n));
    engine->add(++last_handle, std::move(request), testing::collector(answers));
    return answers;
  }
  void run() {
    for (int i = 0; engine->has_work(); ++i) {
      engine->step();
      ASSERT_LT(i, 100'000);
    }
    EXPECT_EQ(engine->stats().num_free_blocks, engine->stats().num_blocks);
  }
  // What submitting says of the request: the message, and kind and field in `error`.
  std::string refusal(const GenerationRequest& request, std::optional<Error>* error = nullptr) {
    try {
      engine->validate(request);
    } catch (const Error& e) {
      if (error) *error = e;
      return e.what();
    }
    return {};
  }

  SteadyClock clock;
  std::shared_ptr<const Tokenizer> tokenizer = std::make_shared<ByteTokenizer>();
  std::shared_ptr<ScriptedModelLog> log = std::make_shared<ScriptedModelLog>();
  std::unique_ptr<Engine> engine;
  uint64_t last_handle = 0;
};

TEST_F(EngineTest, SaysTheScriptAndStopsAtTheEndId) {
  start();
  const auto answers = add("<<say h\xC3\xA9llo>>");
  run();
  const Answer& answer = (*answers)[0];
  EXPECT_EQ(answer.text, "h\xC3\xA9llo");
  EXPECT_EQ(answer.finish, FinishReason::kStop);
  EXPECT_EQ(answer.stop_token, 257);
  EXPECT_FALSE(answer.stop_reason);
  EXPECT_EQ(answer.num_completion_tokens, 7);
  EXPECT_EQ(answer.num_prompt_tokens, 14);
  EXPECT_FALSE(answer.tokens.back().in_text);
  EXPECT_EQ(engine->stats().num_finished_stop, 1u);
  EXPECT_EQ(engine->stats().num_prompt_tokens, 14u);
  EXPECT_EQ(engine->stats().num_generated_tokens, 7u);
}

// Against the model's own logits, without engine, cache or batches.
TEST_F(EngineTest, GreedyTokensAreTheModels) {
  start({}, {.mean_answer_tokens = 20});
  const ScriptedModel model({.mean_answer_tokens = 20});
  for (const std::string prompt : {"a", "some longer prompt, beyond one block of the cache", "x\n"}) {
    const auto answers = add(prompt, {.temperature = 0, .max_tokens = 50});
    run();
    std::vector<int32_t> tokens = tokenizer->encode(prompt, false);
    std::vector<float> logits(258);
    for (const OutputToken& token : (*answers)[0].tokens) {
      model.logits_after(tokens, logits);
      ASSERT_EQ(token.token, std::max_element(logits.begin(), logits.end()) - logits.begin());
      tokens.push_back(token.token);
    }
    ASSERT_TRUE(tokens.back() == 257 || (*answers)[0].tokens.size() == 50);
  }
}

TEST_F(EngineTest, LengthEndsAtMaxTokensAndAtTheContext) {
  start({.num_kv_blocks = 64, .max_model_len = 40});
  const auto asked = add("<<loop ab>>", {.temperature = 0, .max_tokens = 5});
  const auto unasked = add("<<loop ab>>");
  run();
  EXPECT_EQ((*asked)[0].text, "ababa");
  EXPECT_EQ((*asked)[0].finish, FinishReason::kLength);
  EXPECT_EQ((*unasked)[0].num_completion_tokens, 29);
  EXPECT_EQ((*unasked)[0].finish, FinishReason::kLength);
}

TEST_F(EngineTest, AnAnswerWithoutMaximumEndsWhereTheCacheDoes) {
  start({.num_kv_blocks = 2});
  const auto answers = add("<<loop ab>>");
  run();
  EXPECT_EQ((*answers)[0].num_completion_tokens, 22);  // 11 + 22 tokens, the last of them not in the cache of 32
  EXPECT_EQ((*answers)[0].finish, FinishReason::kLength);
}

TEST_F(EngineTest, StopStringsAndIds) {
  start();
  const auto by_string = add("<<say one two three>>", {.temperature = 0, .stop = {"xyz", "two"}});
  const auto included = add("<<say one two three>>", {.temperature = 0, .stop = {"two"}, .include_stop = true});
  const auto by_id = add("<<say one two three>>", {.temperature = 0, .stop_token_ids = {'w'}});
  const auto ignoring = add("<<say ab>>", {.temperature = 0, .max_tokens = 4, .ignore_eos = true});
  run();
  EXPECT_EQ((*by_string)[0].text, "one ");
  EXPECT_EQ((*by_string)[0].stop_reason, "two");
  EXPECT_EQ((*by_string)[0].num_completion_tokens, 7);
  EXPECT_EQ((*included)[0].text, "one two");
  EXPECT_EQ((*by_id)[0].text, "one t");
  EXPECT_EQ((*by_id)[0].stop_token, 'w');
  EXPECT_EQ((*ignoring)[0].finish, FinishReason::kLength);
  EXPECT_EQ((*ignoring)[0].tokens[2].token, 257);
  EXPECT_EQ((*ignoring)[0].text.substr(0, 2), "ab");
}

TEST_F(EngineTest, MinTokensForbidTheEnd) {
  start();
  const auto answers = add("<<say ab>>", {.temperature = 0, .max_tokens = 30, .min_tokens = 10});
  run();
  for (size_t i = 0; i < 10; ++i) EXPECT_NE((*answers)[0].tokens[i].token, 257);
  EXPECT_EQ((*answers)[0].stop_token, 257);
  EXPECT_EQ((*answers)[0].num_completion_tokens, 11);
}

TEST_F(EngineTest, ChoicesDifferByStreamAndRepeatBySeed) {
  start();
  const SamplingParams sampling{.temperature = 1, .seed = 5, .max_tokens = 20, .num_logprobs = 2};
  const auto first = add("random, please", sampling, 4);
  run();
  const auto again = add("random, please", sampling, 4);
  const auto alone = add("random, please", sampling, 1);
  run();
  for (size_t i = 0; i < 4; ++i) {
    testing::expect_same((*first)[i], (*again)[i]);
    for (size_t j = 0; j < i; ++j) EXPECT_NE((*first)[i].text, (*first)[j].text);
  }
  testing::expect_same((*first)[0], (*alone)[0]);
  EXPECT_EQ(engine->stats().num_prompt_tokens, 3u * 14);  // a prompt counts once
}

TEST_F(EngineTest, RequestsWithoutSeedDiffer) {
  start();
  const auto first = add("random, please", {.temperature = 1, .max_tokens = 20});
  const auto second = add("random, please", {.temperature = 1, .max_tokens = 20});
  run();
  EXPECT_NE((*first)[0].text, (*second)[0].text);
}

TEST_F(EngineTest, PromptLogprobsComeWithTheFirstDelta) {
  start({.max_num_batched_tokens = 7});
  const std::string prompt = "score this prompt, which is longer than a chunk";
  const auto answers = add(prompt, {.temperature = 0, .max_tokens = 3, .num_prompt_logprobs = 2}, 2);
  run();
  const Answer& answer = (*answers)[0];
  ASSERT_EQ(answer.prompt_tokens.size(), prompt.size());
  EXPECT_TRUE((*answers)[1].prompt_tokens.empty());
  EXPECT_EQ(answer.prompt_tokens[0].token, 's');
  EXPECT_TRUE(answer.prompt_tokens[0].top.empty());
  const ScriptedModel model;
  const auto ids = tokenizer->encode(prompt, false);
  std::vector<float> logits(258);
  for (size_t i = 1; i < ids.size(); ++i) {
    model.logits_after(std::span(ids).first(i), logits);
    double sum = 0;
    for (const float x : logits) sum += std::exp(double{x});
    ASSERT_EQ(answer.prompt_tokens[i].token, ids[i]);
    ASSERT_NEAR(answer.prompt_tokens[i].logprob, logits[static_cast<size_t>(ids[i])] - std::log(sum), 1e-5);
    ASSERT_EQ(answer.prompt_tokens[i].top[0].token, std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
}

TEST_F(EngineTest, NoTokensAskedForScoresThePrompt) {
  start();
  const auto answers = add("only score", {.max_tokens = 0, .num_prompt_logprobs = 0});
  const auto nothing = add("nothing", {.max_tokens = 0});
  run();
  EXPECT_EQ((*answers)[0].prompt_tokens.size(), 10u);
  EXPECT_EQ((*answers)[0].finish, FinishReason::kLength);
  EXPECT_EQ((*answers)[0].num_completion_tokens, 0);
  EXPECT_EQ((*nothing)[0].finish, FinishReason::kLength);
}

TEST_F(EngineTest, AFailedSequenceHarmsOnlyItself) {
  start();
  const auto good = add("<<say this one is fine and long enough>>");
  const auto nan = add("<<say ab\\!nan>>");
  const auto fails = add("<<fail>>");
  run();
  EXPECT_EQ((*good)[0].text, "this one is fine and long enough");
  for (const auto& bad : {nan, fails}) {
    EXPECT_EQ((*bad)[0].finish, FinishReason::kError);
    EXPECT_NE((*bad)[0].error.find("not a number"), std::string::npos);
  }
  EXPECT_EQ((*nan)[0].text, "ab");
  EXPECT_EQ(engine->stats().num_failed, 2u);
}

TEST_F(EngineTest, AThrowingModelEndsItsStepsSequencesOnly) {
  start({.max_num_seqs = 2});
  const auto mate = add("<<loop x>>");
  const auto thrower = add("<<say a\\!throw>>");
  const auto later = add("<<say later>>");
  run();
  EXPECT_EQ((*mate)[0].finish, FinishReason::kError);
  EXPECT_EQ((*thrower)[0].finish, FinishReason::kError);
  EXPECT_NE((*thrower)[0].error.find("the script says so"), std::string::npos);
  EXPECT_EQ((*later)[0].text, "later");
}

TEST_F(EngineTest, NothingLeftToSampleIsSaid) {
  start();
  SamplingParams sampling{.temperature = 0, .max_tokens = 5, .min_tokens = 2};
  for (int32_t id = 0; id < 258; ++id) sampling.stop_token_ids.push_back(id);
  const auto answers = add("everything ends it", sampling);
  run();
  EXPECT_EQ((*answers)[0].finish, FinishReason::kError);
  EXPECT_NE((*answers)[0].error.find("min_tokens"), std::string::npos);
}

TEST_F(EngineTest, CancelsInEveryState) {
  start({.max_num_seqs = 2, .max_num_batched_tokens = 8});
  const auto decoding = add("<<loop x>>");
  while (engine->step() != 1) {}
  const auto prefilling = add("a prompt of more than eight tokens");
  const auto waiting = add("waits", {.temperature = 0}, 3);
  engine->step();
  engine->cancel(2);
  engine->cancel(3);
  engine->cancel(1);
  engine->cancel(1);
  engine->cancel(99);
  EXPECT_FALSE(engine->has_work());
  for (const auto& answers : {decoding, prefilling, waiting})
    for (const Answer& answer : *answers) EXPECT_EQ(answer.finish, FinishReason::kCancelled);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.num_cancelled_decode, 1u);
  EXPECT_EQ(stats.num_cancelled_prefill, 1u);
  EXPECT_EQ(stats.num_cancelled_waiting, 3u);
  EXPECT_EQ(stats.num_cancelled, 5u);
  run();
}

TEST_F(EngineTest, ABrokenSinkHarmsOnlyItself) {
  start();
  GenerationRequest request{.prompt = {'a'}, .sampling = {.temperature = 0, .max_tokens = 5}};
  int num_calls = 0;
  engine->add(++last_handle, request, [&](Delta&&) {
    ++num_calls;
    throw std::runtime_error("broken");
  });
  const auto other = add("<<say fine>>");
  run();
  EXPECT_EQ(num_calls, 1);
  EXPECT_EQ((*other)[0].text, "fine");
}

TEST_F(EngineTest, CancelAllAndFailAllEndEverything) {
  start({.max_num_seqs = 1});
  const auto running = add("<<loop x>>");
  const auto waiting = add("<<loop x>>");
  engine->step();
  engine->fail_all("The engine failed");
  for (const auto& answers : {running, waiting}) {
    EXPECT_EQ((*answers)[0].finish, FinishReason::kError);
    EXPECT_EQ((*answers)[0].error, "The engine failed");
  }
  run();
  const auto cancelled = add("<<loop x>>");
  engine->cancel_all();
  EXPECT_EQ((*cancelled)[0].finish, FinishReason::kCancelled);
  run();
}

TEST_F(EngineTest, RefusesWhatItCanNeverServe) {
  start({.num_kv_blocks = 4, .max_model_len = 100});
  std::optional<Error> error;
  const auto prompt = [](size_t size) { return std::vector<int32_t>(size, 'a'); };

  EXPECT_NE(refusal({.prompt = {}}, &error).find("at least one token"), std::string::npos);
  EXPECT_NE(refusal({.prompt = {5, 258}}, &error).find("0 to 257, found 258"), std::string::npos);
  EXPECT_EQ(error->param(), "prompt");
  EXPECT_NE(refusal({.prompt = {-1}}).find("found -1"), std::string::npos);

  // Context 100, both numbers.
  const std::string context = refusal({.prompt = prompt(90), .sampling = {.max_tokens = 11}}, &error);
  EXPECT_NE(context.find("100"), std::string::npos);
  EXPECT_NE(context.find("90"), std::string::npos);
  EXPECT_NE(context.find("11"), std::string::npos);
  EXPECT_EQ(error->kind(), ErrorKind::kContextLength);
  EXPECT_EQ(error->param(), "max_tokens");
  EXPECT_EQ(refusal({.prompt = prompt(100)}, &error).empty(), false);
  EXPECT_EQ(error->kind(), ErrorKind::kContextLength);
  EXPECT_EQ(error->param(), "prompt");
  refusal({.prompt = prompt(50), .sampling = {.max_tokens = std::numeric_limits<int64_t>::max()}}, &error);
  EXPECT_EQ(error->kind(), ErrorKind::kContextLength);

  // The cache of 64 tokens: 32 + 33 needs 64 of them, one more does not fit.
  EXPECT_EQ(refusal({.prompt = prompt(32), .sampling = {.max_tokens = 33}}), "");
  const std::string cache = refusal({.prompt = prompt(32), .sampling = {.max_tokens = 34}}, &error);
  EXPECT_NE(cache.find("64 tokens (4 blocks of 16)"), std::string::npos);
  EXPECT_NE(cache.find("more KV blocks"), std::string::npos);
  EXPECT_EQ(refusal({.prompt = prompt(64)}), "");
  EXPECT_NE(refusal({.prompt = prompt(65)}), "");
  EXPECT_EQ(refusal({.prompt = prompt(64), .sampling = {.max_tokens = 0}}), "");
  EXPECT_NE(refusal({.prompt = prompt(65), .sampling = {.max_tokens = 0}}), "");

  const auto field_at_fault = [&](SamplingParams sampling, int32_t n = 1) {
    error.reset();
    refusal({.prompt = {1}, .sampling = std::move(sampling), .n = n}, &error);
    return error ? error->param() : "";
  };
  const double nan = std::nan("");
  EXPECT_EQ(field_at_fault({}), "");
  EXPECT_EQ(field_at_fault({}, 0), "n");
  EXPECT_EQ(field_at_fault({.temperature = -1}), "temperature");
  EXPECT_EQ(field_at_fault({.temperature = nan}), "temperature");
  EXPECT_EQ(field_at_fault({.temperature = std::numeric_limits<double>::infinity()}), "temperature");
  EXPECT_EQ(field_at_fault({.top_k = -2}), "top_k");
  EXPECT_EQ(field_at_fault({.top_p = 1.1}), "top_p");
  EXPECT_EQ(field_at_fault({.min_p = nan}), "min_p");
  EXPECT_EQ(field_at_fault({.repetition_penalty = 0}), "repetition_penalty");
  EXPECT_EQ(field_at_fault({.frequency_penalty = 2.5}), "frequency_penalty");
  EXPECT_EQ(field_at_fault({.presence_penalty = -2.5}), "presence_penalty");
  EXPECT_EQ(field_at_fault({.logit_bias = {{300, 1.0f}}}), "logit_bias");
  EXPECT_EQ(field_at_fault({.logit_bias = {{3, 1000.0f}}}), "logit_bias");
  EXPECT_EQ(field_at_fault({.max_tokens = -1}), "max_tokens");
  EXPECT_EQ(field_at_fault({.max_tokens = 3, .min_tokens = 4}), "min_tokens");
  EXPECT_EQ(field_at_fault({.min_tokens = 70}), "min_tokens");
  EXPECT_EQ(field_at_fault({.stop = {""}}), "stop");
  EXPECT_EQ(field_at_fault({.stop = {"\xFF"}}), "stop");
  EXPECT_EQ(field_at_fault({.stop = std::vector<std::string>(65, "a")}), "stop");
  EXPECT_EQ(field_at_fault({.stop_token_ids = {-3}}), "stop_token_ids");
  EXPECT_EQ(field_at_fault({.num_logprobs = 300}), "logprobs");
}

TEST_F(EngineTest, RefusesOptionsThatCannotWork) {
  for (const EngineOptions& options : {EngineOptions{.max_num_seqs = 0, .num_kv_blocks = 1}, EngineOptions{.max_num_batched_tokens = 0, .num_kv_blocks = 1},
                                      EngineOptions{.num_kv_blocks = 0}, EngineOptions{.num_kv_blocks = 1, .max_model_len = 5000},
                                      EngineOptions{.num_kv_blocks = 1, .max_model_len = -5}})
    EXPECT_THROW(Engine(std::make_unique<ScriptedModel>(), tokenizer, options, clock), Error);
  start({.max_num_seqs = 5000, .max_num_batched_tokens = 100'000});
  EXPECT_EQ(engine->options().max_num_batched_tokens, 2048);
  EXPECT_EQ(engine->options().max_num_seqs, 2048);
  EXPECT_EQ(engine->max_model_len(), 4096);
}

}  // namespace
}  // namespace cadre
