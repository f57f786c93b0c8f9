// How data-parallel ranks agree, before each step, whether to take it together, to pause, or to stop. Pure: every rank
// computes the same verdict from the same votes.
//
// A wake is what a new request costs: whoever spreads requests counts it and tells every rank, some sooner, some later. A
// paused rank waits until it has heard of more wakes than it paused with, then votes. Ranks pause only when nobody has work
// and all have heard of the same wakes: then no request is on its way that one of them would miss (no lost wake-up), and
// each later wake finds all of them paused with the same count (nobody waits for a rank that sleeps).
//
// Lockstep weighs a pause at every turn. Waves, vLLM's protocol, weigh it every 32 turns: a wave is what lies between two
// pauses; in between, ranks without work take turns without rows.
#pragma once

#include <cstdint>
#include <span>

namespace cadre {

struct StepVote {
  int64_t num_rows = 0;       // this rank would run now
  int64_t num_samples = 0;    // of its sequences that get a token by it: they decode in the next step, if they go on
  int64_t num_wakes = 0;      // that it has heard of
  int64_t generation = 0;     // of the expert placement it would run with
  int64_t order = 0;          // Model::order(); rank 0's counts
  int32_t has_work = 0;       // unfinished requests, with rows or not
  int32_t is_stopping = 0;
};

enum class StepVerdict : uint8_t {
  kRun,     // someone has rows: all run
  kRound,   // nobody has, but not all agree that there is nothing: vote again
  kPause,   // wait for a wake
  kStop,    // all want to end
};

// Whether, by the votes of a step, a rank other than `rank` decodes in the next one.
bool others_decode(std::span<const StepVote> votes, int rank);

enum class DpSync : uint8_t { kLockstep, kWaves };
inline constexpr int64_t kWaveTurns = 32;

class StepAgreement {
 public:
  explicit StepAgreement(DpSync sync) : turns_per_pause_(sync == DpSync::kWaves ? kWaveTurns : 1) {}
  // One turn: votes of all ranks, in rank order.
  StepVerdict decide(std::span<const StepVote> votes);
  // Whether a rank that has heard of this many wakes has to take part in turns now.
  bool must_vote(int64_t num_wakes) const { return !is_paused_ || num_wakes > paused_with_; }
  int64_t wave() const { return wave_; }  // pauses so far

 private:
  int64_t turns_per_pause_;
  int64_t turn_ = 0;          // since the last pause
  bool is_paused_ = true;     // before the first wake
  int64_t paused_with_ = 0;
  int64_t wave_ = 0;
};

}  // namespace cadre
