#include "eplb/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "eplb/layer_search.h"
#include "eplb/reference.h"
#include "parallel/expert_load.h"

namespace cadre::eplb {
namespace {

// Where a plan starts afresh there is nothing to keep: as even as the search gets cheaply.
constexpr double kEvenAfresh = 0.999;
// Of the mean load of a rank: what a move has to gain where no price is given.
constexpr double kLeastGainOfMove = 2e-5;
// Below this a plan afresh also tries other numbers of replicas than the greedy ones, this often;
// more often where it has not come up to the published algorithms.
constexpr double kWorthOtherCounts = 0.99;
constexpr int kTriesOfOtherCounts = 24, kTriesBelowReference = 400, kTriesByChance = 4000;
constexpr uint64_t kChanceSeed = 20'240'627;
// A plan counts as reaching a bound that it misses by less than the rounding of sums.
constexpr double kRounding = 1 + 1e-12;

void check_load(std::span<const double> load, const Cluster& cluster) {
  check_cluster(cluster);
  if (static_cast<int64_t>(load.size()) != cluster.num_experts)
    throw invalid_input("load: expected {} experts, found {}; give one number for each", cluster.num_experts,
                        load.size());
  for (const double l : load)
    if (!(l >= 0) || !std::isfinite(l))
      throw invalid_input("load: expected finite numbers of rows, none below 0, found {}; correct it", l);
}

double max_rank_load(std::span<const int32_t> slots, std::span<const double> load, const Cluster& cluster) {
  std::vector<int32_t> count(load.size());
  for (const int32_t e : slots)
    if (e != kEmptySlot) ++count[static_cast<size_t>(e)];
  double most = 0;
  const size_t per_rank = static_cast<size_t>(cluster.slots_per_rank());
  for (size_t first = 0; first < slots.size(); first += per_rank) {
    double sum = 0;
    for (const int32_t e : slots.subspan(first, per_rank))
      if (e != kEmptySlot) sum += load[static_cast<size_t>(e)] / count[static_cast<size_t>(e)];
    most = std::max(most, sum);
  }
  return most;
}

// Second replicas of an expert on a rank become empty slots.
std::vector<int32_t> without_doubled(std::span<const int32_t> slots, const Cluster& cluster) {
  std::vector<int32_t> out(slots.begin(), slots.end()), last_rank(static_cast<size_t>(cluster.num_experts), -1);
  const int32_t per_rank = static_cast<int32_t>(cluster.slots_per_rank());
  for (int32_t rank = 0; rank < cluster.ranks; ++rank)
    for (int32_t s = rank * per_rank; s < (rank + 1) * per_rank; ++s) {
      int32_t& e = out[static_cast<size_t>(s)];
      if (e != kEmptySlot && std::exchange(last_rank[static_cast<size_t>(e)], rank) == rank) e = kEmptySlot;
    }
  return out;
}

// Ranks of `slots` renumbered so that most of their experts are where they were in `from`: pairs with most in common
// first.
std::vector<int32_t> renumbered(std::span<const int32_t> slots, const ExpertPlacement& from) {
  const int ranks = from.ep();
  const int64_t per_rank = from.slots_per_rank();
  std::vector<int32_t> common(static_cast<size_t>(ranks) * static_cast<size_t>(ranks));
  for (size_t s = 0; s < slots.size(); ++s)
    if (slots[s] != kEmptySlot)
      for (const int32_t old : from.expert_to_slots(slots[s]))
        ++common[s / static_cast<size_t>(per_rank) * static_cast<size_t>(ranks) +
                 static_cast<size_t>(from.rank_of_slot(old))];
  std::vector<int32_t> pairs(common.size());
  std::iota(pairs.begin(), pairs.end(), 0);
  std::stable_sort(pairs.begin(), pairs.end(), [&](int32_t a, int32_t b) {
    return common[static_cast<size_t>(a)] > common[static_cast<size_t>(b)];
  });
  std::vector<int32_t> new_number(static_cast<size_t>(ranks), -1);
  std::vector<bool> is_taken(static_cast<size_t>(ranks));
  for (const int32_t pair : pairs) {
    const size_t rank = static_cast<size_t>(pair / ranks), number = static_cast<size_t>(pair % ranks);
    if (new_number[rank] >= 0 || is_taken[number]) continue;
    new_number[rank] = static_cast<int32_t>(number);
    is_taken[number] = true;
  }
  std::vector<int32_t> out(slots.size());
  for (size_t s = 0; s < slots.size(); ++s)
    out[static_cast<size_t>(new_number[s / static_cast<size_t>(per_rank)] * per_rank) +
        s % static_cast<size_t>(per_rank)] = slots[s];
  return out;
}

// Experts that stay on their rank stay in their slot.
std::vector<int32_t> in_old_slots(std::span<const int32_t> slots, const ExpertPlacement& from) {
  const size_t per_rank = static_cast<size_t>(from.slots_per_rank());
  std::vector<int32_t> out(slots.size(), kEmptySlot), coming;
  for (size_t first = 0; first < slots.size(); first += per_rank) {
    coming.assign(slots.begin() + static_cast<std::ptrdiff_t>(first),
                  slots.begin() + static_cast<std::ptrdiff_t>(first + per_rank));
    for (size_t s = first; s < first + per_rank; ++s) {
      const auto found = from.slot_to_expert()[s] == kEmptySlot
                             ? coming.end()
                             : std::find(coming.begin(), coming.end(), from.slot_to_expert()[s]);
      if (found == coming.end()) continue;
      out[s] = *found;
      coming.erase(found);
    }
    size_t s = first;
    for (const int32_t e : coming) {
      if (e == kEmptySlot) continue;
      while (out[s] != kEmptySlot) ++s;
      out[s] = e;
    }
  }
  return out;
}

int64_t moved(std::span<const int32_t> from, std::span<const int32_t> to, int64_t per_rank) {
  int64_t out = 0;
  for (size_t first = 0; first < to.size(); first += static_cast<size_t>(per_rank)) {
    const auto had = from.subspan(first, static_cast<size_t>(per_rank));
    for (const int32_t e : to.subspan(first, static_cast<size_t>(per_rank)))
      out += e != kEmptySlot && std::find(had.begin(), had.end(), e) == had.end();
  }
  return out;
}

// Plans a layer. The candidates are kept as slots, with what they cost.
class Planner {
 public:
  Planner(std::span<const double> load, const Cluster& cluster, const ExpertPlacement* current, const MoveRules& rules)
      : load_(load), cluster_(filled(cluster, rules)), current_(current), rules_(rules), search_(load, cluster_) {
    if (!rules.reach_reference) return;
    reference_slots_ = deepseek_slots(load, cluster, false);
    reference_max_ = max_rank_load(reference_slots_, load, cluster);
    if (cluster.nodes == 1) return;
    std::vector<int32_t> slots = deepseek_slots(load, cluster, true);
    const double most = max_rank_load(slots, load, cluster);
    if (most >= reference_max_) return;
    reference_slots_ = std::move(slots);
    reference_max_ = most;
  }

