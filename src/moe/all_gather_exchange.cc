// Every row goes to every rank, which computes the experts it holds; outputs come back one row per pair (exact order) or
// as one reduction (vLLM's allgather_reducescatter). Simple, and it sends world - 1 times each row.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "kernels/elementwise.h"
#include "moe/exchange.h"
#include "moe/ordered_combine.h"
#include "parallel/layer_plan.h"
#include "parallel/traffic_cost.h"

namespace cadre {
namespace {

class AllGatherExchange final : public Exchange {
 public:
  explicit AllGatherExchange(const ExchangeOptions& options);
  int64_t chunk_rows() const override { return chunk_rows_; }
  int64_t max_pairs() const override { return options_.layout.world * chunk_rows_ * options_.top_k; }
  void start_dispatch(const RoutedRows& rows, std::span<const int64_t> world_rows, ReplicaSplit& replicas) override;
  std::span<const int32_t> own_slots() const override { return {own_slots_.data(), rows_.ids.size()}; }
  ExpertPairs finish_dispatch() override;
  std::span<const int64_t> pairs_from() const override { return pairs_from_; }
  void start_combine(const ExpertsWorkspace& outputs, ThreadPool& pool) override;
  void finish_combine(float* out, ThreadPool& pool) override;

 private:
  void gather_routes();
  void pick_pairs(ReplicaSplit& replicas);

