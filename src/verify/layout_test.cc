// The equivalence matrix: every family over every kind of layout and exchange gives one rank's answers, to the bit where no
// tensor parallelism splits a sum; and what its groups count in each step is what the cost functions predict.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "config/model_config.h"
#include "parallel/traffic_cost.h"
#include "tests/support/layouts.h"
#include "tests/testing.h"
#include "verify/model_runner.h"
#include "verify/reference_set.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

using testing::can_run;
using testing::splits_no_sum;

// Rows and pairs from each rank to each other one, by the routes they chose.
struct Flow {
  std::vector<std::vector<DispatchRows>> of;  // [source][destination]
};

Flow flow_of(const Layout& l, const ExpertPlacement& placement, const ModelRunner& runner, int64_t layer, int64_t top_k) {
  const size_t world = static_cast<size_t>(l.world);
  Flow flow{std::vector(world, std::vector<DispatchRows>(world))};
  for (size_t s = 0; s < world; ++s) {
    const auto& routes = runner.last_routes(static_cast<int>(s));
    const auto found = routes.find(layer);
    if (found == routes.end()) continue;
    const auto& ids = found->second.ids;
    for (size_t row = 0; row < ids.size(); row += static_cast<size_t>(top_k))
      for (size_t d = 0; d < world; ++d) {
        int64_t pairs = 0;
        for (size_t j = row; j < row + static_cast<size_t>(top_k); ++j) pairs += placement.expert_map(l.coords(static_cast<int>(d)).ep)[static_cast<size_t>(ids[j])] >= 0;
        if (pairs > 0) flow.of[s][d] += {1, pairs};
      }
  }
  return flow;
}

void expect_predicted_traffic(ModelRunner& runner, const std::vector<int64_t>& dp_rows) {
  const Layout& l = runner.layout();
  const ModelConfig& config = runner.config();
  const auto plan = plan_layers(config, l);
  const auto placement = config.moe.router.num_experts > 0 ? ExpertPlacement::initial(config.moe.router.num_experts, l.ep, l.placement) : ExpertPlacement();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const LayerPlan& p = plan[static_cast<size_t>(layer)];
    const Flow flow = p.is_sparse && l.ep > 1 ? flow_of(l, placement, runner, layer, config.moe.router.top_k) : Flow{};
    for (int r = 0; r < l.world; ++r) {
      LayerTrafficInput input{.dp_rows = dp_rows, .world_rank = r};
      if (!flow.of.empty())
        for (int other = 0; other < l.world; ++other)
          if (other != r) input.out += flow.of[static_cast<size_t>(r)][static_cast<size_t>(other)], input.in += flow.of[static_cast<size_t>(other)][static_cast<size_t>(r)];
      const TrafficCounts expected = predict_layer_traffic(config, l, p, input), &counted = runner.counters(r)->layer(layer);
      for (size_t t = 0; t < kNumTraffic; ++t) {
        ASSERT_EQ(counted[t].calls, expected[t].calls) << "layer " << layer << " rank " << r << " " << traffic_name(static_cast<Traffic>(t));
        ASSERT_EQ(counted[t].bytes_sent, expected[t].bytes_sent) << "layer " << layer << " rank " << r << " " << traffic_name(static_cast<Traffic>(t));
      }
    }
  }
}

struct Sequence {
  int dp_rank;
  std::vector<int32_t> tokens;  // prompt and continuation
  int64_t prompt = 0;
};

