// The engine with real models: the reference's greedy tokens, and the same answer to the bit (log-probabilities included)
// in small chunks, among strangers and after preemption.
#include <gtest/gtest.h>

#include <cstring>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/rng.h"
#include "config/model_config.h"
#include "engine/engine.h"
#include "models/decoder.h"
#include "tests/support/answers.h"
#include "tests/testing.h"
#include "tokenizer/byte_tokenizer.h"
#include "weights/safetensors.h"

namespace cadre {
namespace {

using testing::Answer;
using Answers = std::shared_ptr<std::vector<Answer>>;

class RealModel : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path dir() const { return testing::source_dir() / "tests" / "reference" / GetParam(); }
  std::unique_ptr<Engine> make(EngineOptions options, ComputeMode mode) const {
    const ModelConfig config = load_model_config(dir());
    const auto source = open_checkpoint(dir());
    auto model = std::make_unique<Decoder>(config, *source, DecoderOptions{.max_batched_tokens = 256, .compute_mode = mode});
    return std::make_unique<Engine>(std::move(model), std::make_shared<ByteTokenizer>(), options, clock_);
  }
  // The ids of a tensor of reference.safetensors; empty when there is none of that name.
  std::vector<int32_t> reference_ids(const std::string& name) const {
    const MappedFile file(dir() / "reference.safetensors");
    for (const auto& entry : read_safetensors_header(file.bytes(), "reference.safetensors")) {
      if (entry.name != name) continue;
      std::vector<int32_t> out((entry.end - entry.begin) / sizeof(int32_t));
      std::memcpy(out.data(), file.bytes().data() + entry.begin, entry.end - entry.begin);
      return out;
    }
    return {};
  }
  static Answers submit(Engine& engine, uint64_t handle, const GenerationRequest& request) {
    auto answers = std::make_shared<std::vector<Answer>>(static_cast<size_t>(request.n));
    engine.validate(request);
    engine.add(handle, request, testing::collector(answers));
    return answers;
  }

 private:
  SteadyClock clock_;
};

TEST_P(RealModel, SaysTheReferencesGreedyTokens) {
  const auto engine = make({.max_num_batched_tokens = 24, .num_kv_blocks = 64}, ComputeMode::kReference);
  std::vector<Answers> answers;
  std::vector<std::vector<int32_t>> expected;
  for (int p = 0;; ++p) {
    GenerationRequest request{.prompt = reference_ids("prompt." + std::to_string(p)), .sampling = {.temperature = 0, .num_logprobs = 2}};
    if (request.prompt.empty()) break;
    expected.push_back(reference_ids("greedy." + std::to_string(p)));
    request.sampling.max_tokens = static_cast<int64_t>(expected.back().size());
    answers.push_back(submit(*engine, static_cast<uint64_t>(p) + 1, request));
  }
  ASSERT_FALSE(answers.empty());
  while (engine->has_work()) engine->step();
  for (size_t p = 0; p < answers.size(); ++p) {
    const Answer& answer = (*answers[p])[0];
    ASSERT_EQ(answer.tokens.size(), expected[p].size());
    for (size_t i = 0; i < expected[p].size(); ++i) {
      const auto& top = answer.tokens[i].top;
      if (top[0].logprob - top[1].logprob <= 1e-3f && answer.tokens[i].token != expected[p][i]) break;  // undecided
      ASSERT_EQ(answer.tokens[i].token, expected[p][i]) << "prompt " << p << " token " << i;
    }
  }
}

TEST_P(RealModel, AnswersDoNotDependOnCompanyChunksOrPreemption) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  const auto roomy = make({.max_num_batched_tokens = 256, .num_kv_blocks = 64}, ComputeMode::kFast);
  const auto crowded = make({.max_num_seqs = 8, .max_num_batched_tokens = 19, .num_kv_blocks = 9}, ComputeMode::kFast);
  std::vector<Answers> expected, got;
  for (uint64_t handle = 1; handle <= 10; ++handle) {
    GenerationRequest request;
    for (uint32_t i = 1 + rng.below(60); i > 0; --i)
      request.prompt.push_back(static_cast<int32_t>(rng.below(static_cast<uint32_t>(roomy->vocab_size()))));
    request.sampling = {.temperature = handle % 2 ? 0.0 : 1.0, .top_p = 0.95, .seed = rng(), .max_tokens = 50, .num_logprobs = 2};
    if (handle % 3 == 0) request.sampling.num_prompt_logprobs = 1;
    if (handle % 4 == 0) request.n = 2;
    expected.push_back(submit(*roomy, handle, request));
    while (roomy->has_work()) roomy->step();
    got.push_back(submit(*crowded, handle, request));
  }
  while (crowded->has_work()) crowded->step();
  EXPECT_GT(crowded->stats().num_preemptions, 0u);
  EXPECT_EQ(crowded->stats().num_free_blocks, 9);
  for (size_t i = 0; i < got.size(); ++i)
    for (size_t choice = 0; choice < got[i]->size(); ++choice) testing::expect_same((*got[i])[choice], (*expected[i])[choice]);
}

INSTANTIATE_TEST_SUITE_P(Families, RealModel, ::testing::Values("deepseek_v2_lite", "deepseek_v3", "qwen3_moe", "gpt_oss"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace cadre
