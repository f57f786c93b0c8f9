// Each row crosses once to every rank that holds one of its experts, with the list of those experts (DeepEP's normal mode;
// https://github.com/deepseek-ai/DeepEP). A message: header {rows, pairs}, pairs of each row, slots of the pairs, their
// weights where the destination adds up, the rows.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "kernels/elementwise.h"
#include "moe/exchange.h"
#include "moe/ordered_combine.h"
#include "moe/own_slots.h"
#include "parallel/traffic_cost.h"

namespace cadre {
namespace {

class AllToAllExchange final : public Exchange {
 public:
  explicit AllToAllExchange(const ExchangeOptions& options);
  int64_t chunk_rows() const override { return chunk_rows_; }
  int64_t max_pairs() const override { return options_.layout.world * chunk_rows_ * options_.top_k; }
  void start_dispatch(const RoutedRows& rows, std::span<const int64_t> world_rows, ReplicaSplit& replicas) override;
  std::span<const int32_t> own_slots() const override { return slots_; }
  ExpertPairs finish_dispatch() override;
  std::span<const int64_t> pairs_from() const override { return pairs_from_; }
  void start_combine(const ExpertsWorkspace& outputs, ThreadPool& pool) override;
  void finish_combine(float* out, ThreadPool& pool) override;

 private:
  // Rows and pairs for one rank of the expert-parallel group.
  struct Outgoing {
    std::vector<int32_t> rows, pairs_of_row, slots;
    std::vector<float> weights;
    int64_t first_returned = 0;
  };
  bool is_exact() const { return options_.layout.combine == CombineOrder::kExact; }
  void sort_pairs(const ExpertPlacement& placement);
  void write_messages();
  void take(int source, std::span<const std::byte> data);
  void start_rank_combine(const ExpertsWorkspace& outputs, ThreadPool& pool);
  void finish_rank_combine(float* out, ThreadPool& pool);

