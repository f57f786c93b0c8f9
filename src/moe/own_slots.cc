#include "moe/own_slots.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "parallel/traffic_cost.h"

namespace cadre {

static_assert(sizeof(uint16_t) == kRowCountBytes);

OwnSlots::OwnSlots(const ExchangeOptions& options, int64_t max_rows)
    : options_(options), own_rows_(static_cast<size_t>(options.num_experts)), first_row_(own_rows_.size()), rows_(own_rows_.size()), slots_(static_cast<size_t>(max_rows * options.top_k)),
      send_(static_cast<size_t>(options.layout.world)), recv_(send_.size()) {
  CADRE_CHECK(max_rows <= UINT16_MAX, "{} rows in a round", max_rows);
}

std::span<const int32_t> OwnSlots::choose(ReplicaSplit& replicas, const RoutedRows& rows) {
  if (replicas.needs_counts()) agree(replicas, rows);
  else std::fill(first_row_.begin(), first_row_.end(), options_.world_rank);  // kDynamic: ranks begin at different replicas
  const auto slots = std::span(slots_).first(rows.ids.size());
  replicas.choose(options_.layout.coords(options_.world_rank).ep, rows.ids, first_row_, slots);
  return slots;
}

void OwnSlots::agree(ReplicaSplit& replicas, const RoutedRows& rows) {
  std::fill(own_rows_.begin(), own_rows_.end(), uint16_t{0});
  for (const int32_t id : rows.ids) ++own_rows_[static_cast<size_t>(id)];
  const int64_t bytes = static_cast<int64_t>(own_rows_.size()) * kRowCountBytes;
  std::fill(send_.begin(), send_.end(), SendPart{reinterpret_cast<const std::byte*>(own_rows_.data()), bytes});
  std::fill(recv_.begin(), recv_.end(), RecvPart{nullptr, bytes});
  std::fill(rows_.begin(), rows_.end(), 0);
  std::fill(first_row_.begin(), first_row_.end(), 0);
  options_.world->start({Traffic::kDispatchCounts, rows.layer}, send_, recv_);
  options_.world->finish([&](int source, std::span<const std::byte> data) {
    CADRE_CHECK(static_cast<int64_t>(data.size()) == bytes, "{} bytes of row counts from rank {}, {} expected", data.size(), source, bytes);
    for (size_t e = 0; e < rows_.size(); ++e) {
      uint16_t count;
      std::memcpy(&count, data.data() + e * sizeof(count), sizeof(count));
      rows_[e] += count;
      if (source < options_.world_rank) first_row_[e] += count;
    }
  });
  replicas.split(rows_);
}

}  // namespace cadre
