#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "tests/testing.h"

namespace cadre {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> tokens;
  int64_t num_prompt = 0;
  std::vector<int32_t> forbidden;
  uint64_t seed = 1, stream = 0;
  int64_t index = 0;

  SampleInput input() const { return {&params, tokens, num_prompt, forbidden, seed, stream, index}; }
};

SampleStatus sample(Sampler& sampler, const Case& c, OutputToken* out) {
  std::vector<float> logits = c.logits;
  return sampler.sample(logits, c.input(), out);
}

// The definition, written down the straightforward way: sort everything, in doubles.
struct Oracle {
  std::vector<std::pair<int32_t, double>> kept;  // by id, with weights
  // False when the answer hangs on the last digits: a limit passes within a millionth of a token's weight.
  bool is_clear = true;

  static float adjusted(const Case& c, int32_t id) {
    double x = c.logits[id];
    for (const auto& [bias_id, bias] : c.params.logit_bias)
      if (bias_id == id) x = static_cast<float>(x) + bias;
    if (std::count(c.forbidden.begin(), c.forbidden.end(), id) > 0) return -kInfinity;
    const auto output = c.tokens.begin() + c.num_prompt;
    const auto count = std::count(output, c.tokens.end(), id);
    if (std::count(c.tokens.begin(), c.tokens.end(), id) > 0 && c.params.repetition_penalty != 1)
      x = x > 0 ? x / c.params.repetition_penalty : x * c.params.repetition_penalty;
    if (count > 0) x -= c.params.frequency_penalty * static_cast<double>(count) + c.params.presence_penalty;
    return static_cast<float>(x);
  }

  explicit Oracle(const Case& c) {
    std::vector<std::pair<float, int32_t>> order;
    for (int32_t id = 0; id < static_cast<int32_t>(c.logits.size()); ++id) order.push_back({-adjusted(c, id), id});
    std::sort(order.begin(), order.end());
    const double best = -order[0].first;
    std::vector<std::pair<int32_t, double>> ranked;
    for (const auto& [negated, id] : order) {
      const double weight = std::exp((-double{negated} - best) / c.params.temperature);
      if (c.params.min_p > 0 && std::abs(weight - c.params.min_p) < 1e-6) is_clear = false;
      if (weight < c.params.min_p || weight < 1e-37) break;
      ranked.push_back({id, weight});
    }
    if (c.params.top_k > 0 && static_cast<size_t>(c.params.top_k) < ranked.size()) ranked.resize(c.params.top_k);
    double total = 0, sum = 0;
    for (const auto& [id, weight] : ranked) total += weight;
    if (c.params.top_p < 1) {
      size_t size = 0;
      while (size < ranked.size() && sum < c.params.top_p * total) {
        sum += ranked[size++].second;
        if (std::abs(sum - c.params.top_p * total) < 1e-6 * total) is_clear = false;
      }
      ranked.resize(std::max<size_t>(size, 1));
    }
    kept = ranked;
    std::sort(kept.begin(), kept.end());
  }

  std::set<int32_t> drawn(const Case& c) const {
    const uint64_t i = static_cast<uint64_t>(c.index);
    const uint64_t high = random_u32(c.seed, c.stream, 2 * i), low = random_u32(c.seed, c.stream, 2 * i + 1);
    const double u = static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
    double total = 0;
    for (const auto& [id, weight] : kept) total += weight;
    std::set<int32_t> out;  // one id, or two beside a border
    for (const double v : {u - 2e-6, u, u + 2e-6}) {
      double left = v * total;
      int32_t chosen = kept.back().first;
      for (const auto& [id, weight] : kept) {
        if (left < weight) {
          chosen = id;
          break;
        }
        left -= weight;
      }
      out.insert(chosen);
    }
    return out;
  }
};

Case random_case(Rng& rng, size_t vocab) {
  Case c;
  c.logits.resize(vocab);
  const uint32_t shape = rng.below(4);
  for (float& x : c.logits) {
    x = rng.uniform() * 8 - 4;
    if (shape == 0) x = std::floor(x * 2) / 2;         // many ties
    if (shape == 1) x *= 5;                            // peaked
    if (shape == 2) x = 1;                             // flat
    if (rng.below(20) == 0) x = -kInfinity;
  }
  c.logits[rng.below(static_cast<uint32_t>(vocab))] = 3;
  const auto maybe = [&] { return rng.below(3) == 0; };
  SamplingParams& p = c.params;
  p.temperature = maybe() ? 1.0 : 0.1 + 3 * double{rng.uniform()};
  if (maybe()) p.top_k = 2 + static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab) + 10));
  if (maybe()) p.top_k = 2 + static_cast<int32_t>(rng.below(5));
  if (maybe()) p.top_p = rng.uniform();
  if (maybe()) p.min_p = double{rng.uniform()} * 0.5;
  const auto id = [&] { return static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab))); };
  if (maybe())
    for (int i = 0; i < 3; ++i) p.logit_bias.push_back({id(), rng.uniform() * 20 - 10});
  if (maybe()) p.repetition_penalty = 0.5 + 2 * double{rng.uniform()};
  if (maybe()) p.frequency_penalty = 4 * double{rng.uniform()} - 2;
  if (maybe()) p.presence_penalty = 4 * double{rng.uniform()} - 2;
  for (uint32_t i = rng.below(30); i > 0; --i) c.tokens.push_back(id());
  c.num_prompt = rng.below(static_cast<uint32_t>(c.tokens.size()) + 1);
  if (vocab > 4 && maybe()) c.forbidden = {id()};
  c.seed = rng();
  c.stream = rng.below(4);
  c.index = rng.below(1000);
  return c;
}

