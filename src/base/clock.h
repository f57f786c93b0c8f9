// Time as a value passed in: SteadyClock in service, ManualClock in tests (no sleeps).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace cadre {

class Clock {
 public:
  virtual ~Clock() = default;
  // Microseconds since an arbitrary start; never goes back.
  virtual int64_t now_us() const = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t now_us() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

class ManualClock final : public Clock {
 public:
  int64_t now_us() const override { return now_us_.load(); }
  void advance_us(int64_t us) { now_us_.fetch_add(us); }

 private:
  std::atomic<int64_t> now_us_{0};
};

}  // namespace cadre
