#include "kernels/cpu/machine.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/cpu/targets.h"
#include "tensor/tensor.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/machine.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cadre {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float read_all(const float* p, size_t n) {
  const hn::ScalableTag<float> df;
  const size_t lanes = hn::Lanes(df);
  auto a = hn::Zero(df), b = hn::Zero(df), c = hn::Zero(df), d = hn::Zero(df);
  for (size_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    a = hn::Add(a, hn::Load(df, p + i));
    b = hn::Add(b, hn::Load(df, p + i + lanes));
    c = hn::Add(c, hn::Load(df, p + i + 2 * lanes));
    d = hn::Add(d, hn::Load(df, p + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(df, hn::Add(hn::Add(a, b), hn::Add(c, d))));
}

// Returns the operations done; *sink keeps the result alive.
double multiply_add(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> df;
  constexpr int kChains = 12;  // latency 4 x 2 units, with room
  const auto x = hn::Set(df, 0.999f), y = hn::Set(df, 1e-3f);
  hn::Vec<decltype(df)> acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = hn::Set(df, static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i) acc[i] = hn::MulAdd(acc[i], x, y);
  auto sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = hn::Add(sum, acc[i]);
  *sink += hn::GetLane(hn::SumOfLanes(df, sum));
  return static_cast<double>(rounds) * kChains * 2 * static_cast<double>(hn::Lanes(df));
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace cadre
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cadre {
namespace {

double seconds_of(FunctionRef<void()> body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

HWY_EXPORT(read_all);
HWY_EXPORT(multiply_add);
HWY_EXPORT(target_name);

double read_bandwidth(ThreadPool& pool, size_t bytes) {
  constexpr int64_t kParts = 256;
  constexpr size_t kPartMultiple = 4096;  // whole vectors, unrolled, on any target
  bytes -= bytes % (kPartMultiple * kParts);
  Buffer buffer(bytes);
  std::fill(buffer.as<float>().begin(), buffer.as<float>().end(), 1.0f);
  std::vector<float> sinks(kParts);
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const double s = seconds_of([&] {
      pool.parallel_for(kParts, [&](int64_t part, int) {
        const size_t n = bytes / 4 / kParts;
        sinks[static_cast<size_t>(part)] = HWY_DYNAMIC_DISPATCH(read_all)(buffer.as<float>().data() + static_cast<size_t>(part) * n, n);
      });
    });
    best = std::max(best, static_cast<double>(bytes) / s);
  }
  return best;
}

double fma_peak(ThreadPool& pool) {
  const int64_t threads = pool.num_threads();
  std::vector<float> sinks(static_cast<size_t>(threads * 16));
  std::vector<double> done(static_cast<size_t>(threads));
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const double s = seconds_of([&] {
      pool.parallel_for(threads, [&](int64_t t, int) {
        done[static_cast<size_t>(t)] = HWY_DYNAMIC_DISPATCH(multiply_add)(10'000'000, &sinks[static_cast<size_t>(t) * 16]);
      });
    });
    double operations = 0;
    for (const double d : done) operations += d;
    best = std::max(best, operations / s);
  }
  return best;
}

const char* vector_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace cadre
#endif  // HWY_ONCE
