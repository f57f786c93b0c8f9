#include "comm/inproc/inproc_group.h"

#include <fmt/format.h>
#include <sched.h>

#include <thread>

#include "base/clock.h"
#include "comm/inproc/futex.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cadre {
namespace {

inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// A peer that runs answers within a few microseconds; one that has no processor does not, and spinning would keep it
// from getting one. So: some 3 us when there is a processor for each rank, next to nothing otherwise.
int spins_for(int num_ranks) {
  cpu_set_t cpus;
  const bool known = sched_getaffinity(0, sizeof cpus, &cpus) == 0;
  const int num_cpus = known ? CPU_COUNT(&cpus) : static_cast<int>(std::thread::hardware_concurrency());
  return num_ranks <= num_cpus ? 80 : 4;
}

}  // namespace

InprocGroup::InprocGroup(std::string name, std::vector<int> members, std::shared_ptr<Sleepers> sleepers)
    : name_(std::move(name)), members_(std::move(members)), sleepers_(std::move(sleepers)), num_spins_(spins_for(static_cast<int>(members_.size()))), slots_(members_.size()) {
  for (Slot& s : slots_)
    for (auto& send : s.send) send.resize(members_.size());
}

void InprocGroup::advance(int rank) {
  Slot& s = slot(rank);
  s.word.fetch_add(ProgressWord::kStride);
  // Sleepers count themselves before the kernel compares the word, so either they are seen here or they see the word.
  if (s.num_sleepers.load() > 0) futex_wake_all(s.word);
}

void InprocGroup::wait_for(int rank, uint32_t target, Wait& wait) {
  Slot& s = slot(rank);
  for (int spin = 0;; ++spin) {
    const uint32_t word = s.word.load();
    if (ProgressWord::reached(word, target)) {
      if (spin >= num_spins_) waits(wait.rank).store(false, std::memory_order_relaxed);
      return;
    }
    if (word & ProgressWord::kInterrupted) {
      if (!lost()) lose(rank, "left the group");
      throw_lost(wait.step);
    }
    if (spin < num_spins_)
      pause_cpu();
    else
      sleep(rank, word, wait);
  }
}

void InprocGroup::sleep(int rank, uint32_t seen, Wait& wait) {
  int64_t left_us = -1;
  if (wait.timeout_us > 0) {
    const int64_t now_us = SteadyClock().now_us();
    if (wait.deadline_us < 0) wait.deadline_us = now_us + wait.timeout_us;
    left_us = wait.deadline_us - now_us;
    if (left_us <= 0 && !wait.had_grace && waits(rank)) {
      wait.had_grace = true;
      wait.deadline_us += wait.timeout_us;
      left_us = wait.timeout_us;
    }
    if (left_us <= 0) {
      lose(rank, fmt::format("did not come within {} us", wait.timeout_us));
      throw_lost(wait.step);
    }
  }
  Slot& s = slot(rank);
  s.num_sleepers.fetch_add(1);
  waits(wait.rank).store(true, std::memory_order_relaxed);
  futex_wait(s.word, seen, left_us);
  s.num_sleepers.fetch_sub(1);
}

void InprocGroup::begin_read(int reader, int source, int64_t step) {
  // Both this pair and the one in lose(), await_readers() are sequentially consistent: either the rank that gives up
  // sees the reader, or the reader sees that it gave up.
  slot(reader).reads_from.store(source + 1);
  if (lost()) {
    end_read(reader);
    throw_lost(step);
  }
}

void InprocGroup::await_readers(int rank) {
  for (int r = 0; r < size(); ++r) {
    // Rare and short (a copy of one part), so nobody is woken for it.
    for (int spin = 0; r != rank && slot(r).reads_from.load() == rank + 1; ++spin) {
      if (spin < 100)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

void InprocGroup::interrupt(int rank) {
  Slot& s = slot(rank);
  s.word.fetch_or(ProgressWord::kInterrupted);
  if (s.num_sleepers.load() > 0) futex_wake_all(s.word);
}

void InprocGroup::lose(int rank, const std::string& how) {
  {
    std::lock_guard lock(mutex_);
    if (lost_rank_ < 0) {
      lost_rank_ = rank;
      lost_how_ = how;
    }
    lost_.store(true);
  }
  for (int r = 0; r < size(); ++r) interrupt(r);
}

void InprocGroup::leave(int rank) { interrupt(rank); }

void InprocGroup::throw_lost(int64_t step) {
  std::lock_guard lock(mutex_);
  throw PeerLost(name_, lost_rank_, members_[static_cast<size_t>(lost_rank_)], step, lost_how_);
}

}  // namespace cadre
