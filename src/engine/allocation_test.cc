// Steps do not allocate once warm: counted by replacing operator new in this test program.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "config/bytes.h"
#include "engine/engine.h"
#include "models/decoder.h"
#include "tests/testing.h"
#include "tokenizer/byte_tokenizer.h"

namespace {

std::atomic<int64_t> g_num_allocations{0};

}  // namespace

// Not inlined: the compiler would take malloc and free for a mismatched pair.
__attribute__((noinline)) void* operator new(size_t size) {
  g_num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(size_t size, const std::nothrow_t&) noexcept {
  g_num_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size ? size : 1);
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }

namespace cadre {
namespace {

// The least model there is: the next token counts up.
class CountingModel final : public Model {
 public:
  int64_t vocab_size() const override { return 258; }
  int64_t max_position() const override { return 4096; }
  int64_t max_batched_tokens() const override { return 256; }
  KvLayout kv_layout() const override { return {1, kKvBlockTokens}; }
  void forward(const StepInput& input, KvStore&, const StepOutput& output) override {
    size_t row = 0;
    for (const SequenceRows& rows : input.sequences)
      for (int64_t i = 0; i < rows.num_logit_rows; ++i, ++row)
        for (size_t v = 0; v < 258; ++v)
          output.logits[row * 258 + v] = static_cast<float>((v + static_cast<size_t>(rows.tokens.back())) * 37 % 101) * 0.05f;
  }
};

TEST(Allocation, DecodeStepsDoNotAllocate) {
  const SteadyClock clock;
  Engine engine(std::make_unique<CountingModel>(), std::make_shared<ByteTokenizer>(),
                {.max_num_seqs = 16, .max_num_batched_tokens = 64, .num_kv_blocks = 600}, clock);
  int64_t num_tokens = 0;
  for (uint64_t i = 0; i < 8; ++i) {
    GenerationRequest request{.prompt = {1, 2, 3}, .sampling = {.seed = i, .max_tokens = 1000}};
    SamplingParams& p = request.sampling;
    if (i == 0) p.temperature = 0;
    if (i == 1) p.top_k = 20;
    if (i == 2) p.top_p = 0.9;
    if (i == 3) p.min_p = 0.05;
    if (i == 4) p.repetition_penalty = 1.1;
    if (i == 5) p.stop = {"never to be met, this is", "\xC3\xA9t\xC3\xA9"};
    if (i == 6) p.logit_bias = {{5, 1.0f}};
    if (i == 6) p.min_tokens = 900;
    if (i == 7) p.frequency_penalty = 0.5;
    engine.add(i + 1, request, [&](Delta&& delta) { num_tokens += static_cast<int64_t>(delta.tokens.size()); });
  }
  for (int i = 0; i < 100; ++i) engine.step();
  const int64_t before = g_num_allocations.load();
  const int64_t tokens_before = num_tokens;
  for (int i = 0; i < 500; ++i) engine.step();
  EXPECT_EQ(g_num_allocations.load() - before, 0);
  EXPECT_GT(num_tokens - tokens_before, 3900);
}

// The real model's step alone: whatever it needs is made at the start.
TEST(Allocation, DecodingWithARealModelDoesNotAllocate) {
  const struct {
    const char* name;
    DType activation_dtype;
  } kCases[] = {{"deepseek_v3_fp8", DType::kF32}, {"deepseek_v3_fp8", DType::kF8E4M3}, {"gpt_oss", DType::kF32}, {"qwen2_moe", DType::kF32}};
  for (const auto& [name, activation_dtype] : kCases) {
    const auto dir = testing::source_dir() / "tests" / "reference" / name;
    const auto source = open_checkpoint(dir);
    Decoder model(load_model_config(dir), *source, {.max_batched_tokens = 16, .num_threads = 2, .compute_mode = ComputeMode::kFast, .activation_dtype = activation_dtype});
    KvStore kv(model.kv_layout(), 8);
    const int32_t tokens[2] = {3, 4};
    const BlockId blocks[2][4] = {{0, 1, 2, 3}, {4, 5, 6, 7}};
    std::vector<float> logits(static_cast<size_t>(2 * model.vocab_size()));
    std::vector<uint8_t> failed(2);
    std::vector<SequenceRows> rows(2);
    const auto step = [&](int64_t position) {
      for (size_t s = 0; s < 2; ++s) rows[s] = {.tokens = {&tokens[s], 1}, .start_position = position, .blocks = blocks[s], .num_logit_rows = 1, .num_prompt_tokens = 1};
      model.forward({rows}, kv, {logits, failed});
    };
    for (int64_t position = 0; position < 4; ++position) step(position);
    const int64_t before = g_num_allocations.load();
    for (int64_t position = 4; position < 60; ++position) step(position);
    EXPECT_EQ(g_num_allocations.load() - before, 0) << name;
  }
}

}  // namespace
}  // namespace cadre
