// What a bound on prompt rows per step does to the tokens of those who wait for them: data-parallel ranks in lockstep under
// chat traffic with a long prompt now and then. No model and no clock: a step takes as long as its longest rank has rows,
// and everything below is in that unit, so the figures are the same on every machine.
//   prefill_report [--requests N] [--seed N]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "dp/routing.h"
#include "kv/block_pool.h"
#include "sched/scheduler.h"
#include "sched/step_agreement.h"

namespace cadre {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kLongPrompt = 16'384, kBudget = 2048, kMaxSequences = 64, kBlocks = 16'384;
constexpr double kLongShare = 0.02;  // of requests

struct Sequence : SchedSequence {
  int rank = 0;
  bool is_long = false;
  double arrived = 0, last_token = -1;
};

struct Rank {
  explicit Rank(int64_t bound) : pool(kBlocks), scheduler({.max_num_seqs = kMaxSequences, .max_num_batched_tokens = kBudget, .max_prefill_tokens_per_step = bound}, pool) {}
  BlockPool pool;
  Scheduler scheduler;
  uint64_t num_snapshots = 0, num_taken = 0;
};

struct Result {
  std::vector<double> gaps;         // between two tokens of a sequence
  std::vector<double> long_first;   // from arrival to first token, of long prompts
  std::vector<double> chat_first;
  double end = 0;
  int64_t num_steps = 0;
};

class Run {
 public:
  Run(int64_t bound, double mean_gap, int64_t num_requests, uint64_t seed) : rng_(seed, 1), mean_gap_(mean_gap), num_to_come_(num_requests), router_(LoadBalance::kTotalTokens, kRanks) {
    for (int r = 0; r < kRanks; ++r) ranks_.push_back(std::make_unique<Rank>(bound));
    schedule_arrival();
  }
  Result run() {
    while (num_to_come_ > 0 || !open_.empty()) {
      while (num_to_come_ > 0 && next_arrival_ <= now_) arrive();
      if (open_.empty()) {
        now_ = next_arrival_;
        continue;
      }
      step();
    }
    result_.end = now_;
    return std::move(result_);
  }

 private:
  void schedule_arrival() { next_arrival_ += mean_gap_ * 2 * static_cast<double>(rng_.uniform()); }
  void arrive() {
    auto sequence = std::make_unique<Sequence>();
    sequence->is_long = static_cast<double>(rng_.uniform()) < kLongShare;
    sequence->num_prompt = sequence->num_tokens = sequence->is_long ? kLongPrompt : 50 + rng_.below(400);
    sequence->max_tokens = sequence->num_tokens + 100 + rng_.below(200);
    sequence->arrived = next_arrival_;
    sequence->rank = router_.route({}, {1, sequence->num_tokens}).rank;
    Rank& rank = *ranks_[static_cast<size_t>(sequence->rank)];
    ++rank.num_taken;
    rank.scheduler.add(sequence.get());
    open_.push_back(std::move(sequence));
    --num_to_come_;
    schedule_arrival();
  }
  void step() {
    std::vector<std::vector<ScheduledRows>> scheduled;
    std::vector<StepVote> votes(kRanks);
    int64_t longest = 1;
    for (int r = 0; r < kRanks; ++r) {
      const auto rows = ranks_[static_cast<size_t>(r)]->scheduler.schedule(others_decode(votes_, r));
      scheduled.emplace_back(rows.begin(), rows.end());
      StepVote& vote = votes[static_cast<size_t>(r)];
      for (const ScheduledRows& part : rows) vote.num_rows += part.num_rows, vote.num_samples += part.samples;
      longest = std::max(longest, vote.num_rows);
    }
    votes_ = votes;
    now_ += static_cast<double>(longest);
    ++result_.num_steps;
    for (const auto& rows : scheduled)
      for (const ScheduledRows& part : rows) take(part);
    std::erase_if(open_, [](const auto& s) { return s->state == SchedSequence::State::kIdle; });
    for (int r = 0; r < kRanks; ++r) {
      Rank& rank = *ranks_[static_cast<size_t>(r)];
      const Scheduler& s = rank.scheduler;
      router_.update(r, {.sequence = ++rank.num_snapshots, .num_taken = rank.num_taken, .load = {s.num_running() + s.num_waiting(), s.num_running_tokens() + s.num_waiting_tokens()}});
    }
  }
  void take(const ScheduledRows& part) {
    Scheduler::advance(part);
    if (!part.samples) return;
    auto& sequence = static_cast<Sequence&>(*part.sequence);
    if (sequence.last_token >= 0) result_.gaps.push_back(now_ - sequence.last_token);
    else (sequence.is_long ? result_.long_first : result_.chat_first).push_back(now_ - sequence.arrived);
    sequence.last_token = now_;
    if (sequence.num_tokens == sequence.max_tokens) ranks_[static_cast<size_t>(sequence.rank)]->scheduler.remove(&sequence);
    else ++sequence.num_tokens;
  }

  Rng rng_;
  double mean_gap_;
  int64_t num_to_come_;
  Router router_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<Sequence>> open_;
  std::vector<StepVote> votes_;  // of the last step
  double now_ = 0, next_arrival_ = 0;
  Result result_;
};

double percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

void report(double mean_gap, int64_t num_requests, uint64_t seed) {
  std::printf("%d ranks in lockstep, %lld requests, one every %.0f rows, %.0f %% of them with prompts of %lld tokens; at most %lld rows a step and rank\n", kRanks,
              static_cast<long long>(num_requests), mean_gap, kLongShare * 100, static_cast<long long>(kLongPrompt), static_cast<long long>(kBudget));
  std::printf("%22s %8s %8s %8s %12s %12s %12s %10s\n", "prefill rows per step", "gap p50", "gap p99", "gap max", "chat p50", "chat p99", "long p50", "total");
  for (const int64_t bound : {0, 1024, 512, 256, 128, 64}) {
    Result r = Run(bound, mean_gap, num_requests, seed).run();
    std::printf("%22s %8.0f %8.0f %8.0f %12.0f %12.0f %12.0f %10.0f\n", bound ? std::to_string(bound).c_str() : "no bound", percentile(r.gaps, 0.5), percentile(r.gaps, 0.99),
                percentile(r.gaps, 1), percentile(r.chat_first, 0.5), percentile(r.chat_first, 0.99), percentile(r.long_first, 0.5), r.end);
  }
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  int64_t num_requests = 4000;
  uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--requests")) num_requests = std::max(1LL, std::atoll(argv[i + 1]));
    else if (!std::strcmp(argv[i], "--seed")) seed = std::strtoull(argv[i + 1], nullptr, 10);
    else return std::fprintf(stderr, "usage: prefill_report [--requests N] [--seed N]\n"), 2;
  }
  for (const double mean_gap : {500.0, 220.0}) cadre::report(mean_gap, num_requests, seed);
  std::printf("gap: between two tokens of a sequence; chat, long: from a request's arrival to its first token. Unit: the time of a row\n");
  return 0;
}