// Logits of each sequence at every position, by a schedule drawn from `seed`: prompts in pieces, then single tokens, some
// ranks without rows now and then.
std::vector<std::vector<float>> run(ModelRunner& runner, const std::vector<Sequence>& sequences, uint64_t seed) {
  Rng rng(seed, 17);
  std::vector<std::vector<float>> out(sequences.size());
  std::vector<size_t> done(sequences.size());
  std::vector<std::vector<BlockId>> blocks;
  for (const Sequence& s : sequences) blocks.push_back(runner.take_blocks(s.dp_rank, static_cast<int64_t>(s.tokens.size())));
  const size_t vocab = static_cast<size_t>(runner.vocab_size());
  for (bool any = true; any;) {
    any = false;
    std::vector<RankedRows> rows;
    std::vector<size_t> who;
    std::vector<int64_t> dp_rows(static_cast<size_t>(runner.layout().attn_dp));
    for (size_t i = 0; i < sequences.size(); ++i) {
      const Sequence& s = sequences[i];
      const size_t left = s.tokens.size() - done[i];
      any = any || left > 0;
      const size_t n = std::min<size_t>(left, rng.below(3) == 0 ? 0 : static_cast<int64_t>(done[i]) < s.prompt ? 1 + rng.below(60) : 1);
      if (n == 0) continue;
      rows.push_back({s.dp_rank, {std::span(s.tokens).subspan(done[i], n), static_cast<int64_t>(done[i]), blocks[i], static_cast<int64_t>(n), s.prompt}});
      dp_rows[static_cast<size_t>(s.dp_rank)] += static_cast<int64_t>(n);
      who.push_back(i);
    }
    if (rows.empty()) continue;
    if (runner.counters(0))
      for (int r = 0; r < runner.layout().world; ++r) runner.counters(r)->reset();
    const std::vector<float> logits = runner.step(rows);
    if (runner.counters(0)) expect_predicted_traffic(runner, dp_rows);
    if (::testing::Test::HasFatalFailure()) return out;
    auto from = logits.begin();
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t n = rows[i].rows.tokens.size();
      const auto to = from + static_cast<std::ptrdiff_t>(n * vocab);
      out[who[i]].insert(out[who[i]].end(), from, to);
      done[who[i]] += n;
      from = to;
    }
  }
  for (size_t i = 0; i < sequences.size(); ++i) runner.give_back(sequences[i].dp_rank, blocks[i]);
  return out;
}

class LayoutMatrix : public ::testing::TestWithParam<std::string> {};

TEST_P(LayoutMatrix, AnyLayoutGivesOneRanksAnswers) {
  SCOPED_TRACE(testing::seed());
  const auto dir = testing::model_dir(GetParam());
  const ModelConfig config = load_model_config(dir);
  const ReferenceSet reference(dir);
  std::vector<Sequence> sequences;
  for (const std::string& name : reference.prompts()) {
    const ReferencePrompt p = reference.read(name, config.vocab_size);
    sequences.push_back({0, p.tokens, static_cast<int64_t>(p.tokens.size())});
    sequences.back().tokens.insert(sequences.back().tokens.end(), p.greedy.begin(), p.greedy.begin() + 6);
  }
  const auto options = [&](const Layout& l) {
    return ModelRunnerOptions{.config = config, .open_weights = [&] { return open_checkpoint(dir); }, .decoder = {.max_batched_tokens = 256, .compute_mode = ComputeMode::kFast},
                              .layout = l, .num_blocks = 64, .seed = testing::seed()};
  };
  std::vector<std::vector<float>> expected;
  {
    ModelRunner one(options({}));
    expected = run(one, sequences, 1);
  }
  const auto check = [&](const std::string& name, const Layout& l) {
    SCOPED_TRACE(name);
    ModelRunner runner(options(l));
    for (size_t i = 0; i < sequences.size(); ++i) sequences[i].dp_rank = static_cast<int>((i + testing::seed()) % static_cast<size_t>(l.attn_dp));
    const auto got = run(runner, sequences, testing::seed());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].size(), expected[i].size());
      if (splits_no_sum(config, l)) {
        ASSERT_TRUE(got[i] == expected[i]) << "sequence " << i << " not equal to the bit";
        continue;
      }
      double worst = 0;
      for (size_t v = 0; v < got[i].size(); ++v) worst = std::max(worst, std::abs(static_cast<double>(got[i][v]) - static_cast<double>(expected[i][v])));
      ASSERT_LE(worst, 1e-4) << "sequence " << i;
    }
  };
  int num_run = 0;
  for (const testing::LayoutCase& c : testing::layout_cases()) {
    if (!can_run(config, c.layout)) continue;
    ++num_run;
    for (const testing::NamedLayout& named : testing::with_every_exchange(c)) {
      check(named.name, named.layout);
      if (HasFatalFailure()) return;
    }
    if (c.layout.ep == 1) continue;
    for (const ExchangeKind exchange : {ExchangeKind::kAllGatherReduceScatter, ExchangeKind::kAllToAll}) {
      Layout l = c.layout;
      l.exchange = exchange;
      l.combine = CombineOrder::kPerRank;
      check(fmt::format("{} {} per rank", c.name, exchange_name(exchange)), l);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GE(num_run, config.moe.router.num_experts > 0 ? 6 : 2);
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, LayoutMatrix, ::testing::ValuesIn(testing::reference_models()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace cadre
