// Experts that move while requests run: plans that fail, placements set by hand, and what is told of it. (matrix_test.cc moves
// them after every step and compares the answers.)
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "base/rng.h"
#include "dp/deployment.h"
#include "eplb/load_series.h"
#include "eplb/planner.h"
#include "eplb/simulate.h"
#include "tests/support/answers.h"
#include "tests/support/layouts.h"
#include "tests/testing.h"
#include "tokenizer/byte_tokenizer.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

using testing::Answer;

class Balancing : public ::testing::Test {
 protected:
  // Three ranks of qwen3_moe, each with a spare slot or two.
  std::unique_ptr<Deployment> deploy(eplb::BalancerOptions balance) {
    balance.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_ += line + "\n";
    };
    Layout layout = testing::make_layout(3, 1, 3);
    layout.redundant_experts = 3;
    DeploymentOptions options{.config = config_, .layout = layout, .open_weights = [this] { return open_checkpoint(dir_); }, .decoder = {.max_batched_tokens = 48},
                              .engine = {.max_num_seqs = 8, .max_num_batched_tokens = 48, .num_kv_blocks = 64}};
    options.decoder.balance = std::move(balance);
    return std::make_unique<Deployment>(std::move(options), std::make_shared<ByteTokenizer>(), clock_);
  }
  std::vector<OutputToken> ask(Controller& controller, int64_t max_tokens = 30) {
    const auto answer = std::make_shared<std::vector<Answer>>(1);
    controller.submit({.prompt = {5, 3, 1}, .sampling = {.temperature = 0, .max_tokens = max_tokens, .ignore_eos = true, .num_logprobs = 1}}, testing::collector(answer));
    EXPECT_TRUE(controller.wait_until_idle(60'000));
    EXPECT_TRUE((*answer)[0].error.empty()) << (*answer)[0].error;
    return (*answer)[0].tokens;
  }
  std::string log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  static ExpertPlacement keep(const eplb::LayerLoad& layer) { return layer.current; }

  const SteadyClock clock_;
  const std::filesystem::path dir_ = testing::model_dir("qwen3_moe");
  const ModelConfig config_ = load_model_config(dir_);
  std::mutex mutex_;
  std::string log_;
};

TEST_F(Balancing, APlanThatFailsLeavesThePlacementInForceAndSaysSo) {
  int num_calls = 0;
  const auto deployment = deploy({.interval_steps = 4, .planner = [&](const eplb::LayerLoad& layer) -> ExpertPlacement {
    ++num_calls;
    EXPECT_EQ(static_cast<int64_t>(layer.rows.size()), layer.current.num_experts());
    throw invalid_input("placement: expected a plan, found none; think again");
  }});
  ask(deployment->controller());
  const eplb::BalancerStats stats = deployment->balancer()->stats();
  EXPECT_GT(num_calls, 0);
  EXPECT_EQ(stats.num_refused, num_calls);
  EXPECT_EQ(stats.generation, 0);
  EXPECT_NE(log().find("keeps its placement: placement: expected a plan, found none"), std::string::npos) << log();
}

TEST_F(Balancing, NothingMovesWhereLoadIsEvenEnough) {
  const auto deployment = deploy({.interval_steps = 4, .min_balancedness = 0.0, .planner = [](const eplb::LayerLoad& layer) -> ExpertPlacement {
    ADD_FAILURE() << "planned";
    return layer.current;
  }});
  ask(deployment->controller());
  EXPECT_NE(log().find("expert balancedness 0."), std::string::npos) << log();
  EXPECT_EQ(deployment->balancer()->stats().generation, 0);
}

TEST_F(Balancing, PlacementsSetByHandAreReachedAndOthersRefused) {
  const auto deployment = deploy({.interval_steps = 0, .planner = keep});
  eplb::Balancer& balancer = *deployment->balancer();
  const auto before = ask(deployment->controller());
  const auto num_layers = std::count_if(config_.layers.begin(), config_.layers.end(), [](const LayerConfig& l) { return l.is_sparse; });
  const int64_t experts = config_.moe.router.num_experts;
  const ExpertPlacement initial = ExpertPlacement::initial(experts, 3, PlacementStrategy::kLinear, 3);
  EXPECT_THROW(balancer.request({}), Error);
  EXPECT_THROW(balancer.request(std::vector(static_cast<size_t>(num_layers), ExpertPlacement::initial(experts, 3, PlacementStrategy::kLinear, 30))), Error);
  std::vector<int32_t> reversed(initial.slot_to_expert().rbegin(), initial.slot_to_expert().rend());
  const std::vector wanted(static_cast<size_t>(num_layers), ExpertPlacement(experts, 3, std::move(reversed)));
  balancer.request(wanted);
  const auto after = ask(deployment->controller(), 60);
  const eplb::BalancerStats stats = balancer.stats();
  EXPECT_EQ(stats.num_layers_switched, num_layers);
  EXPECT_EQ(stats.num_rebalances, 1);
  EXPECT_GT(stats.moved_slots, 0);
  EXPECT_EQ(stats.moved_bytes % stats.moved_slots, 0) << "whole slots";
  EXPECT_TRUE(testing::same_tokens({after.begin(), after.begin() + static_cast<std::ptrdiff_t>(before.size())}, before));
  EXPECT_EQ(ask(deployment->controller(), 60).size(), 60u);
  EXPECT_EQ(balancer.stats().num_layers_switched, num_layers) << "once";
}

// The tool that replays recorded steps says what the engine did on them: balancedness at each interval, slots moved, and where
// experts are in the end.
TEST_F(Balancing, TheSimulatorSaysWhatTheEngineDid) {
  SCOPED_TRACE(testing::seed());
  constexpr int64_t kInterval = 12, kWindow = 7;
  constexpr double kThreshold = 0.97;
  Layout layout = testing::make_layout(3, 1, 3);
  layout.redundant_experts = 3;
  const auto deployment = deploy({.interval_steps = kInterval, .window_steps = kWindow, .layers_per_step = 100, .min_balancedness = kThreshold, .move_share = 1e12, .prices_moves = false,
                                  .planner = eplb::make_planner("cadre", layout, config_.moe.router, 1)});
  const eplb::ModelPlacement first{{deployment->balancer()->layers().begin(), deployment->balancer()->layers().end()}, deployment->balancer()->placements()};
  deployment->recorder()->start(eplb::RecorderMode::kPerPass);
  Rng rng(testing::seed(), 3);
  for (int i = 0; i < 6; ++i) {
    std::vector<int32_t> prompt;
    for (int t = 0; t < 20; ++t) prompt.push_back(static_cast<int32_t>(rng.below(200)));
    const auto answer = std::make_shared<std::vector<Answer>>(1);
    deployment->controller().submit({.prompt = prompt, .sampling = {.temperature = 1, .seed = rng(), .max_tokens = 15, .ignore_eos = true}}, testing::collector(answer));
    EXPECT_TRUE(deployment->controller().wait_until_idle(60'000));
  }
  // Up to the last interval that began: what it moved may still be on its way.
  eplb::LoadSeries series = eplb::parse_load(deployment->recorder()->dump(), "record");
  const eplb::BalancerStats stats = deployment->balancer()->stats();
  ASSERT_EQ(static_cast<int64_t>(series.steps.size()), stats.num_steps);
  const auto simulated = eplb::simulate(series, {.cluster = eplb::cluster_of(layout, config_.moe.router, 1), .window = kWindow, .interval = kInterval, .threshold = kThreshold}, first);
  ASSERT_GE(simulated.rebalances.size(), 5u);
  std::string expected;
  for (const eplb::Rebalance& r : simulated.rebalances)
    expected += fmt::format("expert balancedness {:.4f} over the last {} steps{}\n", r.window_before, kWindow, r.window_before < kThreshold ? "; rebalancing" : "");
  std::string told, line;
  for (std::istringstream lines(log()); std::getline(lines, line);)
    if (line.starts_with("expert balancedness")) told += line + "\n";
  EXPECT_EQ(told, expected);
  EXPECT_EQ(stats.moved_slots, simulated.moved());
  EXPECT_GT(stats.moved_slots, 0);
  EXPECT_EQ(deployment->balancer()->placements(), simulated.last.placements);
}

// Over layouts with several kinds of ranks: every row of prompts and answers is counted once for each sparse layer, whoever
// computes it, and what recording costs is not an answer.
TEST(Recording, CountsEachRowOnceWhateverTheLayout) {
  const std::filesystem::path dir = testing::model_dir("qwen3_moe");
  const ModelConfig config = load_model_config(dir);
  const SteadyClock clock;
  std::vector<int64_t> expected;
  std::vector<OutputToken> answer;
  for (const auto& [dp, tp, ep] : {std::tuple{1, 1, 1}, {2, 1, 2}, {1, 2, 2}, {2, 2, 4}, {2, 2, 2}, {3, 1, 3}, {1, 2, 1}}) {
    SCOPED_TRACE(fmt::format("dp {} tp {} ep {}", dp, tp, ep));
    const Layout layout = testing::make_layout(dp, tp, ep);
    Deployment deployment({.config = config, .layout = layout, .open_weights = [&] { return open_checkpoint(dir); }, .decoder = {.max_batched_tokens = 48},
                           .engine = {.max_num_seqs = 8, .max_num_batched_tokens = 48, .num_kv_blocks = 64}}, std::make_shared<ByteTokenizer>(), clock);
    eplb::LoadRecorder& recorder = *deployment.recorder();
    const auto ask = [&] {
      const auto answers = std::make_shared<std::vector<Answer>>(1);
      deployment.controller().submit({.prompt = {5, 3, 1, 9, 12}, .sampling = {.temperature = 0, .max_tokens = 20, .ignore_eos = true, .num_logprobs = 1}}, testing::collector(answers));
      EXPECT_TRUE(deployment.controller().wait_until_idle(60'000));
      return (*answers)[0].tokens;
    };
    ask();
    recorder.start(eplb::RecorderMode::kStat);
    const auto tokens = ask();
    recorder.stop();
    ask();
    const eplb::RecorderStatus status = recorder.status();
    // The last token is not computed on.
    EXPECT_EQ(std::accumulate(status.rows_of_rank.begin(), status.rows_of_rank.end(), int64_t{0}), 5 + 20 - 1);
    EXPECT_EQ(status.num_steps, 20);
    if (expected.empty()) expected = status.counts, answer = tokens;
    EXPECT_EQ(std::accumulate(status.counts.begin(), status.counts.end(), int64_t{0}), 24 * config.moe.router.top_k * static_cast<int64_t>(recorder.layers().size()));
    if (testing::splits_no_sum(config, layout)) {
      EXPECT_EQ(status.counts, expected);
      EXPECT_TRUE(testing::same_tokens(tokens, answer));
    }
  }
}

}  // namespace
}  // namespace cadre
