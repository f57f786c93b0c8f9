#include "parallel/expert_placement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "tests/testing.h"

namespace cadre {
namespace {

std::vector<int32_t> held(const ExpertPlacement& placement, int rank) {
  std::vector<int32_t> out;
  for (const int32_t e : placement.experts_of(rank))
    if (e != kEmptySlot) out.push_back(e);
  return out;
}

std::string refusal(int64_t num_experts, int ep, std::vector<int32_t> slots) {
  try {
    ExpertPlacement(num_experts, ep, std::move(slots));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(ExpertPlacement, FourExpertsOnTwoRanksAsVllmPlacesThem) {
  const auto linear = ExpertPlacement::initial(4, 2, PlacementStrategy::kLinear);
  // Redundant slots: on each rank, the next rank's first experts; never a second replica on a rank that lacks others.
  const auto slots = [](int64_t experts, int ep, PlacementStrategy strategy, int64_t redundant) {
    const auto placement = ExpertPlacement::initial(experts, ep, strategy, redundant);
    return std::vector<int32_t>(placement.slot_to_expert().begin(), placement.slot_to_expert().end());
  };
  EXPECT_EQ(slots(4, 2, PlacementStrategy::kLinear, 2), (std::vector<int32_t>{0, 1, 2, 2, 3, 0}));
  EXPECT_EQ(slots(4, 2, PlacementStrategy::kRoundRobin, 4), (std::vector<int32_t>{0, 2, 1, 3, 1, 3, 0, 2}));
  EXPECT_EQ(slots(5, 3, PlacementStrategy::kLinear, 1), (std::vector<int32_t>{0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(slots(3, 2, PlacementStrategy::kLinear, 2), (std::vector<int32_t>{0, 1, 2, 2, 0, kEmptySlot}));
  EXPECT_EQ(held(linear, 0), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(held(linear, 1), (std::vector<int32_t>{2, 3}));
  const auto robin = ExpertPlacement::initial(4, 2, PlacementStrategy::kRoundRobin);
  EXPECT_EQ(held(robin, 0), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(held(robin, 1), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(linear.expert_map(1), (std::vector<int32_t>{-1, -1, 0, 1}));
  EXPECT_EQ(robin.expert_map(1), (std::vector<int32_t>{-1, 0, -1, 1}));
}

TEST(ExpertPlacement, EveryExpertIsOnOneRankAndCountsDifferByAtMostOne) {
  for (const PlacementStrategy strategy : {PlacementStrategy::kLinear, PlacementStrategy::kRoundRobin})
    for (const int64_t experts : {1, 2, 7, 16, 60, 64, 128, 160, 256, 384})
      for (int ep = 1; ep <= std::min<int64_t>(experts, 40); ++ep) {
        const auto placement = ExpertPlacement::initial(experts, ep, strategy);
        SCOPED_TRACE(fmt::format("{} experts on {} ranks", experts, ep));
        std::vector<int> holders(static_cast<size_t>(experts));
        size_t least = static_cast<size_t>(experts), most = 0;
        for (int rank = 0; rank < ep; ++rank) {
          const auto mine = held(placement, rank);
          ASSERT_TRUE(std::is_sorted(mine.begin(), mine.end()));
          least = std::min(least, mine.size());
          most = std::max(most, mine.size());
          for (const int32_t e : mine) {
            ++holders[static_cast<size_t>(e)];
            if (strategy == PlacementStrategy::kRoundRobin) { ASSERT_EQ(e % ep, rank); }
          }
          if (strategy == PlacementStrategy::kLinear && !mine.empty()) { ASSERT_EQ(mine.back() - mine.front() + 1, static_cast<int32_t>(mine.size())); }
        }
        ASSERT_LE(most - least, 1u);
        ASSERT_EQ(static_cast<int64_t>(most), placement.slots_per_rank());
        ASSERT_EQ(holders, std::vector<int>(static_cast<size_t>(experts), 1));
      }
}

TEST(ExpertPlacement, TwoHundredFiftySixExpertsOnThreeRanks) {
  const auto placement = ExpertPlacement::initial(256, 3, PlacementStrategy::kLinear);
  EXPECT_EQ(placement.slots_per_rank(), 86);
  EXPECT_EQ(placement.num_slots(), 258);
  EXPECT_EQ(held(placement, 0).size(), 86u);
  EXPECT_EQ(held(placement, 1).size(), 85u);
  EXPECT_EQ(held(placement, 2).size(), 85u);
  EXPECT_EQ(held(placement, 1).front(), 86);
  EXPECT_EQ(placement.experts_of(2).back(), kEmptySlot);
}

TEST(ExpertPlacement, TheExpertMapIsTheInverseOfTheSlotsWhateverTheyHold) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int round = 0; round < 100; ++round) {
    const int ep = 1 + static_cast<int>(rng.below(6));
    const int64_t experts = ep + rng.below(20), per_rank = (experts + ep - 1) / ep + rng.below(3);
    std::vector<int32_t> slots(static_cast<size_t>(per_rank * ep), kEmptySlot);
    for (size_t s = 0; s < slots.size(); ++s) {  // every expert once, then replicas and empty slots
      if (s < static_cast<size_t>(experts)) slots[s] = static_cast<int32_t>(s);
      else if (rng.below(2) == 0) slots[s] = static_cast<int32_t>(rng.below(static_cast<uint32_t>(experts)));
    }
    std::shuffle(slots.begin(), slots.end(), rng);
    const ExpertPlacement placement(experts, ep, slots);
    for (int rank = 0; rank < ep; ++rank) {
      const auto map = placement.expert_map(rank);
      const auto mine = placement.experts_of(rank);
      ASSERT_EQ(static_cast<int64_t>(map.size()), experts);
      for (int64_t e = 0; e < experts; ++e) {
        const int32_t local = map[static_cast<size_t>(e)];
        if (local >= 0) EXPECT_EQ(mine[static_cast<size_t>(local)], e);
        else EXPECT_EQ(std::count(mine.begin(), mine.end(), static_cast<int32_t>(e)), 0);
      }
    }
    int64_t num_held = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const auto of = placement.expert_to_slots(e);
      EXPECT_FALSE(of.empty());
      EXPECT_TRUE(std::is_sorted(of.begin(), of.end()));
      num_held += static_cast<int64_t>(of.size());
      for (const int32_t s : of) {
        EXPECT_EQ(slots[static_cast<size_t>(s)], e);
        EXPECT_EQ(placement.rank_of_slot(s) * placement.slots_per_rank() + placement.local_slot(s), s);
      }
    }
    EXPECT_EQ(num_held, static_cast<int64_t>(slots.size()) - std::count(slots.begin(), slots.end(), kEmptySlot));
  }
}

TEST(ExpertPlacement, ReplicasKeepAllTheirSlotsAndTheMapNamesTheFirst) {
  const ExpertPlacement placement(2, 2, {0, 1, 1, 0, 0, kEmptySlot});
  EXPECT_EQ(std::vector<int32_t>(placement.expert_to_slots(0).begin(), placement.expert_to_slots(0).end()), (std::vector<int32_t>{0, 3, 4}));
  EXPECT_EQ(placement.expert_map(1), (std::vector<int32_t>{0, -1}));
}

TEST(ExpertPlacement, InvalidOnesAreRefusedWithTheReason) {
  EXPECT_NE(refusal(2, 2, {0, 1, 0}).find("2 ranks, found 3 in all"), std::string::npos);
  EXPECT_NE(refusal(3, 1, {0, 1}).find("none for expert 2"), std::string::npos);
  EXPECT_NE(refusal(2, 1, {0, 1, 2}).find("experts 0 to 1, found 2"), std::string::npos);
  EXPECT_NE(refusal(2, 1, {0, 1, -2}).find("found -2"), std::string::npos);
  EXPECT_NE(refusal(2, 0, {0, 1}), "");
  EXPECT_NE(refusal(2, 1, {}), "");
}

}  // namespace
}  // namespace cadre
