#include "parallel/replica_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <queue>

#include "base/error.h"
#include "base/rng.h"
#include "eplb/balance.h"
#include "eplb/load_series.h"
#include "tests/testing.h"

namespace cadre::eplb {
namespace {

// Maximum flow (Dinic) over experts and ranks, in float64: whether rows can be shared so that no rank has above
// `bound`.
class Flow {
 public:
  explicit Flow(size_t nodes) : edges_of_(nodes) {}
  void add(size_t from, size_t to, double capacity) {
    edges_of_[from].push_back(edges_.size()), edges_.push_back({to, capacity});
    edges_of_[to].push_back(edges_.size()), edges_.push_back({from, 0});
  }
  double run(size_t from, size_t to) {
    double out = 0;
    while (reach(from, to)) {
      next_.assign(edges_of_.size(), 0);
      while (const double sent = push(from, to, 1e300)) out += sent;
    }
    return out;
  }

 private:
  struct Edge {
    size_t to;
    double left;
  };
  static constexpr double kNone = 1e-7;
  bool reach(size_t from, size_t to) {
    level_.assign(edges_of_.size(), -1);
    level_[from] = 0;
    std::queue<size_t> queue({from});
    for (; !queue.empty(); queue.pop())
      for (const size_t i : edges_of_[queue.front()])
        if (edges_[i].left > kNone && level_[edges_[i].to] < 0) {
          level_[edges_[i].to] = level_[queue.front()] + 1;
          queue.push(edges_[i].to);
        }
    return level_[to] >= 0;
  }
  double push(size_t at, size_t to, double most) {
    if (at == to) return most;
    for (; next_[at] < edges_of_[at].size(); ++next_[at]) {
      const size_t i = edges_of_[at][next_[at]];
      if (edges_[i].left <= kNone || level_[edges_[i].to] != level_[at] + 1) continue;
      const double sent = push(edges_[i].to, to, std::min(most, edges_[i].left));
      if (sent <= kNone) continue;
      edges_[i].left -= sent, edges_[i ^ 1].left += sent;
      return sent;
    }
    return 0;
  }
  std::vector<Edge> edges_;
  std::vector<std::vector<size_t>> edges_of_;
  std::vector<int> level_;
  std::vector<size_t> next_;
};

// The least that the busiest rank can have when rows may be cut: the linear program's optimum, by bisection over flows.
double optimum(const ExpertPlacement& p, std::span<const int32_t> rows) {
  const size_t experts = rows.size(), ranks = static_cast<size_t>(p.ep());
  const double total = std::accumulate(rows.begin(), rows.end(), 0.0);
  double low = total / static_cast<double>(ranks), high = total;
  while (high - low > 1e-5 * low + 1e-9) {
    const double bound = (low + high) / 2;
    Flow flow(experts + ranks + 2);
    for (size_t e = 0; e < experts; ++e) {
      flow.add(experts + ranks, e, rows[e]);
      for (const int32_t s : p.expert_to_slots(static_cast<int64_t>(e)))
        flow.add(e, experts + static_cast<size_t>(p.rank_of_slot(s)), 1e300);
    }
    for (size_t r = 0; r < ranks; ++r) flow.add(experts + r, experts + ranks + 1, bound);
    (flow.run(experts + ranks, experts + ranks + 1) >= total * (1 - 1e-8) ? high : low) = bound;
  }
  return high;
}

// Rows by slot and by rank are what slot_of says row by row, and every row has a slot of its expert.
void expect_consistent(const ReplicaSplit& split, ReplicaChoice choice, const ExpertPlacement& p,
                       std::span<const int32_t> rows) {
  std::vector<int32_t> by_slot(static_cast<size_t>(p.num_slots())), by_rank(static_cast<size_t>(p.ep()));
  for (size_t e = 0; e < rows.size(); ++e) {
    for (int32_t j = 0; j < rows[e]; ++j) {
      const int32_t slot = split.slot_of(static_cast<int64_t>(e), 0, j);
      ASSERT_EQ(p.slot_to_expert()[static_cast<size_t>(slot)], static_cast<int32_t>(e));
      ++by_slot[static_cast<size_t>(slot)], ++by_rank[static_cast<size_t>(p.rank_of_slot(slot))];
    }
    const auto slots = p.expert_to_slots(static_cast<int64_t>(e));
    std::vector<int32_t> found(slots.size());
    split.rows_of_slots(static_cast<int64_t>(e), found);
    for (size_t i = 0; i < slots.size(); ++i)
      EXPECT_EQ(found[i], by_slot[static_cast<size_t>(slots[i])]) << "expert " << e;
  }
  if (choice != ReplicaChoice::kWaterFill) return;
  EXPECT_EQ(std::vector<int32_t>(split.rank_rows().begin(), split.rank_rows().end()), by_rank);
}

TEST(WaterFill, IsNearTheOptimumOnRandomBatches) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  for (int i = 0; i < 300; ++i) {
    const int64_t experts = 2 + rng.below(40);
    const int ranks = 2 + static_cast<int>(rng.below(12));
    std::vector<double> load(static_cast<size_t>(experts));
    for (double& l : load) l = std::exp(5 * rng.uniform());
    const ExpertPlacement p = cadre(load, {.num_experts = experts,
                                           .ranks = ranks,
                                           .num_replicas = std::max<int64_t>(experts, ranks) + rng.below(20)})
                                  .placement;
    std::vector<int32_t> rows(load.size());
    const double scale = rng.below(2) ? 20 : 0.2;  // also batches of few rows
    for (size_t e = 0; e < rows.size(); ++e)
      rows[e] = static_cast<int32_t>(load[e] * scale * (0.2 + 1.6 * rng.uniform()));
    ReplicaSplit split(p, ReplicaChoice::kWaterFill);
    split.split(rows);
    expect_consistent(split, ReplicaChoice::kWaterFill, p, rows);
    const double best = optimum(p, rows), found = *std::max_element(split.rank_rows().begin(), split.rank_rows().end());
    // Rows are whole, and expert by expert some of them cannot be passed on: a few on a rank, whatever the batch.
    EXPECT_LE(found, best * 1.01 + 4) << experts << " experts over " << ranks << " ranks";
    ReplicaSplit again(p, ReplicaChoice::kWaterFill);
    again.split(rows);
    EXPECT_TRUE(std::equal(split.rank_rows().begin(), split.rank_rows().end(), again.rank_rows().begin()));
  }
}

TEST(WaterFill, IsWithinOnePercentOfTheOptimumOnRecordedLoads) {
  CADRE_DATA_OR_SKIP(data);
  std::vector<LoadSeries> loads;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(data / "expert_load" / "deepseek_r1"))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& file : files) loads.push_back(read_load(file));
  for (const int ranks : {8, 32, 64})
    for (size_t f = 0; f < loads.size(); ++f)
      for (const bool is_shifted : {false, true})  // planned for this load, or for another
        for (int64_t l = 0; l < loads[f].num_layers(); l += 13) {
          const ExpertPlacement p = cadre(loads[is_shifted ? (f + 1) % loads.size() : f].of(0, l),
                                          {.num_experts = 256, .ranks = ranks, .num_replicas = 320})
                                        .placement;
          const auto load = loads[f].of(0, l);
          const double total = std::accumulate(load.begin(), load.end(), 0.0);
          std::vector<int32_t> rows(load.size());
          for (size_t e = 0; e < rows.size(); ++e) rows[e] = static_cast<int32_t>(load[e] / total * 64 * 1024 * 8);
          ReplicaSplit split(p, ReplicaChoice::kWaterFill);
          split.split(rows);
          EXPECT_LE(*std::max_element(split.rank_rows().begin(), split.rank_rows().end()), optimum(p, rows) * 1.01)
              << files[f].filename() << ", " << ranks << " ranks, layer " << l;
        }
}

