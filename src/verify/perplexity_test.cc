#include "verify/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "models/quantization.h"
#include "tests/support/layouts.h"
#include "tests/testing.h"
#include "tokenizer/tokenizer.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

class Quantised : public ::testing::Test {
 protected:
  std::unique_ptr<ModelRunner> load(const std::string& quantization, const Layout& layout = {}) const {
    DecoderOptions decoder{.max_batched_tokens = 256, .quantization = parse_quantization(quantization)};
    return std::make_unique<ModelRunner>(ModelRunnerOptions{.config = load_model_config(dir_), .open_weights = [this] { return open_checkpoint(dir_); }, 
                                                              .decoder = decoder, .layout = layout, .num_blocks = 40});
  }
  std::vector<int32_t> tokens() const {
    std::ifstream file(testing::source_dir() / "tests" / "perplexity" / "heldout.txt");
    std::stringstream text;
    text << file.rdbuf();
    return load_tokenizer(dir_)->encode(text.str(), false);
  }
  const std::filesystem::path dir_ = testing::source_dir() / "models" / "demo";
};

// What a number format may cost on text that the demo model was not trained on. Each is held against float32, which the stored FP8 blocks equal
// to the bit (PackedMatrix tests).
TEST_F(Quantised, FormatsCostNoMorePerplexityThanPromised) {
  const auto base = load("float32");
  std::vector<int32_t> text = tokens();
  ASSERT_GT(text.size(), 1024u);
  text.resize(1024);
  for (const auto& [format, most, most_kl] : {std::tuple{"bfloat16", 0.01, 0.002}, {"int8", 0.01, 0.01}, {"int4", 0.06, 0.1}}) {
    const auto model = load(format);
    const PerplexityReport r = measure_perplexity(*model, base.get(), text, 256, {});
    RecordProperty(format, r.ratio());
    std::printf("%s: %s", format, report_text(r).c_str());
    EXPECT_LE(r.ratio(), 1 + most) << format;
    EXPECT_GE(r.ratio(), 1 - most) << format;
    EXPECT_LE(r.against->mean_kl, most_kl) << format;
    EXPECT_GE(r.against->mean_kl, -1e-12) << format;
  }
}

// Quantised too, an answer depends neither on chunks and company nor on the layout.
TEST_F(Quantised, LogitsAreTheSameInAnyChunksAndLayout) {
  const std::vector<int32_t> all = tokens(), prompt(all.begin(), all.begin() + 70);
  for (const char* format : {"int8", "int4"}) {
    const auto one = load(format);
    const std::vector<float> expected = one->prompt_logits(prompt, 0);
    EXPECT_EQ(one->prompt_logits(prompt, 1), expected) << format;
    EXPECT_EQ(one->prompt_logits(prompt, 13), expected) << format;
    EXPECT_EQ(one->batch_logits({prompt, {all.begin() + 70, all.begin() + 150}}, testing::seed())[0], expected) << format;
    for (const int ranks : {2, 4}) {
      const auto many = load(format, testing::make_layout(ranks, 1, ranks));
      EXPECT_EQ(many->prompt_logits(prompt, 0, ranks - 1), expected) << format << " on " << ranks << " ranks";
    }
  }
}

TEST_F(Quantised, WhatCannotBeQuantisedAlikeOnEveryRankIsRefused) {
  const ModelConfig config = load_model_config(dir_);
  EXPECT_THROW(parse_quantization("int2"), Error);
  EXPECT_THROW(check_quantization(config, {}, WeightFormat::kInt8, DType::kF8E4M3), Error);
  EXPECT_NO_THROW(check_quantization(config, {}, WeightFormat::kInt4, DType::kF32));
  Layout split = testing::make_layout(1, 8, 1);  // experts by width
  EXPECT_THROW(check_quantization(config, split, WeightFormat::kInt8, DType::kF32), Error);
}

TEST(Perplexity, IsThatOfTheLogits) {
  const std::filesystem::path dir = testing::source_dir() / "models" / "demo";
  ModelRunner model({.config = load_model_config(dir), .open_weights = [&] { return open_checkpoint(dir); }, .decoder = {.max_batched_tokens = 64}, .layout = {}, .num_blocks = 8});
  const std::vector<int32_t> tokens{5, 9, 300, 7, 12, 40, 41};
  const PerplexityReport r = measure_perplexity(model, &model, tokens, 4, {});
  EXPECT_EQ(r.num_tokens, 5) << "windows of 4 and 3";
  EXPECT_EQ(r.ratio(), 1);
  EXPECT_EQ(r.against->mean_kl, 0);
  EXPECT_EQ(r.against->same_best, 1);
  double nll = 0;
  for (const auto& window : {std::vector<int32_t>{5, 9, 300, 7}, {12, 40, 41}}) {
    const auto logits = model.prompt_logits(window, 0);
    for (size_t i = 0; i + 1 < window.size(); ++i) {
      double sum = 0;
      const float* row = logits.data() + i * static_cast<size_t>(model.vocab_size());
      for (int64_t v = 0; v < model.vocab_size(); ++v) sum += std::exp(double{row[v]});
      nll += std::log(sum) - row[window[i + 1]];
    }
  }
  EXPECT_NEAR(r.mean_nll, nll / 5, 1e-9);
  EXPECT_THROW(measure_perplexity(model, nullptr, std::vector<int32_t>{5}, 4, {}), Error);
  EXPECT_THROW(measure_perplexity(model, nullptr, tokens, 1, {}), Error);
  EXPECT_THROW(measure_perplexity(model, nullptr, tokens, 1 << 30, {}), Error);
}

}  // namespace
}  // namespace cadre
