// Sleeping on a 32-bit word of this process until it changes, with a timeout (std::atomic::wait has none).
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace cadre {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

// Returns when woken, when the word is not `seen`, after timeout_us (negative: no limit), or for no reason at all.
inline void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, int64_t timeout_us) {
  timespec limit{timeout_us / 1000000, (timeout_us % 1000000) * 1000};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, timeout_us < 0 ? nullptr : &limit, nullptr, 0);
}

inline void futex_wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace cadre
