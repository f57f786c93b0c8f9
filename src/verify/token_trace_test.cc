// The trace against what can be known without it: one rank's answers and routes, rows recounted from the routes of all
// rows, bytes from message sizes.
#include "verify/token_trace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>

#include "base/error.h"
#include "config/model_config.h"
#include "tests/testing.h"
#include "verify/reference_set.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

// Each look at the clock is a microsecond later, whoever looks.
class CountingClock final : public Clock {
 public:
  int64_t now_us() const override { return ++looks_; }

 private:
  mutable std::atomic<int64_t> looks_{0};
};

std::filesystem::path dir_of(const std::string& name) { return testing::source_dir() / "tests" / "reference" / name; }

std::unique_ptr<ModelRunner> make_runner(const std::string& name, const Layout& layout) {
  return std::make_unique<ModelRunner>(
      ModelRunnerOptions{.config = load_model_config(dir_of(name)),
                         .open_weights = [name] { return open_checkpoint(dir_of(name)); },
                         .decoder = {.max_batched_tokens = 64},
                         .layout = layout,
                         .num_blocks = 64,
                         .seed = testing::seed()});
}

Layout layout(int dp, int attn_tp, int ep, ExchangeKind exchange) {
  Layout l;
  l.attn_dp = dp, l.attn_tp = attn_tp, l.world = dp * attn_tp, l.ep = ep, l.moe_tp = l.world / ep, l.dense_tp = attn_tp,
  l.exchange = exchange;
  return l;
}

struct Case {
  const char* model;
  Layout layout;
};

std::vector<Case> cases() {
  const auto per_rank = [](Layout l) {
    return l.combine = CombineOrder::kPerRank, l.placement = PlacementStrategy::kRoundRobin, l;
  };
  return {{"deepseek_v3", layout(1, 1, 1, ExchangeKind::kNone)},
          {"deepseek_v3", layout(4, 1, 4, ExchangeKind::kAllToAll)},
          {"deepseek_v3", layout(2, 2, 4, ExchangeKind::kAllToAll)},
          {"deepseek_v3", layout(2, 1, 2, ExchangeKind::kAuto)},
          {"qwen2_moe", per_rank(layout(4, 1, 4, ExchangeKind::kAllToAll))},
          {"qwen3_moe", layout(4, 1, 2, ExchangeKind::kAllToAllLowLatency)},
          {"mixtral", layout(2, 1, 2, ExchangeKind::kAllGatherReduceScatter)},
          {"mixtral", per_rank(layout(2, 2, 4, ExchangeKind::kAllGatherReduceScatter))},
          {"gpt_oss", layout(2, 1, 1, ExchangeKind::kNone)}};
}

// Prompts of the reference, the first as it is, and what one rank makes of it: a prompt in one piece gives every route.
struct Known {
  explicit Known(const std::string& model) {
    const ReferenceSet reference(dir_of(model));
    const ModelConfig config = load_model_config(dir_of(model));
    for (const std::string& name : reference.prompts()) {
      const ReferencePrompt p = reference.read(name, config.vocab_size);
      prompts.push_back(p.tokens);
      if (greedy.empty()) greedy = p.greedy;
    }
    prompts[1].resize(std::min<size_t>(prompts[1].size(), 9));
  }
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int32_t> greedy;
};

class TraceOf : public ::testing::TestWithParam<size_t> {};