  // Replicas by expert, no more than ranks of each.
  std::vector<int32_t> counts() const {
    const std::vector<float> narrow(load_.begin(), load_.end());
    std::vector<int32_t> out;
    Replicator().run(narrow, cluster_.num_replicas, cluster_.ranks, &out);
    return out;
  }

  std::vector<int32_t> run() {
    if (current_) {
      from_current();
      if (rules_.rows_per_move <= 0 && best_->max <= enough()) return best_->slots;
      from_current_with_new_counts();
      if (best_->max <= must_reach()) return best_->slots;
    }
    afresh();
    return best_->slots;
  }

  double reference_max() const { return reference_max_; }

 private:
  struct Candidate {
    std::vector<int32_t> slots;
    double max = 0;
    int64_t moved = 0;
  };

  static Cluster filled(Cluster cluster, const MoveRules& rules) {
    if (rules.fill_all_slots) cluster.num_replicas = cluster.ranks * cluster.slots_per_rank();
    return cluster;
  }
  double must_reach() const {
    return rules_.reach_reference ? reference_max_ * kRounding : std::numeric_limits<double>::infinity();
  }
  double enough() const { return std::min(search_.mean_load() / rules_.good_enough, must_reach()); }
  double rows_per_move() const {
    if (!current_) return 0;
    return rules_.rows_per_move > 0 ? rules_.rows_per_move : kLeastGainOfMove * search_.mean_load();
  }
  int max_steps() const { return static_cast<int>(2 * cluster_.num_replicas); }

  // Of plans that reach the reference: with a price the cheapest, else the more even one, or where both are even enough
  // the one that moves less.
  bool is_better(const Candidate& a, const Candidate& b) const {
    const bool reached = a.max <= must_reach();
    if (reached != (b.max <= must_reach())) return reached;
    const auto cost = [&](const Candidate& c) {
      const double max = rules_.rows_per_move > 0 || !current_ ? c.max : std::max(c.max, enough());
      return max + rows_per_move() * static_cast<double>(c.moved);
    };
    return cost(a) != cost(b) ? cost(a) < cost(b) : a.moved < b.moved;
  }

