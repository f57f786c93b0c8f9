// One rank, or experts split by tensor parallelism over rows that are everywhere: all pairs are computed here.
#include <algorithm>

#include "base/check.h"
#include "kernels/elementwise.h"
#include "moe/exchange.h"
#include "parallel/traffic_cost.h"

namespace cadre {
namespace {

class LocalExchange final : public Exchange {
 public:
  explicit LocalExchange(const ExchangeOptions& options) : options_(options), slots_(static_cast<size_t>(kLocalExchangeRows * options.top_k)), row_of_pair_(slots_.size()) {
    for (size_t i = 0; i < row_of_pair_.size(); ++i) row_of_pair_[i] = static_cast<int32_t>(i / static_cast<size_t>(options.top_k));
  }
  int64_t chunk_rows() const override { return kLocalExchangeRows; }
  int64_t max_pairs() const override { return kLocalExchangeRows * options_.top_k; }

  void start_dispatch(const RoutedRows& rows, std::span<const int64_t>, ReplicaSplit& replicas) override {
    CADRE_CHECK(rows.num_rows <= kLocalExchangeRows, "{} rows of at most {}", rows.num_rows, kLocalExchangeRows);
    rows_ = rows;
    for (size_t i = 0; i < rows.ids.size(); ++i) slots_[i] = replicas.placement().expert_to_slots(rows.ids[i])[0];
  }
  std::span<const int32_t> own_slots() const override { return {slots_.data(), rows_.ids.size()}; }

  std::span<const int64_t> pairs_from() const override { return {&num_pairs_, 1}; }
  ExpertPairs finish_dispatch() override {
    const size_t pairs = rows_.ids.size();
    num_pairs_ = static_cast<int64_t>(pairs);
    return {rows_.x, {row_of_pair_.data(), pairs}, {slots_.data(), pairs}};
  }

  void start_combine(const ExpertsWorkspace& outputs, ThreadPool&) override { outputs_ = &outputs; }

  void finish_combine(float* out, ThreadPool& pool) override {
    const int64_t top_k = options_.top_k, hidden = options_.hidden;
    pool.parallel_for(rows_.num_rows, [&](int64_t t, int) {
      for (int64_t pair = t * top_k; pair < (t + 1) * top_k; ++pair) add_scaled(rows_.weights[static_cast<size_t>(pair)], outputs_->output(pair), hidden, out + t * hidden);
    });
  }

 private:
  const ExchangeOptions options_;
  RoutedRows rows_;
  int64_t num_pairs_ = 0;
  const ExpertsWorkspace* outputs_ = nullptr;
  std::vector<int32_t> slots_, row_of_pair_;
};

}  // namespace

std::unique_ptr<Exchange> make_local_exchange(const ExchangeOptions& options) { return std::make_unique<LocalExchange>(options); }

Exchanges::Exchanges(const ExchangeOptions& options) : kind_(options.layout.ep == 1 ? ExchangeKind::kNone : options.layout.exchange) {
  switch (kind_) {
    case ExchangeKind::kNone: first_ = make_local_exchange(options); break;
    case ExchangeKind::kAllGatherReduceScatter: first_ = make_all_gather_exchange(options); break;
    case ExchangeKind::kAllToAll: first_ = make_all_to_all_exchange(options); break;
    case ExchangeKind::kAllToAllLowLatency: low_latency_ = make_low_latency_exchange(options); break;
    case ExchangeKind::kAuto:
      first_ = make_all_to_all_exchange(options);
      low_latency_ = make_low_latency_exchange(options);
      break;
  }
#ifdef CADRE_DEV_CHECKS
  if (kind_ == ExchangeKind::kNone) return;
  for (auto* exchange : {&first_, &low_latency_})
    if (*exchange) *exchange = make_checked_exchange(options, std::move(*exchange));
#endif
}

Exchange& Exchanges::for_step(std::span<const int64_t> world_rows) const {
  return exchange_for_step(kind_, world_rows) == ExchangeKind::kAllToAllLowLatency ? *low_latency_ : *first_;
}

int64_t Exchanges::max_pairs() const { return std::max(first_ ? first_->max_pairs() : 0, low_latency_ ? low_latency_->max_pairs() : 0); }

}  // namespace cadre
