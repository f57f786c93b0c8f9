// Scheduling with a prefix cache: nobody reads a block that does not hold the beginning of its own prompt.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "config/bytes.h"
#include "sched/scheduler.h"
#include "tests/testing.h"

namespace cadre {
namespace {

struct Sequence : SchedSequence {
  std::vector<uint64_t> keys;
  int64_t num_new = 1, num_generated = 0;
  uint64_t id = 0;
};

// Plays the engine and remembers what every block holds.
class Simulation {
 public:
  Simulation(SchedulerOptions options, int64_t num_blocks, int64_t per_entry) : per_entry_(per_entry), pool_(num_blocks), cache_(pool_, per_entry), scheduler_(options, pool_, &cache_) {}

  Sequence* add(std::vector<uint64_t> keys, int64_t tokens_behind_keys, int64_t num_new) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = ++next_id_;
    sequence->keys = std::move(keys);
    sequence->prefix_keys = sequence->keys;
    sequence->num_prompt = sequence->num_tokens = static_cast<int64_t>(sequence->keys.size()) * entry_tokens() + tokens_behind_keys;
    sequence->num_new = num_new;
    sequence->max_tokens = sequence->num_prompt + num_new - 1;
    Sequence* raw = sequence.get();
    open_[raw->id] = std::move(sequence);
    scheduler_.add(raw);
    return raw;
  }
  void cancel(uint32_t draw) {
    if (open_.empty()) return;
    const auto it = std::next(open_.begin(), draw % open_.size());
    scheduler_.remove(it->second.get());
    open_.erase(it);
  }
  void step() {
    const auto scheduled = scheduler_.schedule();
    const std::vector<ScheduledRows> rows_of_step(scheduled.begin(), scheduled.end());
    // What is read was there before anything of this step is written.
    for (const ScheduledRows& rows : rows_of_step) {
      const auto& s = static_cast<const Sequence&>(*rows.sequence);
      for (int64_t b = 0; (b + 1) * kKvBlockTokens <= rows.start; ++b) ASSERT_EQ(contents_[s.blocks[static_cast<size_t>(b)]], content(s, b)) << "block " << b;
    }
    for (const ScheduledRows& rows : rows_of_step) {
      auto& s = static_cast<Sequence&>(*rows.sequence);
      if (s.num_generated == 0 && rows.start == s.num_cached) num_cached_ += s.num_cached;
      num_computed_ += rows.num_rows;
      for (int64_t b = rows.start / kKvBlockTokens; b * kKvBlockTokens < rows.start + rows.num_rows; ++b) {
        ASSERT_LE(pool_.ref_count(s.blocks[static_cast<size_t>(b)]), 1) << "written while others hold it";
        contents_[s.blocks[static_cast<size_t>(b)]] = content(s, b);
      }
      Scheduler::advance(rows);
      if (!rows.samples) continue;
      if (++s.num_generated == s.num_new) {
        scheduler_.remove(&s);
        open_.erase(s.id);
      } else {
        ++s.num_tokens;
      }
    }
  }
  bool has_work() const { return scheduler_.has_work(); }
  int64_t entry_tokens() const { return per_entry_ * kKvBlockTokens; }
  int64_t num_computed() const { return num_computed_; }
  int64_t num_cached() const { return num_cached_; }
  uint64_t num_preemptions() const { return scheduler_.num_preemptions(); }
  int64_t num_free_or_idle() const { return pool_.num_free() + cache_.num_idle_blocks(); }

