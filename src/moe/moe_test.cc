#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "kernels/elementwise.h"
#include "moe/exchange.h"
#include "moe/experts.h"
#include "moe/router.h"
#include "tests/testing.h"

namespace cadre {
namespace {

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Choice route(const RouterConfig& c, const std::vector<float>& logits, const std::vector<float>& bias = {}, bool expect_ok = true) {
  Choice out{std::vector<int32_t>(static_cast<size_t>(c.top_k)), std::vector<float>(static_cast<size_t>(c.top_k))};
  std::vector<float> scratch(3 * logits.size());
  EXPECT_EQ(route_token(c, logits, bias, scratch, out.ids, out.weights), expect_ok);
  return out;
}

// The same rules by sorting everything, in double.
Choice route_by_sorting(const RouterConfig& c, const std::vector<float>& logits, const std::vector<float>& bias) {
  const size_t n = logits.size();
  std::vector<double> score(n), choice(n);
  double sum = 0;
  for (const float l : logits) sum += std::exp(double{l});
  for (size_t i = 0; i < n; ++i) {
    score[i] = c.score == RouterScore::kSigmoid ? 1 / (1 + std::exp(-double{logits[i]})) : c.score == RouterScore::kSoftmax ? std::exp(double{logits[i]}) / sum : logits[i];
    choice[i] = score[i] + (bias.empty() ? 0 : bias[i]);
  }
  const auto sorted = [](std::vector<size_t> who, auto&& key) {
    std::stable_sort(who.begin(), who.end(), [&](size_t a, size_t b) { return key(a) > key(b); });
    return who;
  };
  std::vector<size_t> allowed(n);
  std::iota(allowed.begin(), allowed.end(), 0);
  if (c.group_score != GroupScore::kNone) {
    const size_t size = n / static_cast<size_t>(c.num_groups);
    std::vector<size_t> groups(static_cast<size_t>(c.num_groups));
    std::iota(groups.begin(), groups.end(), 0);
    const auto group_score = [&](size_t g) {
      std::vector<double> members(choice.begin() + static_cast<std::ptrdiff_t>(g * size), choice.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      std::sort(members.rbegin(), members.rend());
      return c.group_score == GroupScore::kMax ? members[0] : members[0] + members[1];
    };
    groups = sorted(groups, group_score);
    groups.resize(static_cast<size_t>(c.topk_groups));
    std::erase_if(allowed, [&](size_t i) { return std::find(groups.begin(), groups.end(), i / size) == groups.end(); });
  }
  allowed = sorted(allowed, [&](size_t i) { return choice[i]; });
  Choice out;
  double total = 0;
  std::vector<double> w;
  for (size_t j = 0; j < static_cast<size_t>(c.top_k); ++j) {
    out.ids.push_back(static_cast<int32_t>(allowed[j]));
    w.push_back(c.score == RouterScore::kSoftmaxOfTopK ? std::exp(score[allowed[j]]) : score[allowed[j]]);
    total += w.back();
  }
  const bool normalise = c.renormalize || c.score == RouterScore::kSoftmaxOfTopK;
  for (const double v : w) out.weights.push_back(static_cast<float>(v / (normalise ? total : 1) * c.scaling_factor));
  return out;
}

TEST(Router, MatchesSortingForEveryRule) {
  Rng rng(testing::seed(), 6);
  SCOPED_TRACE(testing::seed());
  for (int trial = 0; trial < 600; ++trial) {
    RouterConfig c;
    c.score = static_cast<RouterScore>(trial % 3);
    c.num_groups = 1 + rng.below(4);
    c.num_experts = c.num_groups * (2 + rng.below(15));
    c.group_score = c.score == RouterScore::kSoftmaxOfTopK ? GroupScore::kNone : static_cast<GroupScore>(rng.below(3));
    c.topk_groups = 1 + rng.below(static_cast<uint32_t>(c.num_groups));
    const int64_t reachable = c.group_score == GroupScore::kNone ? c.num_experts : c.num_experts / c.num_groups * c.topk_groups;
    c.top_k = 1 + rng.below(static_cast<uint32_t>(std::min<int64_t>(reachable, 8)));
    c.renormalize = c.score != RouterScore::kSoftmaxOfTopK && rng.below(2);
    c.scaling_factor = rng.below(2) ? 2.5 : 1.0;
    std::vector<float> logits(static_cast<size_t>(c.num_experts)), bias;
    for (float& l : logits) l = rng.uniform() * 8 - 4;
    if (c.score == RouterScore::kSigmoid)
      for (size_t i = 0; i < logits.size(); ++i) bias.push_back(rng.uniform() * 4 - 3);  // negative and large ones too
    const Choice got = route(c, logits, bias), expected = route_by_sorting(c, logits, bias);
    ASSERT_EQ(got.ids, expected.ids) << "trial " << trial;
    for (size_t j = 0; j < got.weights.size(); ++j) ASSERT_NEAR(got.weights[j], expected.weights[j], 1e-5f * std::max(1.0f, expected.weights[j]));
  }
}

TEST(Router, TiesGoToTheLowerExpert) {
  RouterConfig c{.score = RouterScore::kSoftmax, .num_experts = 6, .top_k = 3};
  EXPECT_EQ(route(c, {1, 2, 1, 2, 1, 1}).ids, (std::vector<int32_t>{1, 3, 0}));
  c.group_score = GroupScore::kMax;
  c.num_groups = 3;
  c.topk_groups = 2;
  EXPECT_EQ(route(c, {1, 1, 1, 1, 1, 1}).ids, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Router, BiasChoosesButDoesNotWeigh) {
  const RouterConfig c{.score = RouterScore::kSigmoid, .num_experts = 3, .top_k = 1};
  const Choice got = route(c, {2.0f, 0.0f, -1.0f}, {0, 0, 100});
  EXPECT_EQ(got.ids[0], 2);
  EXPECT_NEAR(got.weights[0], 1 / (1 + std::exp(1.0)), 1e-6);
}

TEST(Router, SaysNoToNaNAndLeavesValidIds) {
  const RouterConfig c{.score = RouterScore::kSoftmax, .num_experts = 4, .top_k = 2};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t at = 0; at < 4; ++at) {
    std::vector<float> logits(4, 0.5f);
    logits[at] = nan;
    const Choice got = route(c, logits, {}, false);
    EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1}));
    EXPECT_EQ(got.weights[0], 0);
  }
}