TEST(Dynamic, TakesReplicasInTurn) {
  const ExpertPlacement p(2, 3, {0, kEmptySlot, 0, 1, 1, 0});
  const std::vector<int32_t> rows{7, 3};
  ReplicaSplit split(p, ReplicaChoice::kDynamic);
  split.split(rows);
  expect_consistent(split, ReplicaChoice::kDynamic, p, rows);
  std::vector<int32_t> of_first(3);
  split.rows_of_slots(0, of_first);
  EXPECT_EQ(of_first, (std::vector<int32_t>{3, 2, 2}));
}

TEST(Static, TakesTheNearestReplica) {
  // Expert 0 on ranks 0 and 2, expert 1 on 1 and 3; two nodes of two ranks.
  const ExpertPlacement p(2, 4, {0, 1, 0, 1});
  const ReplicaSplit split(p, ReplicaChoice::kStatic, 2);
  EXPECT_EQ(split.slot_of(0, 0, 5), 0);  // its own
  EXPECT_EQ(split.slot_of(0, 1, 5), 0);  // its node's
  EXPECT_EQ(split.slot_of(0, 3, 5), 2);
  EXPECT_EQ(split.slot_of(1, 0, 5), 1);
  const ReplicaSplit flat(p, ReplicaChoice::kStatic);
  EXPECT_EQ(flat.slot_of(0, 1, 0), 2);  // neither near: by rank
  EXPECT_EQ(flat.slot_of(0, 3, 0), 2);
}

TEST(ReplicaSplit, NumbersRowsOverSources) {
  const std::vector<int32_t> by_source{1, 2, 3, 4, 5, 6};  // 3 sources, 2 experts
  std::vector<int32_t> first(2), all(2);
  number_rows(by_source, 2, first, all);
  EXPECT_EQ(first, (std::vector<int32_t>{4, 6}));
  EXPECT_EQ(all, (std::vector<int32_t>{9, 12}));
  EXPECT_THROW(parse_replica_choice("nearest"), Error);
  EXPECT_EQ(parse_replica_choice("water_fill"), ReplicaChoice::kWaterFill);
}

}  // namespace
}  // namespace cadre::eplb