  const ExchangeOptions options_;
  const int64_t chunk_rows_;
  RoutedRows rows_;
  std::vector<int64_t> world_rows_, first_row_;  // of each rank, and where its rows lie in x_
  GatherMode mode_ = GatherMode::kSumLen;
  std::vector<int32_t> num_rows_of_expert_, next_row_;
  std::vector<int32_t> chosen_;       // slots of one rank's pairs
  std::vector<int32_t> own_slots_;    // of this rank's
  std::vector<int32_t> ids_;          // [all rows, top_k] as world ranks gave them
  std::vector<float> weights_;
  std::vector<std::byte> own_rows_, own_routes_;
  std::vector<SendPart> send_;
  std::vector<RecvPart> recv_;
  std::vector<float> x_;
  std::vector<int32_t> row_of_pair_, slot_of_pair_;
  std::vector<float> weight_of_pair_;
  std::vector<int64_t> pairs_from_;
  int64_t num_pairs_ = 0, num_rows_ = 0;
  std::optional<OrderedCombine> ordered_;
  std::vector<float> sums_, mine_;
  std::vector<int64_t> counts_;
};

AllGatherExchange::AllGatherExchange(const ExchangeOptions& options)
    : options_(options), chunk_rows_(exchange_chunk_rows(ExchangeKind::kAllGatherReduceScatter, options.layout.world)),
      num_rows_of_expert_(static_cast<size_t>(options.num_experts)), next_row_(num_rows_of_expert_.size()), chosen_(static_cast<size_t>(chunk_rows_ * options.top_k)), own_slots_(chosen_.size()) {
  const size_t world = static_cast<size_t>(options.layout.world), rows = world * static_cast<size_t>(chunk_rows_), pairs = rows * static_cast<size_t>(options.top_k);
  world_rows_.resize(world);
  first_row_.resize(world);
  ids_.resize(pairs);
  weights_.resize(pairs);
  own_rows_.resize(static_cast<size_t>(chunk_rows_ * options.codec.bytes()));
  own_routes_.resize(static_cast<size_t>(chunk_rows_ * options.top_k * (kDispatchSlotBytes + kDispatchWeightBytes)));
  send_.resize(world);
  recv_.resize(world);
  x_.resize(rows * static_cast<size_t>(options.hidden));
  row_of_pair_.resize(pairs);
  slot_of_pair_.resize(pairs);
  weight_of_pair_.resize(pairs);
  pairs_from_.resize(world);
  counts_.resize(world);
  if (options.layout.combine == CombineOrder::kExact) ordered_.emplace(options_, chunk_rows_, max_pairs());
  else sums_.resize(x_.size()), mine_.resize(static_cast<size_t>(chunk_rows_ * options.hidden));
}

void AllGatherExchange::start_dispatch(const RoutedRows& rows, std::span<const int64_t> world_rows, ReplicaSplit& replicas) {
  CADRE_CHECK(rows.num_rows <= chunk_rows_ && rows.num_rows == world_rows[static_cast<size_t>(options_.world_rank)], "{} rows of at most {}", rows.num_rows, chunk_rows_);
  rows_ = rows;
  std::copy(world_rows.begin(), world_rows.end(), world_rows_.begin());
  mode_ = choose_gather_mode(world_rows_);
  num_rows_ = 0;
  for (size_t r = 0; r < world_rows_.size(); ++r) {
    first_row_[r] = num_rows_;
    num_rows_ += part_rows(mode_, world_rows_, static_cast<int>(r));
  }
  gather_routes();
  pick_pairs(replicas);
  const int64_t wire = options_.codec.bytes();
  for (int64_t r = 0; r < rows.num_rows; ++r) options_.codec.write(rows.x + r * options_.hidden, own_rows_.data() + r * wire);
  std::fill(send_.begin(), send_.end(), SendPart{own_rows_.data(), part_rows(mode_, world_rows_, options_.world_rank) * wire});
  for (size_t r = 0; r < recv_.size(); ++r) recv_[r] = {nullptr, part_rows(mode_, world_rows_, static_cast<int>(r)) * wire};
  options_.world->start({Traffic::kMoeGather, rows.layer}, send_, recv_);
}

// ids then weights of each rank's rows.
void AllGatherExchange::gather_routes() {
  const auto pairs_of = [&](size_t r) { return static_cast<size_t>(world_rows_[r] * options_.top_k); };
  if (!rows_.ids.empty()) {
    std::memcpy(own_routes_.data(), rows_.ids.data(), rows_.ids.size() * 4);
    std::memcpy(own_routes_.data() + rows_.ids.size() * 4, rows_.weights.data(), rows_.weights.size() * 4);
  }
  std::fill(send_.begin(), send_.end(), SendPart{own_routes_.data(), static_cast<int64_t>(rows_.ids.size()) * 8});
  for (size_t r = 0; r < recv_.size(); ++r) recv_[r] = {nullptr, static_cast<int64_t>(pairs_of(r)) * 8};
  options_.world->start({Traffic::kDispatchCounts, rows_.layer}, send_, recv_);
  size_t at = 0;
  options_.world->finish([&](int source, std::span<const std::byte> data) {
    const size_t pairs = pairs_of(static_cast<size_t>(source));
    CADRE_CHECK(data.size() == pairs * 8, "{} bytes of routes from rank {}, {} pairs", data.size(), source, pairs);
    if (pairs > 0) {
      std::memcpy(ids_.data() + at, data.data(), pairs * 4);
      std::memcpy(weights_.data() + at, data.data() + pairs * 4, pairs * 4);
    }
    at += pairs;
  });
}

// Of all pairs, those whose expert is here; and of the own ones, where each is.
void AllGatherExchange::pick_pairs(ReplicaSplit& replicas) {
  const ExpertPlacement& placement = replicas.placement();
  const int own_ep = options_.layout.coords(options_.world_rank).ep;
  const size_t top_k = static_cast<size_t>(options_.top_k);
  num_pairs_ = 0;
  if (replicas.needs_counts()) {
    std::fill(num_rows_of_expert_.begin(), num_rows_of_expert_.end(), 0);
    for (const int32_t id : std::span(ids_).first(static_cast<size_t>(std::accumulate(world_rows_.begin(), world_rows_.end(), int64_t{0})) * top_k)) ++num_rows_of_expert_[static_cast<size_t>(id)];
    replicas.split(num_rows_of_expert_);
  }
  std::fill(next_row_.begin(), next_row_.end(), 0);
  size_t at = 0;
  for (size_t source = 0; source < world_rows_.size(); ++source) {
    const int64_t before = num_pairs_;
    const size_t pairs = static_cast<size_t>(world_rows_[source]) * top_k;
    replicas.choose(options_.layout.coords(static_cast<int>(source)).ep, std::span(ids_).subspan(at, pairs), next_row_, chosen_);
    if (static_cast<int>(source) == options_.world_rank) std::copy_n(chosen_.begin(), pairs, own_slots_.begin());
    for (size_t i = 0; i < pairs; ++i, ++at) {
      const int32_t slot = chosen_[i];
      if (placement.rank_of_slot(slot) != own_ep) continue;
      const size_t p = static_cast<size_t>(num_pairs_++);
      row_of_pair_[p] = static_cast<int32_t>(first_row_[source] + static_cast<int64_t>(i / top_k));
      slot_of_pair_[p] = static_cast<int32_t>(placement.local_slot(slot));
      weight_of_pair_[p] = weights_[at];
    }
    pairs_from_[source] = num_pairs_ - before;
  }
  if (!ordered_) return;
  ordered_->clear();
  std::vector<int64_t>& sent = counts_;  // by ep rank, for the moment
  std::fill(sent.begin(), sent.end(), 0);
  for (size_t i = 0; i < rows_.ids.size(); ++i) {
    const int ep_rank = placement.rank_of_slot(own_slots_[i]);
    ordered_->set(static_cast<int64_t>(i), ep_rank, static_cast<int32_t>(sent[static_cast<size_t>(ep_rank)]++));
  }
  for (int r = 0; r < options_.layout.ep; ++r) ordered_->set_num_sent(r, sent[static_cast<size_t>(r)]);
}

ExpertPairs AllGatherExchange::finish_dispatch() {
  const int64_t wire = options_.codec.bytes();
  options_.world->finish([&](int source, std::span<const std::byte> data) {
    const size_t s = static_cast<size_t>(source);
    CADRE_CHECK(static_cast<int64_t>(data.size()) == recv_[s].bytes, "{} bytes of {} from rank {}", data.size(), recv_[s].bytes, source);
    for (int64_t r = 0; r < world_rows_[s]; ++r) options_.codec.read(data.data() + r * wire, x_.data() + (first_row_[s] + r) * options_.hidden);
  });
  const size_t pairs = static_cast<size_t>(num_pairs_);
  return {x_.data(), {row_of_pair_.data(), pairs}, {slot_of_pair_.data(), pairs}};
}

void AllGatherExchange::start_combine(const ExpertsWorkspace& outputs, ThreadPool& pool) {
  if (ordered_) return ordered_->start(outputs, pairs_from_, rows_.layer, pool);
  const int64_t hidden = options_.hidden;
  std::fill_n(sums_.begin(), num_rows_ * hidden, 0.0f);
  const auto rows = std::span(row_of_pair_).first(static_cast<size_t>(num_pairs_));
  pool.parallel_for(num_rows_, [&](int64_t r, int) {
    const auto begin = std::lower_bound(rows.begin(), rows.end(), static_cast<int32_t>(r));
    for (auto p = begin; p != rows.end() && *p == r; ++p)
      add_scaled(weight_of_pair_[static_cast<size_t>(p - rows.begin())], outputs.output(p - rows.begin()), hidden, sums_.data() + r * hidden);
  });
  for (size_t r = 0; r < counts_.size(); ++r) counts_[r] = part_rows(mode_, world_rows_, static_cast<int>(r)) * hidden;
}

void AllGatherExchange::finish_combine(float* out, ThreadPool& pool) {
  if (ordered_) return ordered_->finish(rows_, out, pool);
  options_.world->reduce_scatter({Traffic::kMoeReduce, rows_.layer}, sums_.data(), counts_, mine_.data());
  add(mine_.data(), rows_.num_rows * options_.hidden, out);
}

}  // namespace

std::unique_ptr<Exchange> make_all_gather_exchange(const ExchangeOptions& options) { return std::make_unique<AllGatherExchange>(options); }

}  // namespace cadre
