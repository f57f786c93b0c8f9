// The published algorithms on plain arrays, for deepseek() and as where cadre() starts. Not an interface of the folder.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/balance.h"

namespace cadre::eplb {

// Gives replicas to experts: one each, then each spare one to the expert with the most load per replica (the first of
// equal ones) that has fewer than max_each. Fills counts: [experts]; spare ones are left over when all have max_each.
// Appends the experts of the spare ones to `given`, in turn.
class Replicator {
 public:
  // num_replicas >= load.size()
  void run(std::span<const float> load, int64_t num_replicas, int64_t max_each, std::vector<int32_t>* counts,
           std::vector<int32_t>* given = nullptr);

 private:
  std::vector<uint64_t> heap_;
};

// Indices, the largest load first, equal ones in order.
std::vector<int32_t> falling_order(std::span<const float> load);

// (load, index) as one number: orders by load, then by index. Loads are finite and not negative.
uint64_t load_key(float load, uint32_t index);
// By load, equal ones the lower index first when sorted downwards.
uint64_t falling_load_key(float load, uint32_t index);

// The published packing: items in falling `order` of load, each to the least loaded pack with room (the first of equal
// ones). Returns the pack of each item.
std::vector<int32_t> pack(std::span<const float> load, std::span<const int32_t> order, int64_t num_packs, int64_t room);

std::vector<int32_t> deepseek_slots(std::span<const double> load, const Cluster& cluster, bool hierarchical);

}  // namespace cadre::eplb
