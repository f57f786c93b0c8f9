// One pool of threads per rank. parallel_for runs the caller as worker 0; workers spin for a bounded time, then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace cadre {

class ThreadPool {
 public:
  // num_threads >= 1, the caller included: a pool of 1 starts no thread.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Memory for whoever calls the pool, 64-byte aligned, valid until the next call; kept, so that it is taken once for each size.
  std::byte* scratch(size_t bytes);

  // Calls body(task_idx, worker_idx) for each task in [0, num_tasks), tasks handed out in order to whoever is free;
  // returns when all are done. body must not throw and must not call the pool. What a task computes must not
  // depend on which worker runs it: that is what keeps results independent of the number of threads.
  void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t task_idx, int worker_idx)> body);

 private:
  void worker_loop(int worker_idx);
  void run_tasks(int worker_idx);

  int num_threads_;
  std::vector<std::byte> scratch_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> num_busy_{0};
  std::atomic<int64_t> next_task_{0};
  std::atomic<bool> stopping_{false};
  int64_t num_tasks_ = 0;
  const FunctionRef<void(int64_t, int)>* body_ = nullptr;
};

}  // namespace cadre