  void offer(std::vector<int32_t> slots) {
    Candidate c{.slots = std::move(slots)};
    c.max = max_rank_load(c.slots, load_, cluster_);
    if (current_) c.moved = moved(current_->slot_to_expert(), c.slots, cluster_.slots_per_rank());
    if (!best_ || is_better(c, *best_)) best_ = std::move(c);
  }
  void offer_found() { offer({search_.slots().begin(), search_.slots().end()}); }
  void offer_renumbered() {
    offer(current_ ? renumbered(search_.slots(), *current_)
                   : std::vector<int32_t>(search_.slots().begin(), search_.slots().end()));
  }

  void improve(double enough) {
    search_.improve({.enough = enough,
                     .must_reach = must_reach(),
                     .rows_per_move = is_afresh_ ? 0 : rows_per_move(),
                     .max_steps = max_steps()});
  }

  void from_current() {
    current_slots_ = without_doubled(current_->slot_to_expert(), cluster_);
    search_.start_from(current_slots_, true);
    improve(rules_.rows_per_move > 0 ? 0 : enough());
    offer_found();
  }

  void from_current_with_new_counts() {
    search_.repair(current_slots_, counts());
    improve(rules_.rows_per_move > 0 ? 0 : enough());
    offer_found();
  }

  void afresh() {
    is_afresh_ = true;
    const double even = std::min(search_.mean_load() / kEvenAfresh, must_reach());
    // The published placement where it puts no expert twice on a rank, for it is what build() gives; else only where
    // build() ends worse.
    const std::vector<int32_t> slots = without_doubled(reference_slots_, cluster_);
    const auto from_reference = [&] {
      search_.start_from(slots, false);
      improve(even);
      offer_renumbered();
    };
    const bool is_filled = std::find(slots.begin(), slots.end(), kEmptySlot) == slots.end() || !rules_.fill_all_slots;
    if (!slots.empty() && slots == reference_slots_ && is_filled) {
      from_reference();
    } else {
      search_.build(counts());
      improve(even);
      offer_renumbered();
      if (best_->max > must_reach()) from_reference();
    }
    if (best_->max > search_.mean_load() / kWorthOtherCounts || best_->max > must_reach())
      with_other_counts(counts(), even);
    if (best_->max > must_reach()) by_chance(even);
  }

  // From the best so far, and now and then from where that led, by steps of chance and then ones that gain: for the few loads
  // on which a published placement with two replicas on one rank is hard to meet. Numbers of chance are always the same ones.
  void by_chance(double even) {
    Rng rng(kChanceSeed, 0);
    for (int i = 0; i < kTriesByChance && best_->max > must_reach(); ++i) {
      if (i % 8 == 0) search_.start_from(best_->slots, false);
      search_.shake(rng, 1 + static_cast<int>(rng.below(2 + static_cast<uint32_t>(i) % 16)));
      improve(even);
      offer_renumbered();
    }
  }

  // Where ranks have few slots, what limits them is which expert has one replica more: an expert with a large share
  // gets one of an expert that would not be much larger with one fewer.
  void with_other_counts(std::vector<int32_t> counts, double even) {
    search_.build(counts);
    improve(even);
    double max = search_.max_load();
    const bool is_below = best_->max > must_reach();
    const size_t width = is_below ? 20 : 6;
    int tries = is_below ? kTriesBelowReference : kTriesOfOtherCounts;
    for (bool is_better = true; is_better && tries > 0 && max > even;) {
      is_better = false;
      std::vector<float> share(counts.size()), with_fewer(counts.size());
      for (size_t e = 0; e < counts.size(); ++e) {
        share[e] = counts[e] < cluster_.ranks ? static_cast<float>(load_[e] / counts[e]) : 0.0f;
        with_fewer[e] =
            counts[e] > 1 ? static_cast<float>(load_[e] / (counts[e] - 1)) : std::numeric_limits<float>::max();
      }
      const std::vector<int32_t> givers = falling_order(with_fewer), takers = falling_order(share);
      for (size_t g = 0; g < std::min(counts.size(), width) && !is_better; ++g) {
        const size_t giver = static_cast<size_t>(givers[givers.size() - 1 - g]);
        if (with_fewer[giver] >= static_cast<float>(max)) break;
        for (size_t t = 0; t < std::min(counts.size(), width) && !is_better && tries > 0; ++t) {
          const size_t taker = static_cast<size_t>(takers[t]);
          if (taker == giver || share[taker] == 0) continue;
          --tries, --counts[giver], ++counts[taker];
          search_.build(counts);
          improve(even);
          is_better = search_.max_load() < max * (1 - 1e-9);
          if (!is_better) ++counts[giver], --counts[taker];
        }
      }
      if (!is_better) break;
      max = search_.max_load();
      offer_renumbered();
    }
  }

