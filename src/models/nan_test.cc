// A NaN that arises in one sequence ends that sequence alone: not its batch mates, nor whoever gets its blocks next.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "models/decoder.h"
#include "tests/testing.h"

namespace cadre {
namespace {

constexpr int32_t kPoison = 5;

// A checkpoint whose embedding of one token is NaN.
class PoisonedSource final : public WeightSource {
 public:
  explicit PoisonedSource(std::unique_ptr<WeightSource> inner) : inner_(std::move(inner)) {}
  bool has(std::string_view name) const override { return inner_->has(name); }
  TensorInfo info(std::string_view name) const override { return inner_->info(name); }
  void release(std::string_view name) override { inner_->release(name); }
  std::vector<std::string> names() const override { return inner_->names(); }
  uint64_t total_bytes() const override { return inner_->total_bytes(); }
  StoredTensor tensor(std::string_view name) override {
    StoredTensor t = inner_->tensor(name);
    if (name != "model.embed_tokens.weight") return t;
    copy_.assign(t.bytes.begin(), t.bytes.end());
    const uint16_t nan = 0x7FC0;
    for (int64_t i = 0; i < t.shape[1]; ++i) std::memcpy(copy_.data() + (kPoison * t.shape[1] + i) * 2, &nan, 2);
    t.bytes = copy_;
    return t;
  }

 private:
  std::unique_ptr<WeightSource> inner_;
  std::vector<std::byte> copy_;
};

class Nan : public ::testing::TestWithParam<std::string> {};

TEST_P(Nan, EndsOnlyItsOwnSequence) {
  const auto dir = testing::source_dir() / "tests" / "reference" / GetParam();
  PoisonedSource source(open_checkpoint(dir));
  const ModelConfig config = load_model_config(dir);
  const DType activations = config.quant == WeightQuant::kFp8Block ? DType::kF8E4M3 : DType::kF32;
  Decoder model(config, source, {.max_batched_tokens = 64, .num_threads = 2, .compute_mode = ComputeMode::kFast, .activation_dtype = activations});
  KvStore kv(model.kv_layout(), 8);
  const size_t vocab = static_cast<size_t>(model.vocab_size());
  std::vector<int32_t> clean(20), poisoned(20);
  std::iota(clean.begin(), clean.end(), 10);
  std::iota(poisoned.begin(), poisoned.end(), 50);
  poisoned[7] = kPoison;
  const std::vector<BlockId> first{0, 1}, second{2, 3};
  const auto run = [&](std::vector<SequenceRows> sequences, std::vector<uint8_t>& failed) {
    std::vector<float> logits(sequences.size() * vocab);
    failed.assign(sequences.size(), 7);
    model.forward({sequences}, kv, {logits, failed});
    return logits;
  };
  std::vector<uint8_t> failed;
  const auto alone = run({{clean, 0, first}}, failed);
  EXPECT_EQ(failed, std::vector<uint8_t>{0});
  const auto together = run({{poisoned, 0, second}, {clean, 0, first}}, failed);
  EXPECT_EQ(failed, (std::vector<uint8_t>{1, 0}));
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + static_cast<std::ptrdiff_t>(vocab)));
  // 17 rows leave most of the second block as the poisoned sequence left it.
  const std::span short_prompt(clean.data(), 17);
  const auto fresh = run({{short_prompt, 0, first}}, failed);
  const auto reused = run({{short_prompt, 0, second}}, failed);
  EXPECT_EQ(failed, std::vector<uint8_t>{0});
  EXPECT_TRUE(fresh == reused);
}

INSTANTIATE_TEST_SUITE_P(Families, Nan, ::testing::Values("deepseek_v3", "deepseek_v3_fp8", "qwen3_moe", "gpt_oss", "llama"), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace cadre
