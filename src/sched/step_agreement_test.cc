// A model checker for the step agreement: every interleaving of arrivals, deliveries of wakes, finishes and turns that a
// few ranks and requests can produce. In every state that can be reached, some action leads on until all work is done and
// all ranks sleep: no lost wake-up, no rank that waits in a turn for one that sleeps.
#include "sched/step_agreement.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace cadre {
namespace {

struct RankState {
  int heard = 0;          // wakes delivered
  int work = 0;           // steps its requests still take
  bool in_turn = false;   // voted, waits for the others
  bool paused = true;
  int paused_with = 0;
  auto operator<=>(const RankState&) const = default;
};

struct State {
  std::vector<RankState> ranks;
  std::vector<int> on_the_way;  // requests sent to each rank and not there yet
  int wakes = 0;                // counted by the sender
  int to_send = 0;              // requests it will still send
  int turn = 0;                 // since the last pause, modulo the pause interval
  auto operator<=>(const State&) const = default;
};

// One agreement object a rank would do; they are equal, so the state keeps its fields. The object is rebuilt by replaying.
class Checker {
 public:
  // is_hasty: a protocol without the rule that all must have heard of the same wakes.
  Checker(int ranks, int requests, DpSync sync, bool is_hasty = false) : interval_(sync == DpSync::kWaves ? kWaveTurns : 1), sync_(sync), is_hasty_(is_hasty) {
    State start;
    start.ranks.resize(static_cast<size_t>(ranks));
    start.on_the_way.resize(static_cast<size_t>(ranks));
    start.to_send = requests;
    visit(start);
    while (!open_.empty()) {
      const State s = open_.front();
      open_.pop_front();
      expand(s);
    }
  }
  size_t num_states() const { return seen_.size(); }
  size_t num_quiet() const { return num_quiet_; }
  // States from which no path leads to "all sent, all done, all asleep".
  size_t num_stuck() {
    std::set<State> good(quiet_.begin(), quiet_.end());
    std::deque<State> todo(quiet_.begin(), quiet_.end());
    while (!todo.empty()) {
      const State s = todo.front();
      todo.pop_front();
      for (const State& before : before_[s])
        if (good.insert(before).second) todo.push_back(before);
    }
    return seen_.size() - good.size();
  }

 private:
  void visit(const State& s) {
    if (!seen_.insert(s).second) return;
    open_.push_back(s);
  }
  void add(const State& from, const State& to) {
    before_[to].push_back(from);
    visit(to);
  }
  void expand(const State& s) {
    bool is_quiet = s.to_send == 0;
    for (size_t r = 0; r < s.ranks.size(); ++r) {
      const RankState& rank = s.ranks[r];
      is_quiet = is_quiet && rank.paused && rank.work == 0 && s.on_the_way[r] == 0 && rank.heard == s.wakes && !rank.in_turn;
      if (s.to_send > 0) {  // the sender picks this rank: it counts a wake, request and wakes are on their way
        State n = s;
        --n.to_send, ++n.wakes, ++n.on_the_way[r];
        add(s, n);
      }
      if (rank.in_turn) continue;
      if (rank.heard < s.wakes) {  // word of one wake more
        State n = s;
        ++n.ranks[r].heard;
        // What was sent to this rank comes with the wakes that tell of it (one queue): all of it is there with the last.
        if (n.ranks[r].heard == s.wakes) n.ranks[r].work += 2 * n.on_the_way[r], n.on_the_way[r] = 0;
        add(s, n);
      }
      if (!rank.paused || rank.heard > rank.paused_with) {  // it votes
        State n = s;
        n.ranks[r].in_turn = true;
        add(s, finish_turn(n));
      }
    }
    if (is_quiet) quiet_.push_back(s), ++num_quiet_;
  }
  // When all are in the turn it is decided, by the code under test.
  State finish_turn(State s) {
    std::vector<StepVote> votes;
    for (const RankState& r : s.ranks) {
      if (!r.in_turn) return s;
      votes.push_back({.num_rows = r.work > 0 ? 1 : 0, .num_wakes = is_hasty_ ? 0 : r.heard, .has_work = r.work > 0});
    }
    StepAgreement agreement(sync_);
    for (int i = 0; i < s.turn; ++i) agreement.decide(std::vector<StepVote>(votes.size(), {.num_rows = 1, .has_work = 1}));
    const StepVerdict verdict = agreement.decide(votes);
    s.turn = (s.turn + 1) % static_cast<int>(interval_);
    for (RankState& r : s.ranks) {
      r.in_turn = r.paused = false;
      if (verdict == StepVerdict::kRun && r.work > 0) --r.work;
      if (verdict == StepVerdict::kPause) r.paused = true, r.paused_with = r.heard;
    }
    if (verdict == StepVerdict::kPause) s.turn = 0;
    EXPECT_TRUE(is_hasty_ || verdict != StepVerdict::kPause || !agreement.must_vote(votes[0].num_wakes));
    return s;
  }

