#include "eplb/reference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "parallel/layout.h"

namespace cadre::eplb {
namespace {

// Puts `key` into the place of the least of a min-heap.
void replace_least(std::span<uint64_t> heap, uint64_t key) {
  size_t at = 0;
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= heap.size()) break;
    if (child + 1 < heap.size() && heap[child + 1] < heap[child]) ++child;
    if (heap[child] >= key) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = key;
}

// The experts of some group of ranks, replicated and packed onto them, into slots from first_rank on.
void place_within(std::span<const int32_t> experts, std::span<const double> load, const Cluster& cluster, Slice ranks,
                  int64_t num_replicas, std::vector<int32_t>* slots) {
  std::vector<float> of_expert(experts.size());
  for (size_t i = 0; i < experts.size(); ++i) of_expert[i] = static_cast<float>(load[static_cast<size_t>(experts[i])]);
  std::vector<int32_t> counts;
  // Replicas of equal load are packed in this order: each expert's first, then the others as they were given out.
  std::vector<int32_t> replicas(experts.size());
  std::iota(replicas.begin(), replicas.end(), 0);
  Replicator().run(of_expert, num_replicas, num_replicas, &counts, &replicas);
  std::vector<float> of_replica(replicas.size());
  for (size_t i = 0; i < replicas.size(); ++i) {
    const size_t e = static_cast<size_t>(replicas[i]);
    of_replica[i] = of_expert[e] / static_cast<float>(counts[e]);
  }

  const int64_t per_rank = cluster.slots_per_rank();
  const std::vector<int32_t> order = falling_order(of_replica);
  const std::vector<int32_t> pack_of = pack(of_replica, order, ranks.count, per_rank);
  std::vector<int64_t> used(static_cast<size_t>(ranks.count));
  for (const int32_t i : order) {
    const int64_t rank = pack_of[static_cast<size_t>(i)];
    (*slots)[static_cast<size_t>((ranks.first + rank) * per_rank + used[static_cast<size_t>(rank)]++)] =
        experts[static_cast<size_t>(replicas[static_cast<size_t>(i)])];
  }
}

// The experts of each node, as whole groups.
std::vector<std::vector<int32_t>> experts_of_nodes(std::span<const double> load, const Cluster& cluster) {
  const int64_t per_group = cluster.num_experts / cluster.groups;
  std::vector<float> of_group(static_cast<size_t>(cluster.groups));
  for (int64_t e = 0; e < cluster.num_experts; ++e)
    of_group[static_cast<size_t>(e / per_group)] += static_cast<float>(load[static_cast<size_t>(e)]);
  const std::vector<int32_t> order = falling_order(of_group),
                             node_of = pack(of_group, order, cluster.nodes, cluster.groups / cluster.nodes);
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(cluster.nodes));
  for (const int32_t g : order)
    for (int64_t i = 0; i < per_group; ++i)
      out[static_cast<size_t>(node_of[static_cast<size_t>(g)])].push_back(static_cast<int32_t>(g * per_group + i));
  return out;
}

}  // namespace

std::vector<int32_t> falling_order(std::span<const float> load) {
  std::vector<uint64_t> keys(load.size());
  for (size_t i = 0; i < load.size(); ++i) keys[i] = falling_load_key(load[i], static_cast<uint32_t>(i));
  if (load.size() > 2048) {
    std::sort(keys.begin(), keys.end());
  } else {
    // By the two upper bytes of the float, 1/128 fine, and the few that are then out of place by insertion: a third of
    // the time of comparing at some hundred experts, and planning is little else.
    std::vector<uint64_t> sorted(keys.size());
    std::array<std::array<uint32_t, 256>, 2> first{};
    for (const uint64_t key : keys) ++first[0][key >> 48 & 255], ++first[1][key >> 56];
    for (size_t digit = 0; digit < 2; ++digit) {
      uint32_t sum = 0;
      for (uint32_t& count : first[digit]) sum += std::exchange(count, sum);
      for (const uint64_t key : keys) sorted[first[digit][key >> (48 + 8 * digit) & 255]++] = key;
      keys.swap(sorted);
    }
    for (size_t i = 1; i < keys.size(); ++i) {
      const uint64_t key = keys[i];
      size_t at = i;
      for (; at > 0 && keys[at - 1] > key; --at) keys[at] = keys[at - 1];
      keys[at] = key;
    }
  }
  std::vector<int32_t> order(load.size());
  for (size_t i = 0; i < load.size(); ++i) order[i] = static_cast<int32_t>(static_cast<uint32_t>(keys[i]));
  return order;
}

