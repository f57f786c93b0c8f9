// Time to sample one token of a vocabulary of 150 000 (the logits are copied each time, as sample() changes them).
#include <benchmark/benchmark.h>

#include <cmath>

#include "base/rng.h"
#include "engine/sampler.h"

namespace cadre {
namespace {

constexpr int64_t kVocab = 151'936;

void sample(benchmark::State& state, const SamplingParams& params, float spread) {
  Rng rng(1);
  std::vector<float> logits(kVocab);
  // Sums of uniforms: bell-shaped, as logits of language models are.
  for (float& x : logits) x = (rng.uniform() + rng.uniform() + rng.uniform() + rng.uniform() - 2) * spread;
  std::vector<int32_t> tokens(2000);
  for (int32_t& id : tokens) id = static_cast<int32_t>(rng.below(kVocab));
  Sampler sampler(kVocab);
  std::vector<float> row(kVocab);
  int64_t index = 0;
  for (auto _ : state) {
    row = logits;
    OutputToken token;
    sampler.sample(row, {.params = &params, .tokens = tokens, .num_prompt = 1000, .index = index++}, &token);
    benchmark::DoNotOptimize(token.token);
  }
}

BENCHMARK_CAPTURE(sample, greedy, {.temperature = 0}, 10.0f);
BENCHMARK_CAPTURE(sample, whole_distribution, {}, 10.0f);
BENCHMARK_CAPTURE(sample, top_k_50, {.top_k = 50}, 10.0f);
BENCHMARK_CAPTURE(sample, top_p_95, {.top_p = 0.95}, 10.0f);
BENCHMARK_CAPTURE(sample, top_p_95_of_flat, {.top_p = 0.95}, 0.5f);
BENCHMARK_CAPTURE(sample, top_k_20_top_p_95, {.top_k = 20, .top_p = 0.95}, 10.0f);
BENCHMARK_CAPTURE(sample, min_p, {.min_p = 0.05}, 10.0f);
BENCHMARK_CAPTURE(sample, penalties, {.temperature = 0, .repetition_penalty = 1.1, .presence_penalty = 0.5}, 10.0f);
BENCHMARK_CAPTURE(sample, greedy_logprobs_20, {.temperature = 0, .num_logprobs = 20}, 10.0f);

}  // namespace
}  // namespace cadre

BENCHMARK_MAIN();
