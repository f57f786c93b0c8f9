// Every reference checkpoint against Hugging Face transformers: logits, router choices, greedy tokens; and, to the bit,
// independence from chunking and batch mates. tools/make_reference.py made the references.
#include <gtest/gtest.h>

#include <cmath>

#include "config/model_config.h"
#include "tests/testing.h"
#include "verify/verify_model.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

class Reference : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path dir() const {
    return GetParam() == "demo" ? testing::source_dir() / "models" / "demo" : testing::source_dir() / "tests" / "reference" / GetParam();
  }
  size_t num_prompts() const { return GetParam() == "demo" ? 6 : 4; }
  ModelRunner runner(ComputeMode mode, DType kv_dtype = DType::kF32) const {
    return ModelRunner({.config = load_model_config(dir()), .open_weights = [this] { return open_checkpoint(dir()); },
                        .decoder = {.max_batched_tokens = 256, .kv_dtype = kv_dtype, .num_threads = 2, .compute_mode = mode}, .num_blocks = 200, .seed = testing::seed()});
  }
};

TEST_P(Reference, MatchesTransformersInBothModes) {
  SCOPED_TRACE(testing::seed());
  const ReferenceSet reference(dir());
  for (const ComputeMode mode : {ComputeMode::kReference, ComputeMode::kFast}) {
    ModelRunner r = runner(mode);
    const ModelReport report = verify_model(r, reference, {}, testing::seed());
    EXPECT_TRUE(report.passed()) << report_text(report);
    EXPECT_EQ(report.prompts.size(), num_prompts());
    const auto& layers = r.config().layers;
    const int64_t num_sparse = std::count_if(layers.begin(), layers.end(), [](const LayerConfig& l) { return l.is_sparse; });
    for (const PromptReport& p : report.prompts) {
      EXPECT_EQ(p.num_routes, GetParam() == "demo" ? 0 : p.num_tokens * num_sparse);
      EXPECT_GE(p.num_greedy_compared, 1);
    }
  }
}

// The reference mode has one form of everything: a prompt as a prompt and the same tokens as if each had been generated.
TEST_P(Reference, PromptAndDecodeAgreeToTheBitInReferenceMode) {
  ModelRunner r = runner(ComputeMode::kReference);
  const ReferencePrompt prompt = ReferenceSet(dir()).read("2", r.vocab_size());
  const auto whole = r.prompt_logits(prompt.tokens, 0);
  const auto blocks = r.take_blocks(0, static_cast<int64_t>(prompt.tokens.size()));
  std::vector<float> decoded;
  for (size_t i = 0; i < prompt.tokens.size(); ++i) {
    const RankedRows rows{0, {std::span(prompt.tokens).subspan(i, 1), static_cast<int64_t>(i), blocks, 1, 1}};
    const auto logits = r.step(std::span(&rows, 1));
    decoded.insert(decoded.end(), logits.begin(), logits.end());
  }
  EXPECT_TRUE(decoded == whole);
}

// The fast mode's choice of form depends on position and prompt length alone, whatever the cache holds.
TEST_P(Reference, FastModeChunksChangeNoBit) {
  for (const DType kv_dtype : {DType::kF32, DType::kBF16}) {
    ModelRunner r = runner(ComputeMode::kFast, kv_dtype);
    const ReferenceSet reference(dir());
    for (const std::string& name : reference.prompts()) {
      const ReferencePrompt prompt = reference.read(name, r.vocab_size());
      const auto whole = r.prompt_logits(prompt.tokens, 0);
      for (const int64_t chunk : {1, 5, 16, 40}) EXPECT_TRUE(r.prompt_logits(prompt.tokens, chunk) == whole) << "prompt " << name << " in chunks of " << chunk;
    }
  }
}

TEST_P(Reference, ABfloat16CacheStaysClose) {
  for (const ComputeMode mode : {ComputeMode::kReference, ComputeMode::kFast}) {
    ModelRunner r = runner(mode, DType::kBF16);
    const ReferencePrompt prompt = ReferenceSet(dir()).read("2", r.vocab_size());
    const auto got = r.prompt_logits(prompt.tokens, 16);
    double error = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) error += std::pow(got[i] - prompt.logits[i], 2), norm += std::pow(prompt.logits[i], 2);
    // A router near a tie may choose another expert for a row, so the bound is on the whole, not on each logit.
    EXPECT_LT(std::sqrt(error / norm), 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, Reference,
                         ::testing::Values("deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "deepseek_v3_fp8", "glm4_moe", "gpt_oss", "gpt_oss_mxfp4",
                                           "llama", "mixtral", "olmoe", "qwen2_moe", "qwen3", "qwen3_moe", "demo"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace cadre