  std::span<const double> load_;
  const Cluster cluster_;
  const ExpertPlacement* current_;
  const MoveRules& rules_;
  LayerSearch search_;
  std::vector<int32_t> reference_slots_, current_slots_;
  double reference_max_ = 0;
  std::optional<Candidate> best_;
  bool is_afresh_ = false;
};

bool fits(const ExpertPlacement& placement, const Cluster& cluster, bool fills) {
  int64_t placed = 0;
  for (const int32_t e : placement.slot_to_expert()) placed += e != kEmptySlot;
  return placement.num_experts() == cluster.num_experts && placement.ep() == cluster.ranks &&
         placement.slots_per_rank() == cluster.slots_per_rank() && (fills || placed <= cluster.num_replicas);
}

}  // namespace

void check_cluster(const Cluster& c) {
  if (c.num_experts < 1 || c.ranks < 1 || c.nodes < 1 || c.groups < 1)
    throw invalid_input("expected at least one expert, rank, node and group, found {}, {}, {} and {}; correct them",
                        c.num_experts, c.ranks, c.nodes, c.groups);
  if (c.num_replicas < c.num_experts)
    throw invalid_input("expected at least {} slots, one for each expert, found {}; add redundant ones", c.num_experts,
                        c.num_replicas);
  if (c.num_replicas < c.ranks)
    throw invalid_input(
        "expected at least as many slots as ranks, found {} slots (experts and redundant ones) on {} ranks; add {} "
        "redundant experts or take fewer ranks",
        c.num_replicas, c.ranks, c.ranks - c.num_replicas);
}

ExpertPlacement deepseek(std::span<const double> load, const Cluster& cluster) {
  check_load(load, cluster);
  return ExpertPlacement(cluster.num_experts, cluster.ranks, deepseek_slots(load, cluster, false));
}

ExpertPlacement deepseek_hierarchical(std::span<const double> load, const Cluster& cluster) {
  check_load(load, cluster);
  return ExpertPlacement(cluster.num_experts, cluster.ranks, deepseek_slots(load, cluster, true));
}

LayerPlan cadre(std::span<const double> load, const Cluster& cluster, const ExpertPlacement* current,
                const MoveRules& rules) {
  check_load(load, cluster);
  if (current && !fits(*current, cluster, rules.fill_all_slots)) current = nullptr;
  const double total = std::accumulate(load.begin(), load.end(), 0.0);
  if (total == 0 && current) return {.placement = *current};
  Planner planner(load, cluster, current, rules);
  std::vector<int32_t> slots = planner.run();
  if (current) slots = in_old_slots(slots, *current);
  const double max = max_rank_load(slots, load, cluster), mean = total / cluster.ranks;
  LayerPlan plan{.placement = ExpertPlacement(cluster.num_experts, cluster.ranks, std::move(slots))};
  if (current) plan.moved = moved_slots(*current, plan.placement);
  if (total > 0) plan.balancedness = mean / max;
  if (total > 0 && rules.reach_reference) plan.reference = mean / planner.reference_max();
  return plan;
}

double balancedness(std::span<const double> loads) {
  const double most = loads.empty() ? 0 : *std::max_element(loads.begin(), loads.end());
  return most == 0 ? 1.0 : std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size()) / most;
}

double balancedness(const ExpertPlacement& placement, std::span<const double> load) {
  return balancedness(rank_loads(placement, load));
}

int64_t moved_slots(const ExpertPlacement& from, const ExpertPlacement& to) {
  CADRE_CHECK(from.ep() == to.ep() && from.slots_per_rank() == to.slots_per_rank(), "placements of {} and {} ranks",
              from.ep(), to.ep());
  return moved(from.slot_to_expert(), to.slot_to_expert(), to.slots_per_rank());
}

bool has_doubled(const ExpertPlacement& placement) {
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    const auto slots = placement.expert_to_slots(e);
    for (size_t i = 1; i < slots.size(); ++i)
      if (placement.rank_of_slot(slots[i]) == placement.rank_of_slot(slots[i - 1])) return true;
  }
  return false;
}

std::string_view name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kCadre:
      return "cadre";
    case Algorithm::kDeepseek:
      return "deepseek";
    case Algorithm::kDeepseekHierarchical:
      return "deepseek_hierarchical";
  }
  return "?";
}

Algorithm parse_algorithm(std::string_view name) {
  for (const Algorithm a : {Algorithm::kCadre, Algorithm::kDeepseek, Algorithm::kDeepseekHierarchical})
    if (name == name_of(a)) return a;
  throw invalid_input("expected the algorithm cadre, deepseek or deepseek_hierarchical, found {}; give one of them",
                      quoted(name));
}

}  // namespace cadre::eplb
