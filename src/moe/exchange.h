// How rows reach the experts they chose and how the experts' outputs come back: dispatch and combine in one object, joined
// with any experts implementation. All ranks of the world call it in the same order.
//
// A step's rows go in rounds of at most chunk_rows() of each rank, which bounds the memory for what may arrive; nothing is
// dropped. Per round: start_dispatch, finish_dispatch, (experts compute), start_combine, finish_combine; other work that
// uses no group of the world may run between a start and its finish.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "comm/group.h"
#include "moe/experts.h"
#include "moe/row_codec.h"
#include "parallel/layout.h"
#include "parallel/replica_choice.h"

namespace cadre {

// This rank's rows of a round, after the router.
struct RoutedRows {
  const float* x = nullptr;         // [num_rows, H]
  int64_t num_rows = 0;
  std::span<const int32_t> ids;     // [num_rows, top_k] logical experts
  std::span<const float> weights;   // [num_rows, top_k]
  int64_t layer = 0;
};

struct ExchangeOptions {
  Layout layout;
  int world_rank = 0;
  int64_t hidden = 0, top_k = 0;
  int64_t num_slots = 0;  // on each rank of the expert-parallel group
  int64_t num_experts = 0;
  RowCodec codec;
  Group* world = nullptr;  // null: one rank
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int64_t chunk_rows() const = 0;
  // Pairs that one round may bring to this rank at most.
  virtual int64_t max_pairs() const = 0;
  // world_rows: rows of each rank in this round. replicas: of the layer's placement. What rows and replicas view stays
  // untouched until finish_combine() returns.
  virtual void start_dispatch(const RoutedRows& rows, std::span<const int64_t> world_rows, ReplicaSplit& replicas) = 0;
  // After start_dispatch(): which of the world's slots each of rows.ids goes to.
  virtual std::span<const int32_t> own_slots() const = 0;
  virtual ExpertPairs finish_dispatch() = 0;
  // How many of the pairs of finish_dispatch() came from each rank of the world; they stand one rank after the other.
  virtual std::span<const int64_t> pairs_from() const = 0;
  virtual void start_combine(const ExpertsWorkspace& outputs, ThreadPool& pool) = 0;
  // out[t] += sum over j of weights[t, j] * expert(ids[t, j])(x[t]); [num_rows, H].
  virtual void finish_combine(float* out, ThreadPool& pool) = 0;
};

// All experts, or a slice of each, are on this rank: nothing moves.
std::unique_ptr<Exchange> make_local_exchange(const ExchangeOptions& options);
std::unique_ptr<Exchange> make_all_gather_exchange(const ExchangeOptions& options);
std::unique_ptr<Exchange> make_all_to_all_exchange(const ExchangeOptions& options);
std::unique_ptr<Exchange> make_low_latency_exchange(const ExchangeOptions& options);
// The same exchange, which ends the program when a row that was sent for an expert is not received, computed and returned.
std::unique_ptr<Exchange> make_checked_exchange(const ExchangeOptions& options, std::unique_ptr<Exchange> inner);

// The exchange or exchanges that a layout runs with; checked in builds for development.
class Exchanges {
 public:
  explicit Exchanges(const ExchangeOptions& options);
  // world_rows: rows of each rank in the whole step.
  Exchange& for_step(std::span<const int64_t> world_rows) const;
  int64_t max_pairs() const;

 private:
  ExchangeKind kind_;
  std::unique_ptr<Exchange> first_, low_latency_;
};

}  // namespace cadre