  const ExchangeOptions options_;
  const int64_t chunk_rows_;
  RoutedRows rows_;
  std::vector<Outgoing> out_;               // by ep rank
  OwnSlots own_slots_;
  std::span<const int32_t> slots_;          // [rows, top_k]
  std::vector<int32_t> row_index_;          // [rows, top_k]: of the pair's row among those sent to its rank
  std::vector<int32_t> ep_rank_of_pair_;
  std::vector<std::byte> messages_;
  std::vector<SendPart> send_;
  std::vector<RecvPart> recv_;
  // What arrived, one source after the other.
  std::vector<float> x_, weights_;
  std::vector<int32_t> row_of_pair_, slot_of_pair_;
  std::vector<int64_t> pairs_from_, rows_from_;  // by source
  int64_t num_rows_ = 0, num_pairs_ = 0;
  std::optional<OrderedCombine> ordered_;
  std::vector<float> sums_, returned_;  // per-rank order
  std::vector<RecvPart> back_;
};

AllToAllExchange::AllToAllExchange(const ExchangeOptions& options)
    : options_(options), chunk_rows_(exchange_chunk_rows(ExchangeKind::kAllToAll, options.layout.world)), out_(static_cast<size_t>(options.layout.ep)),
      own_slots_(options_, chunk_rows_) {
  const int64_t world = options.layout.world, pairs = chunk_rows_ * options.top_k, wire = options.codec.bytes();
  for (Outgoing& o : out_) {
    o.rows.reserve(static_cast<size_t>(chunk_rows_));
    o.pairs_of_row.reserve(static_cast<size_t>(chunk_rows_));
    o.slots.reserve(static_cast<size_t>(pairs));
    o.weights.reserve(static_cast<size_t>(pairs));
  }
  row_index_.resize(static_cast<size_t>(pairs));
  ep_rank_of_pair_.resize(static_cast<size_t>(pairs));
  const int64_t most_messages = std::min<int64_t>(options.layout.ep, options.top_k);  // destinations of a row
  messages_.resize(static_cast<size_t>(options.layout.ep * kDispatchHeaderBytes + most_messages * chunk_rows_ * (wire + kDispatchRowBytes) +
                                       pairs * (kDispatchSlotBytes + kDispatchWeightBytes)));
  const int64_t capacity = kDispatchHeaderBytes + chunk_rows_ * (wire + kDispatchRowBytes) + pairs * (kDispatchSlotBytes + kDispatchWeightBytes);
  send_.resize(static_cast<size_t>(world));
  recv_.assign(static_cast<size_t>(world), {nullptr, capacity});
  x_.resize(static_cast<size_t>(world * chunk_rows_ * options.hidden));
  weights_.resize(static_cast<size_t>(max_pairs()));
  row_of_pair_.resize(weights_.size());
  slot_of_pair_.resize(weights_.size());
  pairs_from_.resize(static_cast<size_t>(world));
  rows_from_.resize(static_cast<size_t>(world));
  if (is_exact()) {
    ordered_.emplace(options_, chunk_rows_, max_pairs());
  } else {
    sums_.resize(x_.size());
    back_.resize(static_cast<size_t>(world));
    returned_.resize(static_cast<size_t>(most_messages * options.layout.moe_tp * chunk_rows_ * options.hidden));
  }
}

void AllToAllExchange::start_dispatch(const RoutedRows& rows, std::span<const int64_t>, ReplicaSplit& replicas) {
  CADRE_CHECK(rows.num_rows <= chunk_rows_, "{} rows of at most {}", rows.num_rows, chunk_rows_);
  rows_ = rows;
  slots_ = own_slots_.choose(replicas, rows);
  sort_pairs(replicas.placement());
  write_messages();
  num_rows_ = num_pairs_ = 0;
  options_.world->start({Traffic::kDispatch, rows.layer}, send_, recv_);
}

void AllToAllExchange::sort_pairs(const ExpertPlacement& placement) {
  for (Outgoing& o : out_) o.rows.clear(), o.pairs_of_row.clear(), o.slots.clear(), o.weights.clear();
  if (ordered_) ordered_->clear();
  const size_t top_k = static_cast<size_t>(options_.top_k);
  for (size_t i = 0; i < rows_.ids.size(); ++i) {
    const int32_t row = static_cast<int32_t>(i / top_k);
    const int32_t slot = slots_[i];
    const int ep_rank = placement.rank_of_slot(slot);
    Outgoing& o = out_[static_cast<size_t>(ep_rank)];
    if (o.rows.empty() || o.rows.back() != row) o.rows.push_back(row), o.pairs_of_row.push_back(0);
    ++o.pairs_of_row.back();
    ep_rank_of_pair_[i] = ep_rank;
    row_index_[i] = static_cast<int32_t>(o.rows.size()) - 1;
    if (ordered_) ordered_->set(static_cast<int64_t>(i), ep_rank, static_cast<int32_t>(o.slots.size()));
    o.slots.push_back(static_cast<int32_t>(placement.local_slot(slot)));
    o.weights.push_back(rows_.weights[i]);
  }
}

void AllToAllExchange::write_messages() {
  std::byte* at = messages_.data();
  const auto put = [&](const void* data, size_t bytes) {
    if (bytes > 0) std::memcpy(at, data, bytes);
    at += bytes;
  };
  for (int r = 0; r < options_.layout.ep; ++r) {
    const Outgoing& o = out_[static_cast<size_t>(r)];
    const std::byte* begin = at;
    const int32_t header[2] = {static_cast<int32_t>(o.rows.size()), static_cast<int32_t>(o.slots.size())};
    put(header, sizeof(header));
    put(o.pairs_of_row.data(), o.pairs_of_row.size() * 4);
    put(o.slots.data(), o.slots.size() * 4);
    if (!is_exact()) put(o.weights.data(), o.weights.size() * 4);
    for (const int32_t row : o.rows) {
      options_.codec.write(rows_.x + row * options_.hidden, at);
      at += options_.codec.bytes();
    }
    // Ranks that split an expert get the same message.
    for (int k = 0; k < options_.layout.moe_tp; ++k) send_[static_cast<size_t>(r * options_.layout.moe_tp + k)] = {begin, at - begin};
    if (ordered_) ordered_->set_num_sent(r, header[1]);
  }
  CADRE_CHECK(at <= messages_.data() + messages_.size(), "messages of {} bytes, room for {}", at - messages_.data(), messages_.size());
}

void AllToAllExchange::take(int source, std::span<const std::byte> data) {
  int32_t header[2];
  std::memcpy(header, data.data(), sizeof(header));
  const int64_t rows = header[0], pairs = header[1];
  const size_t expected = sizeof(header) + static_cast<size_t>(rows * (4 + options_.codec.bytes()) + pairs * (is_exact() ? 4 : 8));
  CADRE_CHECK(data.size() == expected && num_pairs_ + pairs <= max_pairs(), "{} bytes from rank {}, {} expected for {} rows and {} pairs", data.size(), source, expected, rows, pairs);
  const std::byte* at = data.data() + sizeof(header);
  const std::byte* slots = at + rows * 4;
  int64_t pair = num_pairs_;
  for (int64_t r = 0; r < rows; ++r) {
    int32_t count;
    std::memcpy(&count, at + r * 4, 4);
    for (int32_t i = 0; i < count; ++i) row_of_pair_[static_cast<size_t>(pair++)] = static_cast<int32_t>(num_rows_ + r);
  }
  CADRE_CHECK(pair == num_pairs_ + pairs, "rank {} lists {} pairs for its rows, {} in its header", source, pair - num_pairs_, pairs);
  if (pairs > 0) std::memcpy(slot_of_pair_.data() + num_pairs_, slots, static_cast<size_t>(pairs) * 4);
  at = slots + pairs * 4;
  if (!is_exact()) {
    if (pairs > 0) std::memcpy(weights_.data() + num_pairs_, at, static_cast<size_t>(pairs) * 4);
    at += pairs * 4;
  }
  for (int64_t r = 0; r < rows; ++r, at += options_.codec.bytes()) options_.codec.read(at, x_.data() + (num_rows_ + r) * options_.hidden);
  rows_from_[static_cast<size_t>(source)] = rows;
  pairs_from_[static_cast<size_t>(source)] = pairs;
  num_rows_ += rows;
  num_pairs_ += pairs;
}

ExpertPairs AllToAllExchange::finish_dispatch() {
  options_.world->finish([&](int source, std::span<const std::byte> data) { take(source, data); });
  const size_t pairs = static_cast<size_t>(num_pairs_);
  return {x_.data(), {row_of_pair_.data(), pairs}, {slot_of_pair_.data(), pairs}};
}

void AllToAllExchange::start_combine(const ExpertsWorkspace& outputs, ThreadPool& pool) {
  if (ordered_) ordered_->start(outputs, pairs_from_, rows_.layer, pool);
  else start_rank_combine(outputs, pool);
}

void AllToAllExchange::finish_combine(float* out, ThreadPool& pool) {
  if (ordered_) ordered_->finish(rows_, out, pool);
  else finish_rank_combine(out, pool);
}

// One row back for each that came: the sum of its pairs here, in the order they were listed.
void AllToAllExchange::start_rank_combine(const ExpertsWorkspace& outputs, ThreadPool& pool) {
  const int64_t hidden = options_.hidden;
  std::fill_n(sums_.begin(), num_rows_ * hidden, 0.0f);
  const auto rows = std::span(row_of_pair_).first(static_cast<size_t>(num_pairs_));
  pool.parallel_for(num_rows_, [&](int64_t r, int) {
    const auto begin = std::lower_bound(rows.begin(), rows.end(), static_cast<int32_t>(r));
    for (auto p = begin; p != rows.end() && *p == r; ++p) add_scaled(weights_[static_cast<size_t>(p - rows.begin())], outputs.output(p - rows.begin()), hidden, sums_.data() + r * hidden);
  });
  int64_t first = 0, first_returned = 0;
  for (int d = 0; d < options_.layout.world; ++d) {
    const size_t i = static_cast<size_t>(d);
    send_[i] = {reinterpret_cast<const std::byte*>(sums_.data() + first * hidden), rows_from_[i] * hidden * 4};
    first += rows_from_[i];
    Outgoing& o = out_[static_cast<size_t>(d / options_.layout.moe_tp)];
    if (d % options_.layout.moe_tp == 0) o.first_returned = first_returned;
    const int64_t expected = static_cast<int64_t>(o.rows.size());
    back_[i] = {reinterpret_cast<std::byte*>(returned_.data() + first_returned * hidden), expected * hidden * 4};
    first_returned += expected;
  }
  options_.world->start({Traffic::kCombine, rows_.layer}, send_, back_);
}

void AllToAllExchange::finish_rank_combine(float* out, ThreadPool& pool) {
  options_.world->finish([&](int source, std::span<const std::byte> data) {
    CADRE_CHECK(static_cast<int64_t>(data.size()) == back_[static_cast<size_t>(source)].bytes, "{} bytes of {} from rank {}", data.size(), back_[static_cast<size_t>(source)].bytes, source);
  });
  const int64_t hidden = options_.hidden, top_k = options_.top_k;
  pool.parallel_for(rows_.num_rows, [&](int64_t t, int) {
    for (int64_t pair = t * top_k; pair < (t + 1) * top_k; ++pair) {
      const size_t i = static_cast<size_t>(pair);
      const auto own = std::span(ep_rank_of_pair_).subspan(static_cast<size_t>(t * top_k), i - static_cast<size_t>(t * top_k));
      if (std::find(own.begin(), own.end(), ep_rank_of_pair_[i]) != own.end()) continue;  // its rank's sum is in already
      const Outgoing& o = out_[static_cast<size_t>(ep_rank_of_pair_[i])];
      for (int64_t k = 0; k < options_.layout.moe_tp; ++k)
        add(returned_.data() + (o.first_returned + k * static_cast<int64_t>(o.rows.size()) + row_index_[i]) * hidden, hidden, out + t * hidden);
    }
  });
}

}  // namespace

std::unique_ptr<Exchange> make_all_to_all_exchange(const ExchangeOptions& options) { return std::make_unique<AllToAllExchange>(options); }

}  // namespace cadre
