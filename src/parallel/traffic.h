// What crosses the wire, by what it is for: counted by the groups of ranks as they run, predicted by the layer plan.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace cadre {

enum class Traffic : uint8_t {
  kStep,             // step agreement and its input
  kAttentionGather,  // rows to the ranks that split the heads
  kAttentionReduce,
  kRowNorm,          // sums of squares of a norm over all heads
  kDenseGather,
  kDenseReduce,
  kMoeGather,        // rows to every rank (tensor-parallel experts, all-gather exchange)
  kMoeReduce,
  kDispatchCounts,   // how many rows come from whom
  kDispatch,
  kCombine,
  kOther,
};
inline constexpr size_t kNumTraffic = 12;
const char* traffic_name(Traffic traffic);

// Of one rank: calls, and bytes it sends to other ranks.
struct TrafficCount {
  int64_t calls = 0;
  int64_t bytes_sent = 0;
  TrafficCount& operator+=(const TrafficCount& o) {
    calls += o.calls;
    bytes_sent += o.bytes_sent;
    return *this;
  }
  bool operator==(const TrafficCount&) const = default;
};
using TrafficCounts = std::array<TrafficCount, kNumTraffic>;

// Counts of one rank over all its groups, by layer. Written by the rank's thread.
class TrafficCounters {
 public:
  explicit TrafficCounters(int64_t num_layers) : counts_(static_cast<size_t>(num_layers + 1)) {}
  // layer -1: outside layers.
  TrafficCounts& layer(int64_t layer) { return counts_[static_cast<size_t>(layer + 1)]; }
  const TrafficCounts& layer(int64_t layer) const { return counts_[static_cast<size_t>(layer + 1)]; }
  TrafficCount& at(int64_t l, Traffic traffic) { return layer(l)[static_cast<size_t>(traffic)]; }
  const TrafficCount& at(int64_t l, Traffic traffic) const { return layer(l)[static_cast<size_t>(traffic)]; }
  int64_t num_layers() const { return static_cast<int64_t>(counts_.size()) - 1; }
  void reset() { std::fill(counts_.begin(), counts_.end(), TrafficCounts{}); }

 private:
  std::vector<TrafficCounts> counts_;
};

}  // namespace cadre
