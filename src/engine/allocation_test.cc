// Steps do not allocate once warm: counted by replacing operator new in this test program.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "config/bytes.h"
#include "engine/engine.h"
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

}  // namespace
}  // namespace cadre
