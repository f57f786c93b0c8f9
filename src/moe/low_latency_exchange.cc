// Each row crosses once for every expert it chose, into the slots of that expert (DeepEP's low-latency mode): nothing is
// gathered into lists at the source but a count per slot, rows of a rank are bounded, and both halves leave time for other
// work between start and finish. A message: a count for each slot of the destination, then the rows, slot by slot.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "moe/exchange.h"
#include "moe/ordered_combine.h"
#include "moe/own_slots.h"
#include "parallel/traffic_cost.h"

namespace cadre {
namespace {

class LowLatencyExchange final : public Exchange {
 public:
  explicit LowLatencyExchange(const ExchangeOptions& options);
  int64_t chunk_rows() const override { return chunk_rows_; }
  int64_t max_pairs() const override { return options_.layout.world * chunk_rows_ * options_.top_k; }
  void start_dispatch(const RoutedRows& rows, std::span<const int64_t> world_rows, ReplicaSplit& replicas) override;
  std::span<const int32_t> own_slots() const override { return slots_; }
  ExpertPairs finish_dispatch() override;
  std::span<const int64_t> pairs_from() const override { return pairs_from_; }
  void start_combine(const ExpertsWorkspace& outputs, ThreadPool& pool) override { combine_.start(outputs, pairs_from_, rows_.layer, pool); }
  void finish_combine(float* out, ThreadPool& pool) override { combine_.finish(rows_, out, pool); }

 private:
  void take(int source, std::span<const std::byte> data);

  const ExchangeOptions options_;
  const int64_t chunk_rows_;
  RoutedRows rows_;
  OwnSlots own_slots_;
  std::span<const int32_t> slots_;      // of this rank's pairs
  std::vector<int32_t> count_, next_;   // by slot of the world: pairs, and where its next one goes
  std::vector<std::byte> messages_;
  std::vector<int64_t> first_byte_;     // by ep rank
  std::vector<SendPart> send_;
  std::vector<RecvPart> recv_;
  std::vector<float> x_;
  std::vector<int32_t> row_of_pair_, slot_of_pair_;
  std::vector<int64_t> pairs_from_;
  int64_t num_pairs_ = 0;
  OrderedCombine combine_;
};

LowLatencyExchange::LowLatencyExchange(const ExchangeOptions& options)
    : options_(options), chunk_rows_(exchange_chunk_rows(ExchangeKind::kAllToAllLowLatency, options.layout.world)),
      own_slots_(options_, chunk_rows_),
      count_(static_cast<size_t>(options.layout.ep * options.num_slots)), next_(count_.size()),
      first_byte_(static_cast<size_t>(options.layout.ep + 1)), send_(static_cast<size_t>(options.layout.world)), pairs_from_(send_.size()),
      combine_(options_, chunk_rows_, options.layout.world * chunk_rows_ * options.top_k) {
  const int64_t wire = options.codec.bytes(), pairs = chunk_rows_ * options.top_k;
  messages_.resize(count_.size() * 4 + static_cast<size_t>(pairs * wire));
  recv_.assign(send_.size(), {nullptr, options.num_slots * 4 + pairs * wire});
  x_.resize(static_cast<size_t>(max_pairs() * options.hidden));
  row_of_pair_.resize(static_cast<size_t>(max_pairs()));
  for (size_t i = 0; i < row_of_pair_.size(); ++i) row_of_pair_[i] = static_cast<int32_t>(i);
  slot_of_pair_.resize(row_of_pair_.size());
}

void LowLatencyExchange::start_dispatch(const RoutedRows& rows, std::span<const int64_t>, ReplicaSplit& replicas) {
  CADRE_CHECK(rows.num_rows <= chunk_rows_, "{} rows of at most {}", rows.num_rows, chunk_rows_);
  rows_ = rows;
  combine_.clear();
  std::fill(count_.begin(), count_.end(), 0);
  const ExpertPlacement& placement = replicas.placement();
  slots_ = own_slots_.choose(replicas, rows);
  for (const int32_t slot : slots_) ++count_[static_cast<size_t>(slot)];
  const int64_t wire = options_.codec.bytes(), slots = options_.num_slots;
  int64_t at = 0;
  for (int r = 0; r < options_.layout.ep; ++r) {
    int32_t pairs = 0;
    for (int64_t s = r * slots; s < (r + 1) * slots; ++s) {
      next_[static_cast<size_t>(s)] = pairs;
      pairs += count_[static_cast<size_t>(s)];
    }
    std::memcpy(messages_.data() + at, count_.data() + r * slots, static_cast<size_t>(slots) * 4);
    const int64_t bytes = slots * 4 + pairs * wire;
    for (int k = 0; k < options_.layout.moe_tp; ++k) send_[static_cast<size_t>(r * options_.layout.moe_tp + k)] = {messages_.data() + at, bytes};
    first_byte_[static_cast<size_t>(r)] = at + slots * 4;
    combine_.set_num_sent(r, pairs);
    at += bytes;
  }
  for (size_t i = 0; i < rows.ids.size(); ++i) {
    const int32_t slot = slots_[i];
    const int ep_rank = placement.rank_of_slot(slot);
    const int32_t index = next_[static_cast<size_t>(slot)]++;
    options_.codec.write(rows.x + static_cast<int64_t>(i) / options_.top_k * options_.hidden, messages_.data() + first_byte_[static_cast<size_t>(ep_rank)] + index * wire);
    combine_.set(static_cast<int64_t>(i), ep_rank, index);
  }
  num_pairs_ = 0;
  options_.world->start({Traffic::kDispatch, rows.layer}, send_, recv_);
}

void LowLatencyExchange::take(int source, std::span<const std::byte> data) {
  const int64_t first = num_pairs_, wire = options_.codec.bytes();
  for (int64_t s = 0; s < options_.num_slots; ++s) {
    int32_t count;
    std::memcpy(&count, data.data() + s * 4, 4);
    for (int32_t i = 0; i < count; ++i) slot_of_pair_[static_cast<size_t>(num_pairs_++)] = static_cast<int32_t>(s);
  }
  const int64_t pairs = num_pairs_ - first;
  CADRE_CHECK(static_cast<int64_t>(data.size()) == options_.num_slots * 4 + pairs * wire, "{} bytes from rank {} for {} pairs", data.size(), source, pairs);
  const std::byte* at = data.data() + options_.num_slots * 4;
  for (int64_t p = first; p < num_pairs_; ++p, at += wire) options_.codec.read(at, x_.data() + p * options_.hidden);
  pairs_from_[static_cast<size_t>(source)] = pairs;
}

ExpertPairs LowLatencyExchange::finish_dispatch() {
  options_.world->finish([&](int source, std::span<const std::byte> data) { take(source, data); });
  const size_t pairs = static_cast<size_t>(num_pairs_);
  return {x_.data(), {row_of_pair_.data(), pairs}, {slot_of_pair_.data(), pairs}};
}

}  // namespace

std::unique_ptr<Exchange> make_low_latency_exchange(const ExchangeOptions& options) { return std::make_unique<LowLatencyExchange>(options); }

}  // namespace cadre
