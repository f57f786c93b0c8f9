// What the member threads of one inproc group share: where each rank is in the sequence of exchanges, what it sends,
// and whether the group has lost a rank. A rank's word only grows, so waiting is a comparison; the shared state lives
// until the last member lets go of it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/transport.h"

namespace cadre {

// Exchange k (from 0) of a rank: its word is at posted(k) once the peers may read, at consumed(k) once it has read
// theirs. Bit 0 says that the rank left or that the group is lost. Words wrap around; they are compared by difference.
struct ProgressWord {
  static constexpr uint32_t kInterrupted = 1, kStride = 2;
  static uint32_t posted(uint32_t exchange) { return 4 * exchange + 2; }
  static uint32_t consumed(uint32_t exchange) { return 4 * exchange + 4; }
  static bool reached(uint32_t word, uint32_t target) {
    return static_cast<int32_t>((word & ~kInterrupted) - target) >= 0;
  }
};

class InprocGroup {
 public:
  // Whether each rank of the world sleeps until another one comes, in whatever group. It stays so for one that waited in vain
  // and is about to tell its other groups.
  struct Sleepers {
    explicit Sleepers(int world_size) : waits(static_cast<size_t>(world_size)) {}
    std::vector<std::atomic<bool>> waits;
  };
  // members: their world ranks, which errors name.
  InprocGroup(std::string name, std::vector<int> members, std::shared_ptr<Sleepers> sleepers);
  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(slots_.size()); }

  struct alignas(64) Slot {
    std::atomic<uint32_t> word{0};
    std::atomic<int32_t> num_sleepers{0};  // threads asleep on word
    // 1 + the rank this one reads from right now, 0: none. On a line of its own: written for every part read.
    alignas(64) std::atomic<int32_t> reads_from{0};
    // Exchange k uses [k % 2]: a peer that receives nothing from this rank may still look at k while k + 1 begins, but
    // nobody ends k + 1 before all began it, that is, before all ended k.
    alignas(64) std::array<std::vector<SendPart>, 2> send;
  };
  Slot& slot(int rank) { return slots_[static_cast<size_t>(rank)]; }

  // Moves the rank's word on by one half of an exchange and wakes who sleeps on it.
  void advance(int rank);
  // Waits until the rank's word reached target. deadline_us: of steady time, negative: none. Throws PeerLost.
  // At the deadline a rank that is itself waiting is not the one that is lost: whoever waits for the lost one finds it at the
  // same time and tells, so the others allow one more timeout.
  struct Wait {
    int rank;             // who waits
    int64_t timeout_us;   // 0: none
    int64_t step;
    int64_t deadline_us = -1;  // of steady time; set at the first sleep
    bool had_grace = false;
  };
  void wait_for(int rank, uint32_t target, Wait& wait);

  // Bracket the reading of a part of `source`. begin_read throws PeerLost when the group is lost.
  void begin_read(int reader, int source, int64_t step);
  void end_read(int reader) { slot(reader).reads_from.store(0, std::memory_order_release); }
  // After lose(): returns when nobody reads parts of the rank any more, nor will.
  void await_readers(int rank);

  // The first call names the lost rank and why; all waits end with that. Any thread.
  void lose(int rank, const std::string& how);
  // The rank takes part no longer; those who still wait for it get PeerLost.
  void leave(int rank);
  bool lost() const { return lost_.load(); }
  [[noreturn]] void throw_lost(int64_t step);

 private:
  void interrupt(int rank);
  void sleep(int rank, uint32_t seen, Wait& wait);
  std::atomic<bool>& waits(int rank) { return sleepers_->waits[static_cast<size_t>(members_[static_cast<size_t>(rank)])]; }

  const std::string name_;
  const std::vector<int> members_;
  const std::shared_ptr<Sleepers> sleepers_;
  const int num_spins_;
  std::vector<Slot> slots_;
  std::atomic<bool> lost_{false};
  std::mutex mutex_;  // guards what follows
  int lost_rank_ = -1;
  std::string lost_how_;
};

}  // namespace cadre
