#include "base/thread_pool.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cadre {
namespace {

// About 20 us of spinning: longer than the gap between two kernels of a step, shorter than a scheduler tick.
constexpr int kSpins = 2000;

inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  CADRE_CHECK(num_threads >= 1, "num_threads {}", num_threads);
  for (int w = 1; w < num_threads; ++w) threads_.emplace_back([this, w] { worker_loop(w); });
}

std::byte* ThreadPool::scratch(size_t bytes) {
  if (scratch_.size() < bytes + 64) scratch_.resize(bytes + 64);
  return scratch_.data() + (64 - reinterpret_cast<uintptr_t>(scratch_.data()) % 64) % 64;
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& t : threads_) t.join();
}

void ThreadPool::parallel_for(int64_t num_tasks, FunctionRef<void(int64_t, int)> body) {
  if (num_tasks <= 0) return;
  if (num_tasks == 1 || num_threads_ == 1) {
    for (int64_t i = 0; i < num_tasks; ++i) body(i, 0);
    return;
  }
  num_tasks_ = num_tasks;
  body_ = &body;
  next_task_.store(0);
  num_busy_.store(num_threads_ - 1);
  {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  run_tasks(0);
  for (int spin = 0; num_busy_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) pause_cpu();
    else std::this_thread::yield();
  }
  body_ = nullptr;
}

void ThreadPool::run_tasks(int worker_idx) {
  for (int64_t task; (task = next_task_.fetch_add(1)) < num_tasks_;) (*body_)(task, worker_idx);
}

void ThreadPool::worker_loop(int worker_idx) {
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) pause_cpu();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
    }
    ++seen;
    if (stopping_.load()) return;
    run_tasks(worker_idx);
    num_busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace cadre
