#include "moe/ordered_combine.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/elementwise.h"

namespace cadre {

OrderedCombine::OrderedCombine(const ExchangeOptions& options, int64_t max_rows, int64_t max_pairs)
    : options_(options), ep_rank_(static_cast<size_t>(max_rows * options.top_k)), index_(ep_rank_.size()), num_sent_(static_cast<size_t>(options.layout.ep)),
      first_returned_(static_cast<size_t>(options.layout.world)), outputs_(static_cast<size_t>(max_pairs * options.hidden)),
      returned_(ep_rank_.size() * static_cast<size_t>(options.layout.moe_tp * options.hidden)), send_(first_returned_.size()), recv_(first_returned_.size()) {}

void OrderedCombine::clear() { std::fill(num_sent_.begin(), num_sent_.end(), 0); }

void OrderedCombine::start(const ExpertsWorkspace& outputs, std::span<const int64_t> num_received, int64_t layer, ThreadPool& pool) {
  const int64_t hidden = options_.hidden;
  int64_t num_pairs = 0, num_returned = 0;
  for (int r = 0; r < options_.layout.world; ++r) {
    const size_t i = static_cast<size_t>(r);
    send_[i] = {reinterpret_cast<const std::byte*>(outputs_.data() + num_pairs * hidden), num_received[i] * hidden * 4};
    num_pairs += num_received[i];
    first_returned_[i] = num_returned;
    const int64_t expected = num_sent_[static_cast<size_t>(r / options_.layout.moe_tp)];
    recv_[i] = {reinterpret_cast<std::byte*>(returned_.data() + num_returned * hidden), expected * hidden * 4};
    num_returned += expected;
  }
  pool.parallel_for(num_pairs, [&](int64_t p, int) { std::copy_n(outputs.output(p), hidden, outputs_.data() + p * hidden); });
  options_.world->start({Traffic::kCombine, layer}, send_, recv_);
}

void OrderedCombine::finish(const RoutedRows& rows, float* out, ThreadPool& pool) {
  options_.world->finish([&](int source, std::span<const std::byte> data) {
    // Rows are conserved: what went to a rank comes back from it.
    CADRE_CHECK(static_cast<int64_t>(data.size()) == recv_[static_cast<size_t>(source)].bytes, "{} bytes of {} from rank {}", data.size(), recv_[static_cast<size_t>(source)].bytes, source);
  });
  const int64_t hidden = options_.hidden, top_k = options_.top_k;
  const int moe_tp = options_.layout.moe_tp;
  pool.parallel_for(rows.num_rows, [&](int64_t t, int) {
    for (int64_t pair = t * top_k; pair < (t + 1) * top_k; ++pair) {
      const size_t i = static_cast<size_t>(pair), first_rank = static_cast<size_t>(ep_rank_[i] * moe_tp);
      float* part = returned_.data() + (first_returned_[first_rank] + index_[i]) * hidden;
      for (size_t k = 1; k < static_cast<size_t>(moe_tp); ++k) add(returned_.data() + (first_returned_[first_rank + k] + index_[i]) * hidden, hidden, part);
      add_scaled(rows.weights[i], part, hidden, out + t * hidden);
    }
  });
}

}  // namespace cadre