TEST(Sampler, AgreesWithSortingEverything) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  int num_clear = 0;
  for (int round = 0; round < 2000; ++round) {
    const size_t vocab = round % 40 == 0 ? 5000 : 2 + rng.below(300);
    const Case c = random_case(rng, vocab);
    const Oracle oracle(c);
    if (!oracle.is_clear || std::isinf(Oracle::adjusted(c, oracle.kept.front().first))) continue;
    ++num_clear;
    Sampler sampler(static_cast<int64_t>(vocab));
    OutputToken token;
    ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
    ASSERT_TRUE(oracle.drawn(c).contains(token.token)) << "round " << round << ": " << token.token;
    // Asked again after other work, the answer is the same.
    OutputToken other;
    sample(sampler, random_case(rng, vocab), &other);
    ASSERT_EQ(sample(sampler, c, &other), SampleStatus::kOk);
    ASSERT_EQ(other.token, token.token);
  }
  EXPECT_GT(num_clear, 1500);
}

TEST(Sampler, GreedyTakesTheBestAndOfTiesTheLowestId) {
  Sampler sampler(40);
  Case c{.logits = std::vector<float>(40, 1.0f), .params = {.temperature = 0}};
  c.logits[17] = c.logits[23] = 2;
  OutputToken token;
  ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
  EXPECT_EQ(token.token, 17);
  c.params.logit_bias = {{23, 0.5f}};
  ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
  EXPECT_EQ(token.token, 23);
  c.forbidden = {23};
  ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
  EXPECT_EQ(token.token, 17);
  // 1.8 is below 2 / 1.05 but above 2 / 1.2.
  c.logits[5] = 1.8f;
  c.tokens = {17};
  c.num_prompt = 1;
  c.params.repetition_penalty = 1.05;
  ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
  EXPECT_EQ(token.token, 17);
  c.params.repetition_penalty = 1.2;
  ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
  EXPECT_EQ(token.token, 5);
  // Frequency and presence count the output alone.
  c.params.repetition_penalty = 1;
  c.params.frequency_penalty = c.params.presence_penalty = 2;
  ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
  EXPECT_EQ(token.token, 17);
  c.num_prompt = 0;
  ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
  EXPECT_EQ(token.token, 5);
}

TEST(Sampler, TruncationToOneTokenIsGreedy) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  Sampler sampler(100);
  for (int i = 0; i < 200; ++i) {
    Case c{.logits = std::vector<float>(100), .seed = rng()};
    for (float& x : c.logits) x = static_cast<float>(rng.below(20));
    const auto best = static_cast<int32_t>(std::max_element(c.logits.begin(), c.logits.end()) - c.logits.begin());
    for (int kind = 0; kind < 4; ++kind) {
      c.params = {.temperature = 1.5};
      if (kind == 0) c.params.top_k = 1;
      if (kind == 1) c.params.top_p = 0;
      if (kind == 2) c.params.top_p = 1e-9;
      if (kind == 3) c.params.temperature = 1e-9;
      OutputToken token;
      ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
      ASSERT_EQ(token.token, best) << kind;
    }
  }
}

// Pearson's statistic over many draws stays below the 1 - 1e-6 quantile of chi-square.
TEST(Sampler, DrawsFollowTheDistribution) {
  SCOPED_TRACE(testing::seed());
  constexpr int kDraws = 20'000;
  const std::vector<double> shares = {0.4, 0.3, 0.15, 0.1, 0.05};
  for (const bool truncates : {false, true}) {
    Case c{.logits = std::vector<float>(2000, -kInfinity), .seed = testing::seed()};
    for (size_t i = 0; i < shares.size(); ++i) c.logits[i * 450] = static_cast<float>(std::log(shares[i]));
    if (truncates) c.params.top_k = 5;
    Sampler sampler(2000);
    std::vector<int> counts(shares.size());
    for (c.index = 0; c.index < kDraws; ++c.index) {
      OutputToken token;
      ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
      ASSERT_EQ(token.token % 450, 0);
      ++counts[static_cast<size_t>(token.token / 450)];
    }
    double chi_square = 0;
    for (size_t i = 0; i < shares.size(); ++i)
      chi_square += std::pow(counts[i] - shares[i] * kDraws, 2) / (shares[i] * kDraws);
    EXPECT_LT(chi_square, 33.4);  // 4 degrees of freedom
  }
}

