#include "parallel/replica_choice.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace cadre {
namespace {

// How far above its lower bound the busiest rank may stay, by how much less than that a sweep lowers it when sweeping
// on is in vain, and how often at most. Parts of the bound.
constexpr double kSlack = 0.004, kStall = 0.0005;
constexpr int kMaxSweeps = 32;

}  // namespace

std::string_view name_of(ReplicaChoice choice) {
  switch (choice) {
    case ReplicaChoice::kStatic:
      return "static";
    case ReplicaChoice::kDynamic:
      return "dynamic";
    case ReplicaChoice::kWaterFill:
      return "water_fill";
  }
  return "?";
}

ReplicaChoice parse_replica_choice(std::string_view name) {
  for (const ReplicaChoice c : {ReplicaChoice::kStatic, ReplicaChoice::kDynamic, ReplicaChoice::kWaterFill})
    if (name == name_of(c)) return c;
  throw invalid_input("expected static, dynamic or water_fill, found {}; give one of them", quoted(name));
}

ReplicaSplit::ReplicaSplit(ExpertPlacement placement, ReplicaChoice choice, int nodes)
    : placement_(std::move(placement)),
      choice_(choice),
      nodes_(nodes >= 1 && placement_.ep() % nodes == 0 ? nodes : 1),
      rank_rows_(static_cast<size_t>(placement_.ep())),
      rows_(static_cast<size_t>(placement_.num_experts())),
      other_rows_(static_cast<size_t>(placement_.ep())) {
  for (int64_t e = 0; e < placement_.num_experts(); ++e) {
    const int32_t first = static_cast<int32_t>(replica_rank_.size());
    int32_t last_rank = -1;
    for (const int32_t slot : placement_.expert_to_slots(e)) {
      const int32_t rank = placement_.rank_of_slot(slot);
      if (rank == last_rank) continue;  // a second replica on a rank has nothing to add
      replica_rank_.push_back(last_rank = rank);
      replica_slot_.push_back(slot);
    }
    const int32_t count = static_cast<int32_t>(replica_rank_.size()) - first;
    of_expert_.push_back({.expert = static_cast<int32_t>(e), .first = first, .count = count});
    if (count > 1)
      sweep_.push_back(of_expert_.back());
    else
      singles_.push_back({.expert = static_cast<int32_t>(e), .rank = last_rank});
  }
  replica_rows_.resize(replica_rank_.size());
}

// Takes the expert's rows off its ranks and gives them out again: ranks are filled up to one level, those above it get
// none. The level is the mean over the ranks it fills, so that dropping those above it finds it in a few rounds.
void ReplicaSplit::fill(const Shared& s) {
  const int32_t* ranks = replica_rank_.data() + s.first;
  int32_t* rows = replica_rows_.data() + s.first;
  const int32_t all = rows_[static_cast<size_t>(s.expert)];
  if (s.count == 2) {
    int32_t& a = rank_rows_[static_cast<size_t>(ranks[0])];
    int32_t& b = rank_rows_[static_cast<size_t>(ranks[1])];
    const int32_t other_a = a - rows[0], other_b = b - rows[1];
    rows[0] = static_cast<int32_t>(std::clamp<int64_t>((int64_t{all} + other_b - other_a + 1) >> 1, 0, all));
    rows[1] = all - rows[0];
    a = other_a + rows[0], b = other_b + rows[1];
    return;
  }
  int32_t* other = other_rows_.data();
  int64_t sum = all;
  for (int32_t i = 0; i < s.count; ++i) sum += other[i] = rank_rows_[static_cast<size_t>(ranks[i])] - rows[i];
  int32_t filled = s.count, level = static_cast<int32_t>(sum / filled);
  for (;;) {
    // Those above the level are left out of the next, all at once: leaving out each only lowers it.
    int32_t kept = 0;
    int64_t kept_sum = all;
    for (int32_t i = 0; i < s.count; ++i) {
      const int32_t is_in = other[i] <= level;
      kept += is_in, kept_sum += other[i] & -is_in;
    }
    if (kept == filled) break;
    filled = kept, sum = kept_sum, level = static_cast<int32_t>(sum / filled);
  }
  int64_t left = sum - int64_t{level} * filled;
  for (int32_t i = 0; i < s.count; ++i) {
    int32_t share = 0;
    if (other[i] <= level) {
      share = level - other[i] + (left > 0);
      --left;
    }
    rows[i] = share;
    rank_rows_[static_cast<size_t>(ranks[i])] = other[i] + share;
  }
}

void ReplicaSplit::split(std::span<const int32_t> rows_of_expert) {
  CADRE_CHECK(rows_of_expert.size() == rows_.size(), "{} experts of {}", rows_of_expert.size(), rows_.size());
  std::copy(rows_of_expert.begin(), rows_of_expert.end(), rows_.begin());
  if (choice_ != ReplicaChoice::kWaterFill) return;
  std::fill(rank_rows_.begin(), rank_rows_.end(), 0);
  int64_t total = 0;
  for (const int32_t rows : rows_) total += rows;
  CADRE_CHECK(total <= INT32_MAX, "{} rows in a batch", total);
  for (const Single& s : singles_) rank_rows_[static_cast<size_t>(s.rank)] += rows_[static_cast<size_t>(s.expert)];
  const int64_t ranks = static_cast<int64_t>(rank_rows_.size());
  const int64_t bound =
      std::max<int64_t>((total + ranks - 1) / ranks, *std::max_element(rank_rows_.begin(), rank_rows_.end()));
  // In equal shares, as placements are planned: where the batch is as the load was, there is little left to do.
  for (const Shared& s : sweep_) {
    const int32_t all = rows_[static_cast<size_t>(s.expert)], each = all / s.count;
    int32_t left = all - each * s.count;
    for (int32_t i = s.first; i < s.first + s.count; ++i) {
      replica_rows_[static_cast<size_t>(i)] = each + (left-- > 0);
      rank_rows_[static_cast<size_t>(replica_rank_[static_cast<size_t>(i)])] += replica_rows_[static_cast<size_t>(i)];
    }
  }
  sweep(static_cast<int32_t>(bound));
}

