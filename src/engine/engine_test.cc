#include "engine/engine.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "tests/support/scripted_model.h"
#include "tokenizer/byte_tokenizer.h"

namespace cadre {
namespace {

using testing::ScriptedModel;
using testing::ScriptedModelLog;
using testing::ScriptedModelOptions;

struct Answer {
  std::string text, error;
  std::vector<OutputToken> tokens, prompt_tokens;
  std::optional<FinishReason> finish;
  std::optional<std::string> stop_reason;
  std::optional<int32_t> stop_token;
  int64_t num_completion_tokens = 0;
};

class EngineTest : public ::testing::Test {
 protected:
  void start(EngineOptions options = {}, ScriptedModelOptions model = {}) {
    if (options.num_kv_blocks == 0) options.num_kv_blocks = 64;
    if (options.eos_ids.empty()) options.eos_ids = {257};
    engine = std::make_unique<Engine>(std::make_unique<ScriptedModel>(model), tokenizer, options, clock);
  }
  uint64_t add(const std::string& prompt, SamplingParams sampling = {.temperature = 0}, int32_t n = 1) {
    GenerationRequest request{.prompt = tokenizer->encode(prompt, false), .sampling = sampling, .n = n};
    engine->validate(request);
    const uint64_t handle = ++num_added;
    engine->add(handle, std::move(request), [this, handle](Delta&& delta) {
      Answer& answer = answers[{handle, delta.choice_idx}];
      EXPECT_FALSE(answer.finish) << "a delta after the last one";
      answer.text += delta.text;
      for (auto& token : delta.tokens) answer.tokens.push_back(token);
      for (auto& token : delta.prompt_tokens) answer.prompt_tokens.push_back(token);
      answer.finish = delta.finish;
      answer.stop_reason = delta.stop_reason;
      answer.stop_token = delta.stop_token;
      answer.error = delta.error;
      answer.num_completion_tokens = delta.num_completion_tokens;
    });
    return handle;
  }
  void run() {
    while (engine->has_work()) engine->step();
    EXPECT_EQ(engine->stats().num_free_blocks, engine->stats().num_blocks);
  }

  SteadyClock clock;
  std::shared_ptr<const Tokenizer> tokenizer = std::make_shared<ByteTokenizer>();
  std::unique_ptr<Engine> engine;
  std::map<std::pair<uint64_t, int32_t>, Answer> answers;
  uint64_t num_added = 0;
};

TEST_F(EngineTest, SaysTheScriptAndStopsAtTheEndId) {
  start();
  const auto handle = add("<<say h\xC3\xA9llo>>");
  run();
  const Answer& answer = answers[{handle, 0}];
  EXPECT_EQ(answer.text, "h\xC3\xA9llo");
  EXPECT_EQ(answer.finish, FinishReason::kStop);
  EXPECT_EQ(answer.stop_token, 257);
  EXPECT_EQ(answer.num_completion_tokens, 7);
  EXPECT_EQ(answer.tokens.size(), 7u);
}

}  // namespace
}  // namespace cadre