  int64_t interval_;
  DpSync sync_;
  bool is_hasty_;
  std::set<State> seen_;
  std::deque<State> open_;
  std::map<State, std::vector<State>> before_;
  std::vector<State> quiet_;
  size_t num_quiet_ = 0;
};

TEST(StepAgreement, NoInterleavingLosesAWakeOrHangs) {
  for (const DpSync sync : {DpSync::kLockstep, DpSync::kWaves})
    for (const auto& [ranks, requests] : {std::pair{1, 4}, {2, 3}, {3, 2}}) {
      if (sync == DpSync::kWaves && ranks == 3) continue;  // the same rules over 32 times the states
      Checker checker(ranks, requests, sync);
      EXPECT_GE(checker.num_quiet(), 1u);
      EXPECT_EQ(checker.num_stuck(), 0u) << ranks << " ranks, " << requests << " requests, " << checker.num_states() << " states";
    }
}

// The checker is worth something only if it finds a protocol that pauses too early.
TEST(StepAgreement, TheCheckerFindsAHastyProtocol) {
  EXPECT_GT(Checker(2, 2, DpSync::kLockstep, true).num_stuck(), 0u);
}

TEST(StepAgreement, ARankThatHasNotHeardOfAWakeKeepsTheOthersUp) {
  StepAgreement agreement(DpSync::kLockstep);
  EXPECT_FALSE(agreement.must_vote(0));
  EXPECT_TRUE(agreement.must_vote(1));
  EXPECT_EQ(agreement.decide(std::vector<StepVote>{{.num_wakes = 1}, {.num_wakes = 0}}), StepVerdict::kRound);
  EXPECT_EQ(agreement.decide(std::vector<StepVote>{{.num_wakes = 1}, {.num_wakes = 1}}), StepVerdict::kPause);
  EXPECT_FALSE(agreement.must_vote(1));
  EXPECT_TRUE(agreement.must_vote(2));
  EXPECT_EQ(agreement.wave(), 1);
}

TEST(StepAgreement, AnyRowsMakeAllRunAndAllMustWantToStop) {
  StepAgreement agreement(DpSync::kLockstep);
  EXPECT_EQ(agreement.decide(std::vector<StepVote>{{.num_rows = 0}, {.num_rows = 3, .has_work = 1}}), StepVerdict::kRun);
  EXPECT_EQ(agreement.decide(std::vector<StepVote>{{.has_work = 1}, {}}), StepVerdict::kRound);
  EXPECT_EQ(agreement.decide(std::vector<StepVote>{{.is_stopping = 1}, {}}), StepVerdict::kRound);
  EXPECT_EQ(agreement.decide(std::vector<StepVote>{{.num_rows = 1, .has_work = 1, .is_stopping = 1}, {.is_stopping = 1}}), StepVerdict::kStop);
}

TEST(StepAgreement, OthersDecodeWhenAnyOfThemGetsTokens) {
  const std::vector<StepVote> votes{{.num_rows = 9}, {.num_rows = 4, .num_samples = 1}, {}};
  EXPECT_TRUE(others_decode(votes, 0));
  EXPECT_FALSE(others_decode(votes, 1));
  EXPECT_TRUE(others_decode(votes, 2));
}

TEST(StepAgreement, WavesWeighAPauseEvery32Turns) {
  StepAgreement agreement(DpSync::kWaves);
  const std::vector<StepVote> nothing(2, {.num_wakes = 1});
  for (int i = 1; i < kWaveTurns; ++i) ASSERT_EQ(agreement.decide(nothing), StepVerdict::kRound) << i;
  EXPECT_EQ(agreement.decide(nothing), StepVerdict::kPause);
}

}  // namespace
}  // namespace cadre