 private:
  // Equal for the same place behind the same keys; each sequence's own behind them.
  std::pair<uint64_t, int64_t> content(const Sequence& s, int64_t block) const {
    const auto entry = static_cast<size_t>(block / per_entry_);
    return entry < s.keys.size() ? std::pair(s.keys[entry], block % per_entry_) : std::pair(UINT64_MAX - s.id, block);
  }
  int64_t per_entry_;
  BlockPool pool_;
  PrefixCache cache_;
  Scheduler scheduler_;
  std::map<uint64_t, std::unique_ptr<Sequence>> open_;
  std::map<BlockId, std::pair<uint64_t, int64_t>> contents_;
  uint64_t next_id_ = 0;
  int64_t num_computed_ = 0, num_cached_ = 0;
};

TEST(SchedulerPrefix, ASecondSequenceComputesOnlyItsOwnPart) {
  Simulation simulation({.max_num_seqs = 4, .max_num_batched_tokens = 1000}, 100, 1);
  simulation.add({1, 2, 3}, 5, 2);
  while (simulation.has_work()) simulation.step();
  EXPECT_EQ(simulation.num_computed(), 53 + 1);
  simulation.add({1, 2, 9}, 5, 1);
  while (simulation.has_work()) simulation.step();
  EXPECT_EQ(simulation.num_computed(), 54 + 53 - 32);
  EXPECT_EQ(simulation.num_cached(), 32);
}

TEST(SchedulerPrefix, TheLastTokenIsAlwaysComputed) {
  Simulation simulation({.max_num_seqs = 4, .max_num_batched_tokens = 1000}, 100, 1);
  for (int i = 0; i < 2; ++i) {
    simulation.add({1, 2, 3}, 0, 1);
    while (simulation.has_work()) simulation.step();
  }
  EXPECT_EQ(simulation.num_cached(), 32);
  EXPECT_EQ(simulation.num_computed(), 48 + 16);
}

TEST(SchedulerPrefix, EvenTheWholePoolIdleMakesRoom) {
  Simulation simulation({.max_num_seqs = 4, .max_num_batched_tokens = 1000}, 4, 2);
  simulation.add({1, 2}, 0, 1);
  while (simulation.has_work()) simulation.step();
  simulation.add({3}, 31, 2);
  while (simulation.has_work()) simulation.step();
  EXPECT_EQ(simulation.num_free_or_idle(), 4);
}

TEST(SchedulerPrefix, RandomPrefixesEvictionsAndCancellations) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE("CADRE_SEED=" + std::to_string(seed));
  int64_t cached = 0;
  uint64_t preemptions = 0;
  for (uint64_t round = 0; round < 60; ++round) {
    uint64_t draw = 0;
    const auto below = [&](uint32_t n) { return static_cast<int64_t>(random_u32(seed, round, draw++) % n); };
    const int64_t per_entry = 1 + below(3), num_blocks = 18 + below(30);
    Simulation simulation({.max_num_seqs = 2 + below(8), .max_num_batched_tokens = 8 + below(60), .max_prefill_tokens_per_step = below(2) * 16}, num_blocks, per_entry);
    for (int event = 0; event < 400; ++event) {
      const int64_t kind = below(10);
      if (kind < 2) {
        // A path through a tree of few branches: prompts share beginnings of any length.
        std::vector<uint64_t> keys;
        uint64_t node = 1;
        for (int64_t depth = below(5); depth > 0; --depth) keys.push_back(node = node * 3 + static_cast<uint64_t>(below(2)));
        const int64_t behind = below(40) + (keys.empty() ? 1 : 0), num_new = 1 + below(100);
        if ((static_cast<int64_t>(keys.size()) * per_entry * kKvBlockTokens + behind + num_new) / kKvBlockTokens + 2 < num_blocks) simulation.add(std::move(keys), behind, num_new);
      } else if (kind == 2) {
        if (below(3) == 0) simulation.cancel(random_u32(seed, round, draw++));
      } else if (simulation.has_work()) {
        simulation.step();
      }
      if (HasFatalFailure()) return;
    }
    for (int64_t steps = 0; simulation.has_work(); ++steps) {
      ASSERT_LT(steps, 20000);
      simulation.step();
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(simulation.num_free_or_idle(), num_blocks);
    cached += simulation.num_cached();
    preemptions += simulation.num_preemptions();
  }
  EXPECT_GT(cached, 0);
  EXPECT_GT(preemptions, 0u);
}

}  // namespace
}  // namespace cadre
