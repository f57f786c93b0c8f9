// The way back of every exchange that returns one row per (row, expert): each rank sends the outputs of a source's pairs
// in the order that source gave them, and the owner adds them in the row's top-k order. With experts split by moe_tp the
// parts of a pair's output are added first, in moe_tp order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/exchange.h"

namespace cadre {

class OrderedCombine {
 public:
  // max_rows: of this rank in a round; max_pairs: that may arrive.
  OrderedCombine(const ExchangeOptions& options, int64_t max_rows, int64_t max_pairs);

  // Where this rank's pairs went: forget the last round's, then add each pair (row-major) in any order of destinations.
  void clear();
  // The pair's expert is on this rank of the expert-parallel group, as its index-th pair from here.
  void set(int64_t pair, int ep_rank, int32_t index) { ep_rank_[static_cast<size_t>(pair)] = ep_rank, index_[static_cast<size_t>(pair)] = index; }
  void set_num_sent(int ep_rank, int64_t pairs) { num_sent_[static_cast<size_t>(ep_rank)] = pairs; }

  // num_received: pairs of each world rank, whose outputs lie in workspace order one rank after the other.
  void start(const ExpertsWorkspace& outputs, std::span<const int64_t> num_received, int64_t layer, ThreadPool& pool);
  void finish(const RoutedRows& rows, float* out, ThreadPool& pool);

 private:
  const ExchangeOptions& options_;
  std::vector<int32_t> ep_rank_, index_;  // of each pair
  std::vector<int64_t> num_sent_;         // by ep rank
  std::vector<int64_t> first_returned_;   // by world rank: first row in returned_
  std::vector<float> outputs_, returned_;
  std::vector<SendPart> send_;
  std::vector<RecvPart> recv_;
};

}  // namespace cadre
