// Conservation: what a rank sent for an expert is what that expert's rank received from it, computed and returned. After each
// round the ranks tell each other what they computed, by source and slot; in builds for development, every round of every step.
#include <algorithm>

#include "base/check.h"
#include "moe/exchange.h"

namespace cadre {
namespace {

class CheckedExchange final : public Exchange {
 public:
  CheckedExchange(const ExchangeOptions& options, std::unique_ptr<Exchange> inner);
  int64_t chunk_rows() const override { return inner_->chunk_rows(); }
  int64_t max_pairs() const override { return inner_->max_pairs(); }
  std::span<const int64_t> pairs_from() const override { return inner_->pairs_from(); }
  void start_dispatch(const RoutedRows& rows, std::span<const int64_t> world_rows, ReplicaSplit& replicas) override;
  std::span<const int32_t> own_slots() const override { return inner_->own_slots(); }
  ExpertPairs finish_dispatch() override;
  void start_combine(const ExpertsWorkspace& outputs, ThreadPool& pool) override { inner_->start_combine(outputs, pool); }
  void finish_combine(float* out, ThreadPool& pool) override;

 private:
  std::span<int32_t> slots_of(std::vector<int32_t>& counts, int rank) const {
    return std::span(counts).subspan(static_cast<size_t>(rank * options_.num_slots), static_cast<size_t>(options_.num_slots));
  }

  const ExchangeOptions options_;
  const std::unique_ptr<Exchange> inner_;
  std::vector<int32_t> sent_;                  // by ep rank, then slot
  std::vector<int32_t> received_, returned_;   // by world rank, then slot: its pairs here, and this rank's pairs there
  std::vector<SendPart> send_;
  std::vector<RecvPart> recv_;
};

CheckedExchange::CheckedExchange(const ExchangeOptions& options, std::unique_ptr<Exchange> inner)
    : options_(options), inner_(std::move(inner)), sent_(static_cast<size_t>(options.layout.ep * options.num_slots)),
      received_(static_cast<size_t>(options.layout.world * options.num_slots)), returned_(received_.size()) {
  for (int r = 0; r < options.layout.world; ++r) {
    const int64_t bytes = options.num_slots * 4;
    send_.push_back({reinterpret_cast<const std::byte*>(slots_of(received_, r).data()), bytes});
    recv_.push_back({reinterpret_cast<std::byte*>(slots_of(returned_, r).data()), bytes});
  }
}

void CheckedExchange::start_dispatch(const RoutedRows& rows, std::span<const int64_t> world_rows, ReplicaSplit& replicas) {
  inner_->start_dispatch(rows, world_rows, replicas);
  std::fill(sent_.begin(), sent_.end(), 0);
  for (const int32_t slot : inner_->own_slots()) ++sent_[static_cast<size_t>(slot)];
}

ExpertPairs CheckedExchange::finish_dispatch() {
  const ExpertPairs pairs = inner_->finish_dispatch();
  std::fill(received_.begin(), received_.end(), 0);
  size_t at = 0;
  for (int source = 0; source < options_.layout.world; ++source)
    for (int64_t i = inner_->pairs_from()[static_cast<size_t>(source)]; i > 0; --i) ++slots_of(received_, source)[static_cast<size_t>(pairs.slot_of_pair[at++])];
  CADRE_CHECK(at == pairs.slot_of_pair.size(), "{} pairs from all ranks, {} to compute", at, pairs.slot_of_pair.size());
  return pairs;
}

void CheckedExchange::finish_combine(float* out, ThreadPool& pool) {
  inner_->finish_combine(out, pool);
  Transport& transport = options_.world->transport();  // beside the counters: a release build sends none of this
  transport.start(send_, recv_);
  transport.finish([](int, std::span<const std::byte>) {});
  for (int rank = 0; rank < options_.layout.world; ++rank) {
    const auto sent = slots_of(sent_, options_.layout.coords(rank).ep), returned = slots_of(returned_, rank);
    const auto wrong = std::mismatch(sent.begin(), sent.end(), returned.begin()).first;
    if (wrong == sent.end()) continue;
    const auto slot = wrong - sent.begin();
    CADRE_CHECK(false, "rank {} sent {} rows to slot {} of rank {}, which computed {}", options_.world_rank, *wrong, slot, rank, returned[static_cast<size_t>(slot)]);
  }
}

}  // namespace

std::unique_ptr<Exchange> make_checked_exchange(const ExchangeOptions& options, std::unique_ptr<Exchange> inner) {
  return std::make_unique<CheckedExchange>(options, std::move(inner));
}

}  // namespace cadre