TEST(Sampler, SeedStreamAndIndexEachChangeTheDraws) {
  Sampler sampler(1000);
  const auto draws = [&](uint64_t seed, uint64_t stream, int64_t from) {
    std::vector<int32_t> out;
    Case c{.logits = std::vector<float>(1000, 0.0f), .seed = seed, .stream = stream};
    for (c.index = from; c.index < from + 20; ++c.index) {
      OutputToken token;
      sample(sampler, c, &token);
      out.push_back(token.token);
    }
    return out;
  };
  const auto base = draws(1, 0, 0);
  EXPECT_EQ(base, draws(1, 0, 0));
  EXPECT_NE(base, draws(2, 0, 0));
  EXPECT_NE(base, draws(1, 1, 0));
  EXPECT_NE(base, draws(1, 0, 20));
  EXPECT_NE(base, draws(1 | uint64_t{1} << 40, 0, 0));
}

TEST(Sampler, LogprobsAreOfTheRawLogits) {
  Case c{.logits = {1, 2, 3, -kInfinity, 2}, .params = {.temperature = 0, .logit_bias = {{0, 100.0f}}, .num_logprobs = 4}};
  Sampler sampler(5);
  OutputToken token;
  ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
  EXPECT_EQ(token.token, 0);
  const double log_sum = std::log(std::exp(1) + 2 * std::exp(2) + std::exp(3));
  EXPECT_NEAR(token.logprob, 1 - log_sum, 1e-6);
  ASSERT_EQ(token.top.size(), 4u);
  EXPECT_EQ(token.top[0].token, 2);
  EXPECT_EQ(token.top[1].token, 1);
  EXPECT_EQ(token.top[2].token, 4);
  EXPECT_EQ(token.top[3].token, 0);
  EXPECT_NEAR(token.top[0].logprob, 3 - log_sum, 1e-6);
  c.params.num_logprobs = 5;
  ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
  EXPECT_EQ(token.top[4].token, 3);
  EXPECT_EQ(token.top[4].logprob, -9999.0f);
  c.params.num_logprobs = 0;
  ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
  EXPECT_TRUE(token.top.empty());

  ASSERT_EQ(sampler.score(c.logits, 3, 1, &token), SampleStatus::kOk);
  EXPECT_EQ(token.logprob, -9999.0f);
  EXPECT_EQ(token.top[0].token, 2);
}

TEST(Sampler, TopAlternativesAgreeWithSorting) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  for (int round = 0; round < 200; ++round) {
    const size_t vocab = 1 + rng.below(2000);
    Case c{.logits = std::vector<float>(vocab), .params = {.num_logprobs = static_cast<int32_t>(rng.below(25))}};
    for (float& x : c.logits) x = static_cast<float>(rng.below(round % 2 ? 30 : 100'000));
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return c.logits[a] > c.logits[b]; });
    Sampler sampler(static_cast<int64_t>(vocab));
    OutputToken token;
    ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
    ASSERT_EQ(token.top.size(), std::min<size_t>(vocab, c.params.num_logprobs));
    for (size_t i = 0; i < token.top.size(); ++i) ASSERT_EQ(token.top[i].token, order[i]) << i;
  }
}

TEST(Sampler, SaysWhatCannotBeSampled) {
  Sampler sampler(3);
  OutputToken token;
  Case c{.logits = {0, std::numeric_limits<float>::quiet_NaN(), 0}};
  EXPECT_EQ(sample(sampler, c, &token), SampleStatus::kNotFinite);
  EXPECT_EQ(sampler.score(c.logits, 0, 0, &token), SampleStatus::kNotFinite);
  c.logits[1] = kInfinity;
  EXPECT_EQ(sample(sampler, c, &token), SampleStatus::kNotFinite);
  c.logits = {0, -kInfinity, -kInfinity};
  c.forbidden = {0};
  EXPECT_EQ(sample(sampler, c, &token), SampleStatus::kNoneLeft);
  c.logits.assign(3, -kInfinity);
  EXPECT_EQ(sampler.score(c.logits, 0, 0, &token), SampleStatus::kNotFinite);
}

TEST(Sampler, ExtremeParametersStayFinite) {
  Sampler sampler(4);
  OutputToken token;
  Case c{.logits = {3e38f, -3e38f, 0, 1}, .params = {.temperature = 0, .num_logprobs = 4}, .tokens = {0, 1, 2, 3}};
  c.params.logit_bias = {{0, 100}};
  for (const double penalty : {1e-30, 1e30}) {
    c.params.repetition_penalty = penalty;
    ASSERT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
    EXPECT_TRUE(std::isfinite(token.logprob));
    for (const auto& top : token.top) EXPECT_GE(top.logprob, -9999.0f);
  }
  c.params = {.temperature = 1e300, .top_p = 0.5};
  EXPECT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
  c.params = {.temperature = 1e300};
  EXPECT_EQ(sample(sampler, c, &token), SampleStatus::kOk);
}

}  // namespace
}  // namespace cadre