// Refills the experts that have rows on a rank above the bound, in turn, until none is by more than kSlack, or sweeps
// stop to lower the busiest.
void ReplicaSplit::sweep(int32_t bound) {
  const int32_t enough = bound + static_cast<int32_t>(bound * kSlack);
  int32_t last = INT32_MAX;
  // With few rows a sweep that only moves whole rows along leaves the busiest as it is, and the next lowers it.
  const int max_stalled = bound * kStall < 1 ? 8 : 3;
  int stalled = 0;
  for (int i = 0; i < kMaxSweeps; ++i) {
    const int32_t most = *std::max_element(rank_rows_.begin(), rank_rows_.end());
    if (most <= enough) return;
    stalled = last - most <= static_cast<int32_t>(bound * kStall) ? stalled + 1 : 0;
    if (stalled == max_stalled) return;
    last = most;
    for (const Shared& s : sweep_) {
      bool is_over = false;
      for (int32_t r = s.first; r < s.first + s.count; ++r)
        is_over |= rank_rows_[static_cast<size_t>(replica_rank_[static_cast<size_t>(r)])] > bound &&
                   replica_rows_[static_cast<size_t>(r)] > 0;
      if (is_over) fill(s);
    }
  }
}

int32_t ReplicaSplit::static_slot(int64_t expert, int source) const {
  const Shared& s = of_expert_[static_cast<size_t>(expert)];
  const int per_node = placement_.ep() / nodes_;
  int32_t on_node = -1;
  for (int32_t i = s.first; i < s.first + s.count; ++i) {
    if (replica_rank_[static_cast<size_t>(i)] == source) return replica_slot_[static_cast<size_t>(i)];
    if (nodes_ > 1 && on_node < 0 && replica_rank_[static_cast<size_t>(i)] / per_node == source / per_node)
      on_node = replica_slot_[static_cast<size_t>(i)];
  }
  return on_node >= 0 ? on_node : replica_slot_[static_cast<size_t>(s.first + source % s.count)];
}

int32_t ReplicaSplit::slot_of(int64_t expert, int source, int64_t row) const {
  const Shared& s = of_expert_[static_cast<size_t>(expert)];
  if (s.count == 1) return replica_slot_[static_cast<size_t>(s.first)];
  if (choice_ == ReplicaChoice::kStatic) return static_slot(expert, source);
  if (choice_ == ReplicaChoice::kDynamic) return replica_slot_[static_cast<size_t>(s.first + row % s.count)];
  int32_t i = s.first;
  for (; i + 1 < s.first + s.count && row >= replica_rows_[static_cast<size_t>(i)]; ++i)
    row -= replica_rows_[static_cast<size_t>(i)];
  return replica_slot_[static_cast<size_t>(i)];
}

void ReplicaSplit::choose(int source, std::span<const int32_t> ids, std::span<int32_t> next_row, std::span<int32_t> slots) const {
  for (size_t i = 0; i < ids.size(); ++i) slots[i] = slot_of(ids[i], source, next_row[static_cast<size_t>(ids[i])]++);
}

void ReplicaSplit::rows_of_slots(int64_t expert, std::span<int32_t> rows) const {
  const auto slots = placement_.expert_to_slots(expert);
  CADRE_CHECK(rows.size() == slots.size() && choice_ != ReplicaChoice::kStatic, "{} slots of {}", rows.size(),
              slots.size());
  const Shared& s = of_expert_[static_cast<size_t>(expert)];
  const int32_t all = rows_[static_cast<size_t>(expert)];
  std::fill(rows.begin(), rows.end(), 0);
  int32_t i = 0;
  for (size_t at = 0; at < slots.size() && i < s.count; ++at) {
    if (slots[at] != replica_slot_[static_cast<size_t>(s.first + i)]) continue;
    if (s.count == 1)
      rows[at] = all;
    else
      rows[at] = choice_ == ReplicaChoice::kWaterFill ? replica_rows_[static_cast<size_t>(s.first + i)]
                                                      : all / s.count + (i < all % s.count);
    ++i;
  }
}

void number_rows(std::span<const int32_t> rows_by_source, int source, std::span<int32_t> first_row,
                 std::span<int32_t> all_rows) {
  const size_t experts = all_rows.size();
  CADRE_CHECK(first_row.size() == experts && rows_by_source.size() % experts == 0, "{} rows of {} experts",
              rows_by_source.size(), experts);
  std::fill(all_rows.begin(), all_rows.end(), 0);
  for (size_t s = 0; s < rows_by_source.size() / experts; ++s) {
    if (s == static_cast<size_t>(source)) std::copy(all_rows.begin(), all_rows.end(), first_row.begin());
    for (size_t e = 0; e < experts; ++e) all_rows[e] += rows_by_source[s * experts + e];
  }
}

}  // namespace cadre
