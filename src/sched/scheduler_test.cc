#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/rng.h"
#include "config/bytes.h"
#include "tests/testing.h"

namespace cadre {
namespace {

int64_t blocks_for(int64_t tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

// Plays the engine: keeps sequences, computes what is scheduled, and ends each after its number of new tokens.
class Simulation {
 public:
  Simulation(SchedulerOptions options, int64_t num_blocks)
      : options_(options), num_blocks_(num_blocks), pool_(num_blocks), scheduler_(options, pool_) {}

  SchedSequence* add(int64_t num_prompt, int64_t num_new, bool is_scored = false, uint64_t group = 0) {
    auto sequence = std::make_unique<SchedSequence>();
    sequence->num_tokens = sequence->num_prompt = num_prompt;
    sequence->max_tokens = num_prompt + num_new - 1;
    sequence->score_from = is_scored ? 0 : -1;
    sequence->group = group;
    SchedSequence* raw = sequence.get();
    open_[raw] = std::move(sequence);
    scheduler_.add(raw);
    return raw;
  }
  void cancel(SchedSequence* sequence) {
    scheduler_.remove(sequence);
    open_.erase(sequence);
  }
  // Runs a step, checks every rule on it, and returns the arrivals of the sequences that got their first token.
  std::vector<uint64_t> step(bool others_decode = false) {
    std::vector<SchedSequence*> ready;  // running ones that need one row
    for (SchedSequence* sequence : scheduler_.running())
      if (sequence->num_uncomputed() == 1) ready.push_back(sequence);
    const auto scheduled = scheduler_.schedule(others_decode);
    last_.assign(scheduled.begin(), scheduled.end());
    check(ready, others_decode);
    std::vector<uint64_t> first_tokens;
    for (const ScheduledRows& rows : last_) {
      SchedSequence* sequence = rows.sequence;
      Scheduler::advance(rows);
      if (sequence->score_from >= 0) {
        const int64_t end = std::min(rows.start + rows.num_rows, sequence->num_prompt - 1);
        if (end > sequence->score_from) {
          EXPECT_LE(rows.start + rows.num_rows - rows.num_logit_rows, sequence->score_from);
          sequence->score_from = end;
        }
      }
      if (!rows.samples) continue;
      if (sequence->num_tokens == sequence->num_prompt) first_tokens.push_back(sequence->arrival);
      if (sequence->num_tokens == sequence->max_tokens) cancel(sequence);
      else ++sequence->num_tokens;
    }
    return first_tokens;
  }
  bool has_work() const { return scheduler_.has_work(); }
  int64_t num_open() const { return static_cast<int64_t>(open_.size()); }
  SchedSequence* any(uint32_t idx) const { return std::next(open_.begin(), idx % open_.size())->first; }
  const std::vector<ScheduledRows>& last() const { return last_; }
  const Scheduler& scheduler() const { return scheduler_; }
  const BlockPool& pool() const { return pool_; }

 private:
  void check(const std::vector<SchedSequence*>& ready, bool others_decode) const {
    int64_t num_rows = 0, num_scored = 0;
    std::set<const SchedSequence*> seen;
    for (const ScheduledRows& rows : last_) {
      const SchedSequence& sequence = *rows.sequence;
      EXPECT_TRUE(seen.insert(&sequence).second);
      EXPECT_EQ(sequence.state, SchedSequence::State::kRunning);
      EXPECT_EQ(rows.start, sequence.num_computed);
      EXPECT_GT(rows.num_rows, 0);
      EXPECT_LE(rows.start + rows.num_rows, sequence.num_tokens);
      EXPECT_EQ(rows.samples, rows.start + rows.num_rows == sequence.num_tokens);
      EXPECT_GE(static_cast<int64_t>(sequence.blocks.size()), blocks_for(rows.start + rows.num_rows));
      num_rows += rows.num_rows;
      num_scored += rows.num_logit_rows - (rows.samples ? 1 : 0);
    }
    EXPECT_LE(num_rows, options_.max_num_batched_tokens);
    const auto num_singles = std::count_if(last_.begin(), last_.end(), [&](const ScheduledRows& rows) {
      return rows.num_rows == 1 && rows.samples && std::find(ready.begin(), ready.end(), rows.sequence) != ready.end();
    });
    if (options_.max_prefill_tokens_per_step > 0 && (others_decode || num_singles > 0)) {
      EXPECT_LE(num_rows - num_singles, options_.max_prefill_tokens_per_step);
    }
    EXPECT_LE(num_scored, options_.max_scored_rows);
    EXPECT_LE(scheduler_.num_running(), std::min(options_.max_num_seqs, options_.max_num_batched_tokens));
    for (const SchedSequence* sequence : ready)
      EXPECT_TRUE(seen.contains(sequence) || sequence->state == SchedSequence::State::kWaiting);
    check_blocks();
  }
  // Every reference is held by a running sequence, and shared blocks hold nothing but a common prompt.
  void check_blocks() const {
    std::map<BlockId, int32_t> holders;
    uint64_t last_arrival = 0;
    for (const SchedSequence* sequence : scheduler_.running()) {
      EXPECT_GT(sequence->arrival, last_arrival);
      last_arrival = sequence->arrival;
      for (const BlockId id : sequence->blocks) ++holders[id];
    }
    for (const auto& [id, count] : holders) EXPECT_EQ(pool_.ref_count(id), count);
    EXPECT_EQ(pool_.num_free(), num_blocks_ - static_cast<int64_t>(holders.size()));
  }

  SchedulerOptions options_;
  int64_t num_blocks_;
  BlockPool pool_;
  Scheduler scheduler_;
  std::map<SchedSequence*, std::unique_ptr<SchedSequence>> open_;
  std::vector<ScheduledRows> last_;
};

TEST(Scheduler, CutsPromptsToTheBudgetAndServesDecodesFirst) {
  Simulation sim({.max_num_seqs = 4, .max_num_batched_tokens = 10}, 100);
  sim.add(3, 10);
  sim.add(20, 10);
  sim.step();
  ASSERT_EQ(sim.last().size(), 2u);
  EXPECT_EQ(sim.last()[0].num_rows, 3);
  EXPECT_EQ(sim.last()[1].num_rows, 7);
  EXPECT_EQ(sim.last()[1].num_logit_rows, 0);
  sim.step();
  ASSERT_EQ(sim.last().size(), 2u);
  EXPECT_EQ(sim.last()[0].num_rows, 1);
  EXPECT_EQ(sim.last()[1].num_rows, 9);
  sim.step();
  EXPECT_EQ(sim.last()[1].num_rows, 4);
  EXPECT_TRUE(sim.last()[1].samples);
}

TEST(Scheduler, RunsAtMostAsManySequencesAsTheBudgetHasRows) {
  Simulation sim({.max_num_seqs = 100, .max_num_batched_tokens = 3}, 100);
  for (int i = 0; i < 10; ++i) sim.add(1, 5);
  sim.step();
  EXPECT_EQ(sim.scheduler().num_running(), 3);
}

TEST(Scheduler, PreemptsTheLatestAndComputesItAgain) {
  // 4 blocks: two prompts of 16 and growth; each needs 3 blocks at its end.
  Simulation sim({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 4);
  SchedSequence* first = sim.add(16, 30);
  SchedSequence* second = sim.add(16, 30);
  const auto order_first = first->arrival;
  std::vector<uint64_t> finished;
  while (sim.has_work()) {
    const auto before = sim.num_open();
    const bool first_is_open = before == 2;
    sim.step();
    if (sim.scheduler().num_preemptions() == 1 && first_is_open && sim.num_open() == 2) {
      EXPECT_EQ(first->state, SchedSequence::State::kRunning);
      EXPECT_EQ(second->state, SchedSequence::State::kWaiting);
      EXPECT_EQ(second->num_computed, 0);
    }
  }
  EXPECT_EQ(order_first, 1u);
  EXPECT_EQ(sim.scheduler().num_preemptions(), 1u);
  EXPECT_EQ(sim.pool().num_free(), 4);
}

TEST(Scheduler, ChoicesShareTheWholeBlocksOfTheirPrompt) {
  Simulation sim({.max_num_seqs = 4, .max_num_batched_tokens = 100}, 100);
  SchedSequence* first = sim.add(40, 10, false, 7);
  SchedSequence* second = sim.add(40, 10, false, 7);
  sim.step();
  EXPECT_EQ(sim.last().size(), 1u);
  sim.step();
  ASSERT_EQ(sim.last().size(), 2u);
  EXPECT_EQ(sim.last()[1].start, 32);
  EXPECT_EQ(sim.last()[1].num_rows, 8);
  EXPECT_EQ(first->blocks[1], second->blocks[1]);
  EXPECT_NE(first->blocks[2], second->blocks[2]);
  sim.cancel(first);
  sim.step();
  EXPECT_EQ(sim.pool().num_free(), 97);
}

TEST(Scheduler, SharedPromptsStillComputeTheirLastToken) {
  Simulation sim({.max_num_seqs = 4, .max_num_batched_tokens = 100}, 100);
  sim.add(32, 10, false, 7);
  sim.add(32, 10, false, 7);
  sim.step();
  sim.step();
  EXPECT_EQ(sim.last()[1].start, 16);
  EXPECT_EQ(sim.last()[1].num_rows, 16);
}

TEST(Scheduler, ScoredPromptsComeInSmallChunks) {
  Simulation sim({.max_num_seqs = 4, .max_num_batched_tokens = 100, .max_scored_rows = 8}, 100);
  sim.add(20, 2, true);
  sim.add(30, 2);
  sim.step();
  ASSERT_EQ(sim.last().size(), 2u);
  EXPECT_EQ(sim.last()[0].num_rows, 8);
  EXPECT_EQ(sim.last()[0].num_logit_rows, 8);
  EXPECT_EQ(sim.last()[1].num_rows, 30);
}

// Random traffic: arrivals, cancels, growth, small pools. Rules are checked on every step, everything ends, first tokens
// come in the order of arrival (scored prompts apart: their chunks are smaller), and no block is lost.
TEST(Scheduler, KeepsItsRulesUnderRandomTraffic) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  uint64_t num_preemptions = 0;
  for (int round = 0; round < 300; ++round) {
    const SchedulerOptions options{.max_num_seqs = 1 + rng.below(8), .max_num_batched_tokens = 1 + rng.below(40),
                                   .max_prefill_tokens_per_step = round % 3 == 0 ? 0 : 1 + rng.below(12), .max_scored_rows = 1 + rng.below(10)};
    const int64_t num_blocks = 4 + rng.below(20);
    Simulation sim(options, num_blocks);
    int num_to_add = 30;
    uint64_t last_first_token = 0, group = 0;
    std::set<uint64_t> scored;
    int64_t num_steps = 0;
    while (num_to_add > 0 || sim.has_work()) {
      while (num_to_add > 0 && rng.below(2) == 0) {
        --num_to_add;
        const int64_t total = 2 + rng.below(static_cast<uint32_t>(num_blocks * kKvBlockTokens - 1));
        const int64_t num_prompt = 1 + rng.below(static_cast<uint32_t>(total - 1));
        const bool is_scored = rng.below(5) == 0;
        group = rng.below(3) == 0 ? group : 0;
        if (rng.below(4) == 0) group = static_cast<uint64_t>(num_to_add) + 1;
        // Sequences of one group have one prompt.
        static int64_t group_prompt = 1;
        if (group == static_cast<uint64_t>(num_to_add) + 1) group_prompt = std::min<int64_t>(num_prompt, 40);
        const int64_t prompt = group ? group_prompt : num_prompt;
        SchedSequence* s = sim.add(prompt, std::max<int64_t>(1, total - prompt), is_scored && !group, group);
        if (is_scored && !group) scored.insert(s->arrival);
      }
      if (sim.num_open() > 0 && rng.below(10) == 0) sim.cancel(sim.any(rng()));
      for (const uint64_t arrival : sim.step(rng.below(4) == 0)) {
        if (scored.contains(arrival)) continue;
        ASSERT_GT(arrival, last_first_token) << "round " << round;
        last_first_token = arrival;
      }
      ASSERT_LT(++num_steps, 1'000'000);
      if (HasFailure()) return;
    }
    ASSERT_EQ(sim.pool().num_free(), num_blocks);
    ASSERT_EQ(sim.scheduler().num_waiting_tokens(), 0);
    num_preemptions += sim.scheduler().num_preemptions();
  }
  EXPECT_GT(num_preemptions, 50u);
}

TEST(Scheduler, PromptsAreBoundedWhileSomebodyDecodes) {
  Simulation sim({.max_num_seqs = 4, .max_num_batched_tokens = 20, .max_prefill_tokens_per_step = 4}, 100);
  const auto rows = [&] {
    std::vector<int64_t> out;
    for (const ScheduledRows& r : sim.last()) out.push_back(r.num_rows);
    return out;
  };
  sim.add(30, 3);
  sim.step();
  EXPECT_EQ(rows(), (std::vector<int64_t>{20}));  // nobody waits for a token
  sim.step(true);
  EXPECT_EQ(rows(), (std::vector<int64_t>{4}));   // another rank does
  sim.add(3, 1);
  sim.step();
  EXPECT_EQ(rows(), (std::vector<int64_t>{6, 3}));
  sim.add(9, 1);
  sim.add(9, 1);
  sim.step();
  EXPECT_EQ(rows(), (std::vector<int64_t>{1, 4}));
  sim.step();  // the first ends
  EXPECT_EQ(rows(), (std::vector<int64_t>{1, 4}));
  sim.step();  // the last row of a prompt gives a token, as decoding does
  EXPECT_EQ(rows(), (std::vector<int64_t>{1, 4}));
  sim.step();
  EXPECT_EQ(rows(), (std::vector<int64_t>{5}));
  EXPECT_FALSE(sim.has_work());
}

// Whatever the others do for ever, a prompt ends after as many steps as its rows fill at the bound.
TEST(Scheduler, ABoundStarvesNoPrompt) {
  Simulation sim({.max_num_seqs = 4, .max_num_batched_tokens = 4, .max_prefill_tokens_per_step = 1}, 100);
  for (int i = 0; i < 3; ++i) sim.add(1, 300);
  sim.step(true);
  sim.step(true);
  sim.step(true);
  SchedSequence* prompt = sim.add(50, 2);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(prompt->num_tokens, 50);
    sim.step(true);
  }
  EXPECT_EQ(prompt->num_tokens, 51);
}

// While one long prompt is prefilled in chunks, every running sequence gets its row in every step.
TEST(Scheduler, ALongPromptDelaysNobodyWhoRuns) {
  Simulation sim({.max_num_seqs = 8, .max_num_batched_tokens = 16}, 1000);
  std::vector<SchedSequence*> decodes;
  for (int i = 0; i < 4; ++i) decodes.push_back(sim.add(1, 500));
  sim.step();
  sim.add(5000, 1);
  for (int i = 0; i < 400; ++i) {
    std::vector<int64_t> before;
    for (const auto* s : decodes) before.push_back(s->num_tokens);
    sim.step();
    for (size_t j = 0; j < decodes.size(); ++j) ASSERT_EQ(decodes[j]->num_tokens, before[j] + 1);
  }
}

}  // namespace
}  // namespace cadre
