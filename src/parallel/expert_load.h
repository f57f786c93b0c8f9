// How many rows chose each expert of each layer, over a run: real rows only, for padding and idle ranks are never
// routed. One recorder serves all ranks of a process. And how even such a load is.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/expert_placement.h"

namespace cadre {

class ExpertLoad {
 public:
  ExpertLoad(int64_t num_layers, int64_t num_experts);

  // Choices of some rows in a layer, [rows, top_k]. Any thread, with others at the same time.
  void add(int64_t layer, std::span<const int32_t> ids);

  int64_t num_layers() const { return num_layers_; }
  // [num_experts]
  std::vector<int64_t> rows(int64_t layer) const;

 private:
  int64_t num_layers_, num_experts_;
  std::vector<std::atomic<int64_t>> rows_;  // [layers, experts]
};

// Rows that the experts of each rank of the expert-parallel group have to compute, from rows by expert: [ep]. Replicas take
// equal shares.
std::vector<double> rank_loads(const ExpertPlacement& placement, std::span<const double> rows_of_expert);
std::vector<double> rank_loads(const ExpertPlacement& placement, std::span<const int64_t> rows_of_expert);

// Mean over ranks / maximum over ranks, as SGLang and vLLM have it: the share of the experts' time that is not spent on
// waiting for the fullest rank. Of several layers, which all wait in turn: sum of means / sum of maxima. 1: even, or
// none.
class Balancedness {
 public:
  void add(std::span<const double> loads);
  double value() const { return sum_of_maxima_ == 0 ? 1.0 : sum_of_means_ / sum_of_maxima_; }

 private:
  double sum_of_means_ = 0, sum_of_maxima_ = 0;
};

}  // namespace cadre
