#include "eplb/layer_search.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "eplb/reference.h"

namespace cadre::eplb {
namespace {

// What a step has to gain, as a part of the mean load of a rank: more than rounding could.
constexpr double kLeastGain = 1e-9;

// A step that gains this part of the most that one with a further rank could is taken at once.
constexpr double kGoodStep = 0.8;

// With more slots a rank single swaps are fine enough, and double ones too many.
constexpr int32_t kMostForDoubleSwaps = 16;

// f(rank) for each set bit.
template <typename F>
void for_each_rank(const uint64_t* words, int32_t num_words, F&& f) {
  for (int32_t w = 0; w < num_words; ++w)
    for (uint64_t left = words[w]; left != 0; left &= left - 1) f(w * 64 + std::countr_zero(left));
}

}  // namespace

LayerSearch::LayerSearch(std::span<const double> load, const Cluster& cluster)
    : load_(load.begin(), load.end()),
      ranks_(cluster.ranks),
      per_rank_(static_cast<int32_t>(cluster.slots_per_rank())),
      words_((cluster.ranks + 63) / 64),
      num_replicas_(cluster.num_replicas),
      mean_(std::accumulate(load.begin(), load.end(), 0.0) / cluster.ranks),
      slots_(static_cast<size_t>(ranks_ * per_rank_)),
      used_(static_cast<size_t>(ranks_)),
      count_(load_.size()),
      share_(load_.size()),
      more_without_one_(load_.size()),
      rank_load_(static_cast<size_t>(ranks_)),
      held_(load_.size() * static_cast<size_t>(words_)),
      by_load_(static_cast<size_t>(ranks_)),
      place_in_(static_cast<size_t>(ranks_)) {}

void LayerSearch::clear() {
  std::fill(slots_.begin(), slots_.end(), kEmptySlot);
  std::fill(used_.begin(), used_.end(), 0);
  std::fill(count_.begin(), count_.end(), 0);
  std::fill(rank_load_.begin(), rank_load_.end(), 0.0);
  std::fill(held_.begin(), held_.end(), uint64_t{0});
  std::iota(by_load_.begin(), by_load_.end(), 0);
  std::iota(place_in_.begin(), place_in_.end(), 0);
  start_.clear();
  counts_moves_ = false;
  placed_ = moved_ = 0;
}

void LayerSearch::put(int32_t rank, int32_t expert) {
  int32_t* slots = slots_.data() + rank * per_rank_;
  int32_t at = used_[static_cast<size_t>(rank)]++;
  const double share = share_[static_cast<size_t>(expert)];
  for (; at > 0 && share_[static_cast<size_t>(slots[at - 1])] < share; --at) slots[at] = slots[at - 1];
  slots[at] = expert;
  held_[static_cast<size_t>(expert * words_ + (rank >> 6))] |= uint64_t{1} << (rank & 63);
  rank_load_[static_cast<size_t>(rank)] += share;
  ++placed_;
  if (counts_moves_ && !held_at_start(rank, expert)) ++moved_;
}

void LayerSearch::take(int32_t rank, int32_t expert) {
  int32_t* slots = slots_.data() + rank * per_rank_;
  const int32_t last = --used_[static_cast<size_t>(rank)];
  int32_t at = 0;
  while (slots[at] != expert) ++at;
  for (; at < last; ++at) slots[at] = slots[at + 1];
  slots[last] = kEmptySlot;
  held_[static_cast<size_t>(expert * words_ + (rank >> 6))] &= ~(uint64_t{1} << (rank & 63));
  rank_load_[static_cast<size_t>(rank)] -= share_[static_cast<size_t>(expert)];
  --placed_;
  if (counts_moves_ && !held_at_start(rank, expert)) --moved_;
}

void LayerSearch::sort_slots(int32_t rank) {
  int32_t* slots = slots_.data() + rank * per_rank_;
  for (int32_t i = 1; i < used_[static_cast<size_t>(rank)]; ++i) {
    const int32_t expert = slots[i];
    int32_t at = i;
    for (; at > 0 && share_[static_cast<size_t>(slots[at - 1])] < share_[static_cast<size_t>(expert)]; --at)
      slots[at] = slots[at - 1];
    slots[at] = expert;
  }
}

void LayerSearch::moved_rank(int32_t rank) {
  const double load = rank_load_[static_cast<size_t>(rank)];
  int32_t at = place_in_[static_cast<size_t>(rank)];
  const auto before = [&](int32_t other) {
    const double l = rank_load_[static_cast<size_t>(other)];
    return l < load || (l == load && other < rank);
  };
  const auto stand = [&](int32_t r, int32_t place) {
    by_load_[static_cast<size_t>(place)] = r;
    place_in_[static_cast<size_t>(r)] = place;
  };
  while (at + 1 < ranks_ && before(by_load_[static_cast<size_t>(at + 1)])) {
    stand(by_load_[static_cast<size_t>(at + 1)], at);
    ++at;
  }
  while (at > 0 && !before(by_load_[static_cast<size_t>(at - 1)])) {
    stand(by_load_[static_cast<size_t>(at - 1)], at);
    --at;
  }
  stand(rank, at);
}

void LayerSearch::sort_ranks() {
  std::iota(by_load_.begin(), by_load_.end(), 0);
  std::sort(by_load_.begin(), by_load_.end(), [&](int32_t a, int32_t b) {
    const double x = rank_load_[static_cast<size_t>(a)], y = rank_load_[static_cast<size_t>(b)];
    return x < y || (x == y && a < b);
  });
  for (int32_t i = 0; i < ranks_; ++i) place_in_[static_cast<size_t>(by_load_[static_cast<size_t>(i)])] = i;
}

void LayerSearch::set_share(int32_t expert) {
  const int32_t count = count_[static_cast<size_t>(expert)];
  const double share = load_with(expert, count);
  share_[static_cast<size_t>(expert)] = share;
  more_without_one_[static_cast<size_t>(expert)] =
      count > 1 ? load_with(expert, count - 1) - share : std::numeric_limits<double>::infinity();
}

void LayerSearch::set_count(int32_t expert, int32_t count) {
  const double before = share_[static_cast<size_t>(expert)];
  count_[static_cast<size_t>(expert)] = count;
  set_share(expert);
  const double more = share_[static_cast<size_t>(expert)] - before;
  for_each_rank(held_.data() + expert * words_, words_, [&](int32_t rank) {
    rank_load_[static_cast<size_t>(rank)] += more;
    sort_slots(rank);
    moved_rank(rank);
  });
}

// To the emptiest rank that has room and not yet this expert. Where only ranks that have it have room, one of those
// takes a replica of a full rank instead, which takes this one.
void LayerSearch::place(int32_t expert) {
  for (const int32_t rank : by_load_) {
    if (used_[static_cast<size_t>(rank)] == per_rank_ || holds(rank, expert)) continue;
    put(rank, expert);
    moved_rank(rank);
    return;
  }
  int32_t roomy = -1, full = -1, passed = -1;
  double best = std::numeric_limits<double>::infinity();
  for (int32_t p = 0; p < ranks_; ++p) {
    if (used_[static_cast<size_t>(p)] == per_rank_) continue;
    for (int32_t q = 0; q < ranks_; ++q) {
      if (holds(q, expert)) continue;
      for (int32_t i = 0; i < per_rank_; ++i) {
        const int32_t y = slots_[static_cast<size_t>(q * per_rank_ + i)];
        if (holds(p, y)) continue;
        const double share = share_[static_cast<size_t>(y)];
        const double fuller =
            std::max(rank_load_[static_cast<size_t>(p)] + share,
                     rank_load_[static_cast<size_t>(q)] - share + share_[static_cast<size_t>(expert)]);
        if (fuller >= best) continue;
        best = fuller, roomy = p, full = q, passed = y;
      }
    }
  }
  CADRE_CHECK(roomy >= 0, "no room for a replica of expert {} on {} ranks", expert, ranks_);
  take(full, passed);
  put(full, expert);
  moved_rank(full);
  put(roomy, passed);
  moved_rank(roomy);
}

void LayerSearch::build(std::span<const int32_t> counts) {
  clear();
  std::vector<float> shares(load_.size());
  for (size_t e = 0; e < load_.size(); ++e) {
    count_[e] = counts[e];
    set_share(static_cast<int32_t>(e));
    shares[e] = static_cast<float>(share_[e]);
  }
  for (const int32_t expert : falling_order(shares)) {
    for (int32_t i = 0; i < count_[static_cast<size_t>(expert)]; ++i) place(expert);
  }
}

void LayerSearch::start_from(std::span<const int32_t> slots, bool counts_moves) {
  clear();
  for (const int32_t e : slots)
    if (e != kEmptySlot) ++count_[static_cast<size_t>(e)];
  for (size_t e = 0; e < load_.size(); ++e) set_share(static_cast<int32_t>(e));
  for (size_t s = 0; s < slots.size(); ++s)
    if (slots[s] != kEmptySlot) put(static_cast<int32_t>(s) / per_rank_, slots[s]);
  sort_ranks();
  counts_moves_ = counts_moves;
  if (counts_moves) start_ = held_;
}

void LayerSearch::repair(std::span<const int32_t> slots, std::span<const int32_t> counts) {
  start_from(slots, true);
  for (int32_t e = 0; e < static_cast<int32_t>(load_.size()); ++e) {
    while (count_[static_cast<size_t>(e)] > counts[static_cast<size_t>(e)]) {
      int32_t fullest = -1;
      for_each_rank(held_.data() + e * words_, words_, [&](int32_t r) {
        if (fullest < 0 || place_in_[static_cast<size_t>(r)] > place_in_[static_cast<size_t>(fullest)]) fullest = r;
      });
      take(fullest, e);
      moved_rank(fullest);
      set_count(e, count_[static_cast<size_t>(e)] - 1);
    }
  }
  std::vector<uint64_t> missing;
  for (size_t e = 0; e < load_.size(); ++e) {
    const int32_t more = counts[e] - count_[e];
    if (more <= 0) continue;
    set_count(static_cast<int32_t>(e), counts[e]);
    missing.insert(missing.end(), static_cast<size_t>(more),
                   falling_load_key(static_cast<float>(share_[e]), static_cast<uint32_t>(e)));
  }
  std::sort(missing.begin(), missing.end());
  for (const uint64_t key : missing) place(static_cast<int32_t>(static_cast<uint32_t>(key)));
}

double LayerSearch::max_load() const { return rank_load_[static_cast<size_t>(by_load_.back())]; }

int LayerSearch::move_price(int32_t rank, int32_t out, int32_t in) const {
  if (!counts_moves_) return 1;
  return (in >= 0 && !held_at_start(rank, in) ? 1 : 0) - (out >= 0 && !held_at_start(rank, out) ? 1 : 0);
}

void LayerSearch::offer(Step step, int price, Step* best) const {
  const double gain = max_load() - step.new_max;
  if (gain <= kLeastGain * mean_) return;
  step.score = gain / std::max(price, 1);
  if (step.score > best->score) *best = step;
}

// A replica of the fullest rank against a smaller one, or none, of another. The best difference is half of that between
// the two ranks; of the other rank's replicas only the nearest to it on both sides are looked at.
void LayerSearch::consider_swaps(Step* best) const {
  const int32_t full = by_load_.back();
  const double full_load = max_load();
  const std::span<const int32_t> mine(slots_.data() + full * per_rank_,
                                      static_cast<size_t>(used_[static_cast<size_t>(full)]));
  for (int32_t i = 0; i + 1 < ranks_; ++i) {
    const int32_t other = by_load_[static_cast<size_t>(i)];
    const double other_load = rank_load_[static_cast<size_t>(other)], wanted = (full_load - other_load) / 2;
    if (kGoodStep * wanted <= best->score) break;
    const int32_t theirs = used_[static_cast<size_t>(other)];
    const int32_t* their = slots_.data() + other * per_rank_;
    int32_t from = 0;
    for (const int32_t x : mine) {
      const double share = share_[static_cast<size_t>(x)];
      if (holds(other, x)) continue;
      // The first of theirs, in falling order, that is at most as large as what would make the best difference.
      while (from < theirs && share_[static_cast<size_t>(their[from])] > share - wanted) ++from;
      for (int32_t at = std::max(from - 1, 0); at <= std::min(from, theirs); ++at) {
        const bool empty = at == theirs;
        if (empty && theirs == per_rank_) continue;
        const int32_t y = empty ? kEmptySlot : their[at];
        if (!empty && holds(full, y)) continue;
        const double difference = share - (empty ? 0.0 : share_[static_cast<size_t>(y)]);
        if (difference <= 0) continue;
        const double new_max = std::max(full_load - difference, other_load + difference);
        if (full_load - new_max <= best->score) continue;
        const int price = counts_moves_ ? move_price(full, x, y) + move_price(other, y, x) : 1;
        offer({.new_max = new_max, .rank = full, .other = other, .out = x, .in = y, .is_swap = true}, price, best);
      }
    }
  }
}

// Up to two replicas of the fullest rank against up to two of another: many more differences than of one against one.
void LayerSearch::consider_double_swaps(Step* best) const {
  if (per_rank_ > kMostForDoubleSwaps) return;
  const int32_t full = by_load_.back(), mine = used_[static_cast<size_t>(full)];
  const int32_t* my = slots_.data() + full * per_rank_;
  const auto share = [&](int32_t e) { return e == kEmptySlot ? 0.0 : share_[static_cast<size_t>(e)]; };
  for (int32_t i = 0; i + 1 < ranks_; ++i) {
    const int32_t other = by_load_[static_cast<size_t>(i)], theirs = used_[static_cast<size_t>(other)];
    const int32_t* their = slots_.data() + other * per_rank_;
    const double other_load = rank_load_[static_cast<size_t>(other)];
    if ((max_load() - other_load) / 2 <= best->score) return;
    // -1 as an index: none.
    for (int32_t x = 0; x < mine; ++x)
      for (int32_t x2 = -1; x2 < x; ++x2) {
        const int32_t out = my[x], out2 = x2 < 0 ? kEmptySlot : my[x2];
        if (holds(other, out) || (x2 >= 0 && holds(other, out2))) continue;
        const double leaving = share(out) + share(out2);
        for (int32_t y = -1; y < theirs; ++y)
          for (int32_t y2 = -1; y2 < std::max(y, 0); ++y2) {
            const int32_t in = y < 0 ? kEmptySlot : their[y], in2 = y2 < 0 ? kEmptySlot : their[y2];
            const double difference = leaving - share(in) - share(in2);
            const double new_max = std::max(max_load() - difference, other_load + difference);
            if (max_load() - new_max <= best->score) continue;
            if ((y >= 0 && holds(full, in)) || (y2 >= 0 && holds(full, in2))) continue;
            const int32_t more = 1 + (x2 >= 0) - (y >= 0) - (y2 >= 0);
            if (theirs + more > per_rank_ || mine - more > per_rank_) continue;
            const int price = move_price(full, out, in) + move_price(other, in, out) +
                              (counts_moves_ ? move_price(full, out2, in2) + move_price(other, in2, out2) : 0);
            offer({.new_max = new_max,
                   .rank = full,
                   .other = other,
                   .out = out,
                   .in = in,
                   .out2 = out2,
                   .in2 = in2,
                   .is_swap = true},
                  counts_moves_ ? price : 1, best);
          }
      }
  }
}

// One more replica of an expert of the fullest rank on `rank`, in an empty slot or in that of a replica of another
// expert, whose others then carry more.
void LayerSearch::consider_replica(int32_t expert, int32_t rank, Step* best) const {
  const double share = share_[static_cast<size_t>(expert)],
               new_share = load_with(expert, count_[static_cast<size_t>(expert)] + 1);
  const double less = share - new_share, with_new = rank_load_[static_cast<size_t>(rank)] + new_share,
               full_load = max_load() - less;
  if (used_[static_cast<size_t>(rank)] < per_rank_ && placed_ < num_replicas_)
    offer({.new_max = std::max(with_new, full_load), .rank = rank, .out = kEmptySlot, .in = expert},
          move_price(rank, kEmptySlot, expert), best);
  const int32_t* slots = slots_.data() + rank * per_rank_;
  for (int32_t i = 0; i < used_[static_cast<size_t>(rank)]; ++i) {
    const int32_t f = slots[i];
    const double without = with_new - share_[static_cast<size_t>(f)];
    // Replicas fall in size from here on, so that the rank would only be fuller.
    if (without >= max_load() - best->score) break;
    if (count_[static_cast<size_t>(f)] < 2) continue;
    const double more = more_without_one_[static_cast<size_t>(f)];
    double new_max = std::max(without, full_load);
    for_each_rank(held_.data() + f * words_, words_, [&](int32_t r) {
      if (r == rank) return;
      new_max = std::max(new_max, rank_load_[static_cast<size_t>(r)] + more - (holds(r, expert) ? less : 0.0));
    });
    if (max_load() - new_max > best->score)
      offer({.new_max = new_max, .rank = rank, .out = f, .in = expert}, move_price(rank, f, expert), best);
  }
}

void LayerSearch::consider_replicas(Step* best) const {
  const int32_t full = by_load_.back();
  for (int32_t i = 0; i < used_[static_cast<size_t>(full)]; ++i) {
    const int32_t expert = slots_[static_cast<size_t>(full * per_rank_ + i)];
    if (count_[static_cast<size_t>(expert)] >= ranks_) continue;
    const double less =
        share_[static_cast<size_t>(expert)] - load_with(expert, count_[static_cast<size_t>(expert)] + 1);
    for (int32_t at = 0; at + 1 < ranks_ && kGoodStep * less > best->score; ++at) {
      const int32_t rank = by_load_[static_cast<size_t>(at)];
      if (!holds(rank, expert)) consider_replica(expert, rank, best);
    }
  }
}

void LayerSearch::apply(const Step& step) {
  if (step.is_swap) {
    // One rank after the other: while one is out of order, its new place can be found among the others.
    for (const int32_t e : {step.out, step.out2})
      if (e != kEmptySlot) take(step.rank, e);
    for (const int32_t e : {step.in, step.in2})
      if (e != kEmptySlot) put(step.rank, e);
    moved_rank(step.rank);
    for (const int32_t e : {step.in, step.in2})
      if (e != kEmptySlot) take(step.other, e);
    for (const int32_t e : {step.out, step.out2})
      if (e != kEmptySlot) put(step.other, e);
    moved_rank(step.other);
    return;
  }
  if (step.out != kEmptySlot) {
    take(step.rank, step.out);
    moved_rank(step.rank);
    set_count(step.out, count_[static_cast<size_t>(step.out)] - 1);
  }
  set_count(step.in, count_[static_cast<size_t>(step.in)] + 1);
  put(step.rank, step.in);
  moved_rank(step.rank);
}

void LayerSearch::shake(Rng& rng, int num_steps) {
  const auto below = [&](size_t n) { return static_cast<int32_t>(rng.below(static_cast<uint32_t>(n))); };
  for (int i = 0; i < num_steps; ++i) {
    const int32_t rank = below(used_.size()), used = used_[static_cast<size_t>(rank)];
    if (used == 0) continue;
    const int32_t out = slots_[static_cast<size_t>(rank * per_rank_ + below(static_cast<size_t>(used)))];
    if (rng.below(2) == 0) {
      const int32_t in = below(load_.size());
      if (in == out || holds(rank, in) || count_[static_cast<size_t>(out)] < 2 || count_[static_cast<size_t>(in)] >= ranks_) continue;
      apply({.rank = rank, .out = out, .in = in});
    } else {
      const int32_t other = below(used_.size()), theirs = used_[static_cast<size_t>(other)];
      if (other == rank || theirs == 0 || holds(other, out)) continue;
      const int32_t in = slots_[static_cast<size_t>(other * per_rank_ + below(static_cast<size_t>(theirs)))];
      if (!holds(rank, in)) apply({.rank = rank, .other = other, .out = out, .in = in, .is_swap = true});
    }
  }
}

void LayerSearch::improve(const Limits& limits) {
  const bool priced = limits.rows_per_move > 0;
  std::vector<int32_t> best_slots;
  bool best_reached = false;
  double best_cost = 0;
  int64_t best_moved = 0;
  const auto note = [&] {
    if (!priced) return;
    const bool reached = max_load() <= limits.must_reach;
    const double cost = max_load() + limits.rows_per_move * static_cast<double>(moved_);
    if (!best_slots.empty() && (reached < best_reached || (reached == best_reached && cost >= best_cost))) return;
    best_slots = slots_, best_reached = reached, best_cost = cost, best_moved = moved_;
  };
  note();
  for (int i = 0; i < limits.max_steps && max_load() > limits.enough; ++i) {
    Step best;
    consider_swaps(&best);
    if (best.rank < 0 || counts_moves_) consider_replicas(&best);
    if (best.rank < 0 && max_load() > limits.must_reach) consider_double_swaps(&best);
    if (best.rank < 0) break;
    apply(best);
    note();
  }
  if (priced && best_slots != slots_) {
    const std::vector<uint64_t> start = start_;
    start_from(best_slots, counts_moves_);
    start_ = start;
    moved_ = best_moved;
  }
}

}  // namespace cadre::eplb
