#include "replay/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "replay/summary.h"
#include "tests/testing.h"

namespace cadre::replay {
namespace {

// A millisecond a step and a microsecond a row of the fullest rank.
double plain_cost(std::span<const StepShape> ranks, double) {
  int64_t rows = 0;
  for (const StepShape& shape : ranks) rows = std::max(rows, shape.rows());
  return 1000 + static_cast<double>(rows);
}

ClusterOptions usual() {
  return {.scheduler = {.max_num_seqs = 64, .max_num_batched_tokens = 512},
          .num_kv_blocks = 10'000,
          .max_model_len = 10'000,
          .queue = {},
          .cost = plain_cost,
          .balance = {}};
}

Trace trace_of(std::initializer_list<TraceRequest> requests) {
  Trace trace;
  trace.requests = requests;
  return trace;
}

Trace random_trace(uint64_t seed, int64_t count, uint32_t gap_us, uint32_t prompt, uint32_t output) {
  Trace trace;
  trace.block_tokens = 32;
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto draw = [&](uint64_t what, uint32_t below) {
      return static_cast<int64_t>(random_u32(seed, static_cast<uint64_t>(i), what) % below);
    };
    TraceRequest request{.arrival_us = at += draw(0, gap_us),
                         .prompt_tokens = 1 + draw(1, prompt),
                         .output_tokens = 1 + draw(2, output)};
    request.first_block = trace.blocks.size();
    uint64_t node = 1;
    for (int64_t b = 0; b < request.prompt_tokens / 32; ++b)
      trace.blocks.push_back(node = node * 2 + static_cast<uint64_t>(draw(3 + static_cast<uint64_t>(b), 8) == 0));
    request.num_blocks = static_cast<uint32_t>(trace.blocks.size() - request.first_block);
    trace.requests.push_back(request);
  }
  return trace;
}

TEST(Cluster, OneRequestTakesItsStepsOneAfterAnother) {
  const Trace trace = trace_of({{.arrival_us = 0, .prompt_tokens = 600, .output_tokens = 3}});
  const ClusterResult result = replay_trace(trace, usual());
  const Outcome& o = result.outcomes[0];
  EXPECT_EQ(o.end, Outcome::End::kAnswered);
  EXPECT_DOUBLE_EQ(o.started_us, 0);
  EXPECT_DOUBLE_EQ(o.first_token_us, 1512 + 1088);  // chunks of 512 and 88
  EXPECT_DOUBLE_EQ(o.last_token_us, 1512 + 1088 + 2 * 1001);
  EXPECT_EQ(result.totals.steps, 4);
  EXPECT_EQ(result.totals.prefill_rows, 600);
  EXPECT_EQ(result.totals.decode_rows, 2);
}

TEST(Cluster, WhatComesDuringAStepWaitsForItsEnd) {
  const Trace trace = trace_of({{.arrival_us = 0, .prompt_tokens = 100, .output_tokens = 2},
                                {.arrival_us = 500, .prompt_tokens = 10, .output_tokens = 1}});
  const ClusterResult result = replay_trace(trace, usual());
  EXPECT_DOUBLE_EQ(result.outcomes[1].started_us, 1100);
  EXPECT_DOUBLE_EQ(result.outcomes[1].first_token_us, 1100 + 1011);
  EXPECT_DOUBLE_EQ(result.outcomes[0].last_token_us, 1100 + 1011);
}

TEST(Cluster, RanksStepTogetherAndServersAlone) {
  const Trace trace = trace_of({{.arrival_us = 0, .prompt_tokens = 500, .output_tokens = 1},
                                {.arrival_us = 0, .prompt_tokens = 10, .output_tokens = 1}});
  ClusterOptions options = usual();
  options.ranks = 2;
  const ClusterResult together = replay_trace(trace, options);
  EXPECT_DOUBLE_EQ(together.outcomes[1].first_token_us, 1500);  // waits for the long one
  EXPECT_EQ(together.totals.steps, 1);
  options.ranks = 1, options.replicas = 2;
  const ClusterResult alone = replay_trace(trace, options);
  EXPECT_DOUBLE_EQ(alone.outcomes[1].first_token_us, 1010);
  EXPECT_EQ(alone.totals.steps, 2);
  EXPECT_NE(alone.outcomes[0].rank, alone.outcomes[1].rank);
}

TEST(Cluster, RefusesAsAServerDoes) {
  ClusterOptions options = usual();
  options.max_model_len = 100;
  options.queue = {.max_requests = 1, .max_tokens = 1000};
  options.scheduler.max_num_seqs = 1;
  const Trace trace = trace_of({{.arrival_us = 0, .prompt_tokens = 99, .output_tokens = 2},
                                {.arrival_us = 0, .prompt_tokens = 50, .output_tokens = 50},
                                {.arrival_us = 10, .prompt_tokens = 5, .output_tokens = 1},
                                {.arrival_us = 20, .prompt_tokens = 5, .output_tokens = 1}});
  const ClusterResult result = replay_trace(trace, options);
  EXPECT_EQ(result.outcomes[0].end, Outcome::End::kTooLong);
  EXPECT_EQ(result.outcomes[1].end, Outcome::End::kAnswered);
  EXPECT_EQ(result.outcomes[2].end, Outcome::End::kAnswered);
  EXPECT_EQ(result.outcomes[3].end, Outcome::End::kOverloaded);  // one waits already
  options.num_kv_blocks = 0;
  EXPECT_THROW(replay_trace(trace, options), Error);
  options = usual(), options.replicas = 0;
  EXPECT_THROW(replay_trace(trace, options), Error);
}

TEST(Cluster, PrefixesThatWereSeenAreNotComputedAgain) {
  Trace trace = trace_of(
      {{.arrival_us = 0, .prompt_tokens = 320, .output_tokens = 2, .first_block = 0, .num_blocks = 10},
       {.arrival_us = 100'000, .prompt_tokens = 330, .output_tokens = 2, .first_block = 10, .num_blocks = 11}});
  trace.block_tokens = 32;
  for (uint64_t i = 0; i < 10; ++i) trace.blocks.push_back(i);
  for (uint64_t i = 0; i < 11; ++i) trace.blocks.push_back(i < 8 ? i : 100 + i);
  ClusterOptions options = usual();
  EXPECT_EQ(replay_trace(trace, options).totals.cached_tokens, 0);
  options.has_prefix_cache = true;
  const ClusterResult result = replay_trace(trace, options);
  EXPECT_EQ(result.outcomes[1].cached_tokens, 256);
  EXPECT_EQ(result.totals.cached_tokens, 256);
  EXPECT_DOUBLE_EQ(result.outcomes[1].first_token_us, 100'000 + 1000 + 330 - 256);
  trace.block_tokens = 24;  // no whole number of KV blocks: nothing can be told
  EXPECT_EQ(replay_trace(trace, options).totals.cached_tokens, 0);
}

TEST(Cluster, MeasuringTokensBeatsTakingTurns) {
  // Every second request is long: in turn, one rank gets all of these.
  Trace trace;
  for (int64_t i = 0; i < 200; ++i)
    trace.requests.push_back({.arrival_us = i * 4000, .prompt_tokens = i % 2 == 0 ? 400 : 10, .output_tokens = 20});
  ClusterOptions options = usual();
  options.ranks = 2;
  const auto p90 = [&](LoadBalance method) {
    options.load_balance = method;
    return summarize(trace, options, replay_trace(trace, options)).ttft_ms.p90;
  };
  EXPECT_LT(p90(LoadBalance::kTotalTokens), p90(LoadBalance::kRoundRobin));
}

// Whatever comes: every request ends once, tokens and rows add up, and the same again is the same.
TEST(Cluster, RandomTracesAddUpAndRepeat) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE("CADRE_SEED=" + std::to_string(seed));
  for (uint64_t round = 0; round < 40; ++round) {
    const auto draw = [&](uint64_t what, uint32_t below) {
      return static_cast<int64_t>(random_u32(seed, round, what) % below);
    };
    const Trace trace =
        random_trace(seed + round, 60 + draw(0, 200), 1 + static_cast<uint32_t>(draw(1, 8000)), 700, 60);
    ClusterOptions options = usual();
    options.replicas = 1 + static_cast<int>(draw(2, 3)), options.ranks = 1 + static_cast<int>(draw(3, 4));
    options.scheduler = {.max_num_seqs = 1 + draw(4, 20),
                         .max_num_batched_tokens = 32 + draw(5, 300),
                         .max_prefill_tokens_per_step = draw(6, 2) * 16};
    options.num_kv_blocks = 50 + draw(7, 200);
    options.has_prefix_cache = draw(8, 2) == 1;
    options.sync = draw(9, 2) == 1 ? DpSync::kWaves : DpSync::kLockstep;
    options.load_balance = draw(10, 2) == 1 ? LoadBalance::kTotalRequests : LoadBalance::kTotalTokens;
    options.queue.max_requests = 5 + draw(11, 100);
    const ClusterResult result = replay_trace(trace, options), again = replay_trace(trace, options);
    int64_t output = 0, taken = 0;
    for (size_t i = 0; i < trace.requests.size(); ++i) {
      const Outcome& o = result.outcomes[i];
      EXPECT_EQ(o.first_token_us, again.outcomes[i].first_token_us);
      EXPECT_EQ(o.last_token_us, again.outcomes[i].last_token_us);
      EXPECT_EQ(o.rank, again.outcomes[i].rank);
      if (o.end != Outcome::End::kAnswered) continue;
      ++taken;
      output += trace.requests[i].output_tokens;
      EXPECT_GE(o.started_us, static_cast<double>(trace.requests[i].arrival_us));
      EXPECT_GT(o.first_token_us, o.started_us);
      EXPECT_GE(o.last_token_us, o.first_token_us + 1000.0 * static_cast<double>(trace.requests[i].output_tokens - 1));
    }
    const ClusterTotals& t = result.totals;
    EXPECT_EQ(t.output_tokens, output);
    EXPECT_EQ(std::accumulate(t.requests_of_rank.begin(), t.requests_of_rank.end(), int64_t{0}), taken);
    EXPECT_LE(t.most_running, options.scheduler.max_num_seqs);
    EXPECT_LE(t.most_rows, options.scheduler.max_num_batched_tokens);
    EXPECT_LE(t.most_blocks, options.num_kv_blocks);
    if (t.preemptions == 0) {
      EXPECT_EQ(t.prefill_rows + t.decode_rows, t.prompt_tokens - t.cached_tokens + t.output_tokens - taken);
    }
  }
}

TEST(Cluster, ExpertsThatMoveShortenSteps) {
  eplb::LoadSeries series{
      .num_experts = 8,
      .layers = {1, 2},
      .steps = {{.name = "", .num_steps = 1, .rows = {90, 10, 10, 10, 1, 1, 1, 1, 90, 10, 10, 10, 1, 1, 1, 1}}}};
  ExpertBalanceOptions balance{.cluster = {.num_experts = 8, .ranks = 2, .num_replicas = 10},
                               .planner = {},
                               .interval_steps = 10,
                               .window_steps = 10,
                               .us_per_slot = 100};
  ClusterOptions options = usual();
  options.ranks = 2;
  options.cost = [](std::span<const StepShape>, double balancedness) { return 1000 / balancedness; };
  options.balance = [&] { return ExpertBalance(series, balance); };
  const Trace trace = trace_of({{.arrival_us = 0, .prompt_tokens = 10, .output_tokens = 200}});
  const ClusterResult fixed = replay_trace(trace, options);
  EXPECT_EQ(fixed.totals.rebalances, 0);
  balance.planner = [&](const eplb::LayerLoad& layer) {
    const std::vector<double> rows(layer.rows.begin(), layer.rows.end());
    return eplb::cadre(rows, balance.cluster, &layer.current).placement;
  };
  const ClusterResult moving = replay_trace(trace, options);
  EXPECT_GE(moving.totals.rebalances, 1);
  EXPECT_DOUBLE_EQ(moving.totals.stall_us, static_cast<double>(moving.totals.moved_slots) * 100);
  EXPECT_GT(moving.totals.balancedness, fixed.totals.balancedness);
  EXPECT_LT(moving.outcomes[0].last_token_us, fixed.outcomes[0].last_token_us);
  series.num_experts = 7;
  EXPECT_THROW(replay_trace(trace, options), Error);
}

TEST(Summary, PercentilesAreNearestRanks) {
  std::vector<double> values(100);
  std::iota(values.rbegin(), values.rend(), 1.0);
  const Percentiles p = percentiles_of(values);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(p.max, 100);
  EXPECT_EQ(p.mean, 50.5);
  EXPECT_EQ(percentiles_of({7}).p99, 7);
  EXPECT_EQ(percentiles_of({}).count, 0);
}

TEST(Summary, ARunThatRefusesEverythingHasNoTimes) {
  ClusterOptions options = usual();
  options.max_model_len = 10;
  const Trace trace = trace_of({{.arrival_us = 0, .prompt_tokens = 100, .output_tokens = 1}});
  const Summary s = summarize(trace, options, replay_trace(trace, options));
  EXPECT_EQ(s.too_long, 1);
  EXPECT_EQ(s.output_tokens_per_s, 0);
  EXPECT_NE(summaries_text(trace, {s}).find("0 answered, 1 too long"), std::string::npos);
  EXPECT_EQ(summaries_json(trace, {s}).at("runs").as_array().size(), 1u);
}

}  // namespace
}  // namespace cadre::replay