TEST_P(TraceOf, TellsWhatOneRankWouldChooseAndWhatTheMessagesHold) {
  SCOPED_TRACE(testing::seed());
  const Case c = cases()[GetParam()];
  const Known known(c.model);
  const int64_t n = 1 + static_cast<int64_t>(testing::seed() % 3);
  const CountingClock clock;
  const auto runner = make_runner(c.model, c.layout);
  const TokenTrace t = trace_token(*runner, {.prompts = known.prompts, .new_token = n}, clock);
  const ModelConfig& config = runner->config();
  const size_t top_k = static_cast<size_t>(config.moe.router.top_k);

  // The token, and its route, as one rank computes them from the whole sequence at once.
  ASSERT_GT(known.greedy.size(), static_cast<size_t>(n));
  EXPECT_EQ(t.token, known.greedy[static_cast<size_t>(n - 1)]);
  EXPECT_EQ(t.next_token, known.greedy[static_cast<size_t>(n)]);
  EXPECT_EQ(t.position, static_cast<int64_t>(known.prompts[0].size()) + n - 1);
  const auto one = make_runner(c.model, {});
  std::vector<int32_t> sequence = known.prompts[0];
  sequence.insert(sequence.end(), known.greedy.begin(), known.greedy.begin() + n);
  one->prompt_logits(sequence, 0);
  const SeenRoutes& seen = one->routes().at(t.layer);
  ASSERT_EQ(t.experts.size(), top_k);
  std::set<int> destinations;
  for (size_t j = 0; j < top_k; ++j) {
    const TracedExpert& e = t.experts[j];
    EXPECT_EQ(e.expert, seen.ids[seen.ids.size() - top_k + j]);
    EXPECT_NEAR(e.weight, seen.weights[seen.weights.size() - top_k + j], 1e-5);
    EXPECT_EQ(t.ranks[static_cast<size_t>(e.ep_rank * c.layout.moe_tp)].experts[static_cast<size_t>(e.local_slot)],
              e.expert)
        << "the slot holds the expert";
    for (int k = 0; k < c.layout.moe_tp; ++k) destinations.insert(e.ep_rank * c.layout.moe_tp + k);
  }
  EXPECT_EQ(t.destinations, std::vector<int>(destinations.begin(), destinations.end()));
  EXPECT_EQ(t.num_remote(), static_cast<int>(destinations.size() - destinations.count(t.owner)));
  EXPECT_EQ(c.layout.coords(t.owner).attn_dp, t.dp_rank);

  // Rows of experts, recounted: every rank's rows times top_k, on each rank that has a part of the expert.
  int64_t all_rows = 0, computed = 0;
  for (const TracedDpRank& r : t.dp_ranks) all_rows += r.rows;
  std::map<int32_t, int64_t> expected, counted;
  for (int r = 0; r < c.layout.world; ++r)
    for (const int32_t id : runner->last_routes(r).at(t.layer).ids) expected[id] += c.layout.moe_tp;
  for (const TracedWorldRank& r : t.ranks) {
    computed += r.rows;
    for (size_t s = 0; s < r.rows_of_slot.size(); ++s)
      if (r.rows_of_slot[s] > 0) counted[r.experts[s]] += r.rows_of_slot[s];
    EXPECT_GE(r.compute_us, 1);
  }
  EXPECT_EQ(counted, expected);
  EXPECT_EQ(computed, all_rows * static_cast<int64_t>(top_k) * c.layout.moe_tp);
  for (const TracedWorldRank& r : t.ranks)
    EXPECT_LE(r.finished_after_us, t.ranks[static_cast<size_t>(t.last_rank)].finished_after_us);

  EXPECT_TRUE(t.counts_are_as_predicted());
  EXPECT_NE(trace_text(t).find(c.layout.world > 1 ? "calls and bytes equal" : "this layer has no collective"),
            std::string::npos)
      << trace_text(t);
  EXPECT_EQ(parse_json(json::serialize(trace_json(t)), "trace").at("router").at("experts").as_array().size(), top_k);
}

INSTANTIATE_TEST_SUITE_P(Layouts, TraceOf, ::testing::Range<size_t>(0, cases().size()),
                         [](const auto& info) { return fmt::format("{}_{}", cases()[info.param].model, info.param); });

// With no other row in the step, this row's bytes are all there are but for headers.
TEST(TokenTrace, BytesOfTheRowAreThoseOfAStepWithNoOther) {
  const Known known("deepseek_v3");
  const CountingClock clock;
  for (const CombineOrder combine : {CombineOrder::kExact, CombineOrder::kPerRank}) {
    Layout l = layout(4, 1, 4, ExchangeKind::kAllToAll);
    l.combine = combine;
    const auto runner = make_runner("deepseek_v3", l);
    const TokenTrace t = trace_token(*runner, {.prompts = {known.prompts[0]}, .new_token = 2}, clock);
    int64_t dispatched = 0, combined = 0;
    for (const TracedWorldRank& r : t.ranks) {
      dispatched += r.counted[static_cast<size_t>(Traffic::kDispatch)].bytes_sent;
      combined += r.counted[static_cast<size_t>(Traffic::kCombine)].bytes_sent;
    }
    EXPECT_EQ(t.sent_bytes, dispatched - 4 * 3 * kDispatchHeaderBytes);
    EXPECT_EQ(t.back_bytes, combined);
    EXPECT_STREQ(t.dp_ranks[0].phase(), "decode");
    EXPECT_STREQ(t.dp_ranks[3].phase(), "idle");
    EXPECT_EQ(t.ranks[0].counted[static_cast<size_t>(Traffic::kMoeGather)].calls, 0) << "nothing is gathered";
  }
}

TEST(TokenTrace, OtherPromptsAreSpreadAndAnyLayerCanBeFollowed) {
  const Known known("deepseek_v3");
  const CountingClock clock;
  const auto runner = make_runner("deepseek_v3", layout(2, 1, 2, ExchangeKind::kAllToAll));
  for (const int64_t layer : {1, 2}) {
    const TokenTrace t = trace_token(*runner, {.prompts = known.prompts, .new_token = 1, .layer = layer}, clock);
    EXPECT_EQ(t.layer, layer);
    EXPECT_GT(t.dp_ranks[0].rows, 0);
    EXPECT_GT(t.dp_ranks[1].rows, 0);
  }
}

TEST(TokenTrace, RefusesWhatHasNoSuchLayerOrToken) {
  const CountingClock clock;
  const auto dense = make_runner("llama", {});
  EXPECT_THROW(trace_token(*dense, {.prompts = {{1, 2}}}, clock), Error);
  const auto deep = make_runner("deepseek_v3", {});
  for (const int64_t layer : {0, 3, 99})
    EXPECT_THROW(trace_token(*deep, {.prompts = {{1, 2}}, .layer = layer}, clock), Error) << layer;
}

}  // namespace
}  // namespace cadre