uint64_t load_key(float load, uint32_t index) { return uint64_t{std::bit_cast<uint32_t>(load)} << 32 | index; }

uint64_t falling_load_key(float load, uint32_t index) { return uint64_t{~std::bit_cast<uint32_t>(load)} << 32 | index; }

void Replicator::run(std::span<const float> load, int64_t num_replicas, int64_t max_each, std::vector<int32_t>* counts,
                     std::vector<int32_t>* given) {
  CADRE_CHECK(num_replicas >= static_cast<int64_t>(load.size()) && max_each >= 1, "{} replicas of {} experts",
              num_replicas, load.size());
  counts->assign(load.size(), 1);
  int64_t spare = num_replicas - static_cast<int64_t>(load.size());
  if (spare == 0 || max_each == 1) return;
  // The largest load per replica is never below the average one, so that experts below the last average get nothing.
  // Not so where max_each may hold others back.
  float least = std::accumulate(load.begin(), load.end(), 0.0f) / static_cast<float>(num_replicas) * 0.999f;
  if (*std::max_element(load.begin(), load.end()) >= least * static_cast<float>(max_each)) least = 0;
  heap_.clear();
  for (size_t e = 0; e < load.size(); ++e)
    if (load[e] >= least) heap_.push_back(falling_load_key(load[e], static_cast<uint32_t>(e)));
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  for (; spare > 0; --spare) {
    const uint32_t e = static_cast<uint32_t>(heap_[0]);
    if (heap_[0] == UINT64_MAX) return;  // all have max_each
    const int32_t count = ++(*counts)[e];
    if (given) given->push_back(static_cast<int32_t>(e));
    replace_least(heap_, count >= max_each ? UINT64_MAX : falling_load_key(load[e] / static_cast<float>(count), e));
  }
}

std::vector<int32_t> pack(std::span<const float> load, std::span<const int32_t> order, int64_t num_packs,
                          int64_t room) {
  std::vector<int32_t> out(load.size());
  if (room == 1) {
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  std::vector<uint64_t> heap(static_cast<size_t>(num_packs));
  std::iota(heap.begin(), heap.end(), uint64_t{0});  // load 0, by index
  std::vector<float> of_pack(heap.size());
  std::vector<int64_t> used(heap.size());
  for (const int32_t i : order) {
    const uint32_t p = static_cast<uint32_t>(heap[0]);
    out[static_cast<size_t>(i)] = static_cast<int32_t>(p);
    of_pack[p] += load[static_cast<size_t>(i)];
    replace_least(heap, ++used[p] == room ? UINT64_MAX : load_key(of_pack[p], p));
  }
  return out;
}

std::vector<int32_t> deepseek_slots(std::span<const double> load, const Cluster& cluster, bool hierarchical) {
  std::vector<int32_t> slots(static_cast<size_t>(cluster.ranks * cluster.slots_per_rank()), kEmptySlot);
  hierarchical = hierarchical && cluster.nodes > 1 && cluster.groups % cluster.nodes == 0 &&
                 cluster.num_experts % cluster.groups == 0 && cluster.ranks % cluster.nodes == 0;
  if (!hierarchical) {
    std::vector<int32_t> all(load.size());
    std::iota(all.begin(), all.end(), 0);
    place_within(all, load, cluster, {.first = 0, .count = cluster.ranks}, cluster.num_replicas, &slots);
    return slots;
  }
  const auto experts = experts_of_nodes(load, cluster);
  for (int node = 0; node < cluster.nodes; ++node)
    place_within(experts[static_cast<size_t>(node)], load, cluster, even_slice(cluster.ranks, cluster.nodes, node),
                 even_slice(cluster.num_replicas, cluster.nodes, node).count, &slots);
  return slots;
}

}  // namespace cadre::eplb