// Each token through its experts one at a time, with the kernels' own definition.
TEST(Experts, EqualOneTokenAtATimeToTheBit) {
  Rng rng(testing::seed(), 7);
  SCOPED_TRACE(testing::seed());
  for (const bool has_bias : {false, true}) {
    const int64_t hidden = 40, width = 70, num_experts = 5, top_k = 3, tokens = 150;
    const GatedActivation activation{has_bias ? Activation::kGptOssSwiglu : Activation::kSilu, 7.0f};
    Experts experts(ExpertLayout(WeightFormat::kF32, hidden, width, has_bias), num_experts, activation);
    const auto values = [&](int64_t n) {
      std::vector<float> v(static_cast<size_t>(n));
      for (float& x : v) x = rng.uniform() - 0.5f;
      return v;
    };
    for (int64_t e = 0; e < num_experts; ++e) {
      const ExpertLayout& l = experts.layout();
      const auto put = [&](int64_t n, int64_t k, int64_t offset) {
        const auto v = values(n * k);
        pack({.format = WeightFormat::kF32, .data = reinterpret_cast<const std::byte*>(v.data()), .n = n, .k = k, .stride_n = k}, experts.slot(e) + offset);
      };
      put(width, hidden, 0);
      put(width, hidden, l.up_offset);
      put(hidden, width, l.down_offset);
      for (const auto& [offset, n] : {std::pair{l.gate_bias_offset, width}, {l.up_bias_offset, width}, {l.down_bias_offset, hidden}}) {
        if (!has_bias) break;
        const auto b = values(n);
        std::copy(b.begin(), b.end(), reinterpret_cast<float*>(experts.slot(e) + offset));
      }
    }
    const auto x = values(tokens * hidden), weights = values(tokens * top_k);
    std::vector<int32_t> slots;
    for (int64_t i = 0; i < tokens * top_k; ++i) slots.push_back(static_cast<int32_t>(rng.below(num_experts - 1)));  // one expert gets none
    std::vector<float> expected(static_cast<size_t>(tokens * hidden), 0.25f), gate(width), up(width), down(hidden);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < top_k; ++j) {
        const ExpertView e = experts.expert(slots[static_cast<size_t>(t * top_k + j)]);
        gemm_ref(e.gate, e.gate_bias, {x.data() + t * hidden, hidden}, 1, {gate.data(), width});
        gemm_ref(e.up, e.up_bias, {x.data() + t * hidden, hidden}, 1, {up.data(), width});
        activation.apply(gate.data(), up.data(), width, gate.data());
        gemm_ref(e.down, e.down_bias, {gate.data(), width}, 1, {down.data(), hidden});
        add_scaled(weights[static_cast<size_t>(t * top_k + j)], down.data(), hidden, expected.data() + t * hidden);
      }
    }
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      ExpertsWorkspace w(tokens * top_k, num_experts, hidden, width, threads);
      std::vector<float> out(expected.size(), 0.25f);
      ReplicaSplit replicas(ExpertPlacement::initial(num_experts, 1, PlacementStrategy::kLinear), ReplicaChoice::kStatic);
      const std::vector<int64_t> world_rows{tokens};
      const auto exchange = make_local_exchange({.hidden = hidden, .top_k = top_k, .num_slots = num_experts, .codec = {.hidden = hidden}});
      exchange->start_dispatch({x.data(), tokens, slots, weights}, world_rows, replicas);
      experts.compute(exchange->finish_dispatch(), w, pool);
      exchange->start_combine(w, pool);
      exchange->finish_combine(out.data(), pool);
      for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], expected[i]) << "threads " << threads << " at " << i;
      experts.compute({}, w, pool);
    }
  }
}

}  // namespace
}  // namespace cadre
