// Experts on the way: every transfer of a random change of placement, in pieces, over threads; who sends; and the window.
#include "eplb/layer_move.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/rng.h"
#include "comm/inproc/inproc_world.h"
#include "comm/test_ranks.h"
#include "eplb/load_window.h"
#include "tests/testing.h"

namespace cadre::eplb {
namespace {

using testing::run_ranks;

ExpertPlacement random_placement(Rng& rng, int64_t num_experts, int ep, int64_t slots_per_rank) {
  std::vector<int32_t> slots(static_cast<size_t>(ep * slots_per_rank), kEmptySlot);
  for (size_t s = 0; s < slots.size(); ++s) {
    if (static_cast<int64_t>(s) < num_experts) slots[s] = static_cast<int32_t>(s);
    else if (rng.below(3) > 0) slots[s] = static_cast<int32_t>(rng.below(static_cast<uint32_t>(num_experts)));
  }
  std::shuffle(slots.begin(), slots.end(), rng);
  return ExpertPlacement(num_experts, ep, std::move(slots));
}

// What slot memory of an expert's part holds, so that a byte out of place shows.
std::byte content(int32_t expert, int moe_tp, int64_t i) { return static_cast<std::byte>((expert * 131 + moe_tp * 17 + i * 7 + (i >> 8)) & 255); }

void fill(Experts& experts, const ExpertPlacement& placement, const RankCoords& c) {
  const auto mine = placement.experts_of(c.ep);
  for (size_t s = 0; s < mine.size(); ++s)
    for (int64_t i = 0; i < experts.layout().slot_bytes; ++i) experts.slot(static_cast<int64_t>(s))[i] = mine[s] == kEmptySlot ? std::byte{0} : content(mine[s], c.moe_tp, i);
}

::testing::AssertionResult holds_all(const Experts& experts, const ExpertPlacement& placement, const RankCoords& c) {
  const auto mine = placement.experts_of(c.ep);
  std::set<const std::byte*> memory;
  for (size_t s = 0; s < mine.size(); ++s) {
    const std::byte* slot = experts.slot(static_cast<int64_t>(s));
    if (!memory.insert(slot).second) return ::testing::AssertionFailure() << "slot " << s << " shares its memory";
    for (int64_t i = 0; mine[s] != kEmptySlot && i < experts.layout().slot_bytes; ++i)
      if (slot[i] != content(mine[s], c.moe_tp, i)) return ::testing::AssertionFailure() << "rank " << c.world << " slot " << s << " byte " << i << " of expert " << mine[s];
  }
  return ::testing::AssertionSuccess();
}

TEST(LayerMove, AnyPlacementIsReachedFromAnyOtherInPieces) {
  SCOPED_TRACE(testing::seed());
  const ExpertLayout layout(WeightFormat::kF32, 32, 32, true);
  for (const auto& [ep, moe_tp] : {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 1}, {2, 2}, {7, 1}}) {
    SCOPED_TRACE(ep);
    Layout l;
    l.world = l.attn_dp = ep * moe_tp, l.ep = ep, l.moe_tp = moe_tp;
    run_ranks(make_inproc_worlds(l.world), [&, ep = ep](CommWorld& world) {
      Group group("world", world.make_transport("world", testing::all_members(l.world)));
      const RankCoords c = l.coords(world.rank());
      const int64_t num_experts = 9, slots = (num_experts + 4 + ep) / ep;
      Rng rng(testing::seed(), static_cast<uint64_t>(ep));  // the same on all ranks
      Experts first(layout, slots, {}), second(layout, slots, {});
      SpareSlots spares(layout.slot_bytes, slots);
      ExpertPlacement now[2] = {random_placement(rng, num_experts, ep, slots), random_placement(rng, num_experts, ep, slots)};
      fill(first, now[0], c);
      fill(second, now[1], c);
      // Layers in turn, so that memory wanders between them.
      for (int round = 0; round < 12; ++round) {
        Experts& experts = round % 2 ? second : first;
        ExpertPlacement& placement = now[round % 2];
        const ExpertPlacement target = random_placement(rng, num_experts, ep, slots);
        LayerMove move(l, world.rank(), placement, target, experts, spares, round % 3 == 0 ? 2 : 0);
        while (!move.has_arrived()) {
          EXPECT_TRUE(holds_all(experts, placement, c)) << "before the switch";
          move.send_piece(group, 1 + rng.below(static_cast<uint32_t>(layout.slot_bytes)));
        }
        move.switch_over();
        placement = target;
        ASSERT_TRUE(holds_all(experts, placement, c)) << "round " << round;
        ASSERT_TRUE(holds_all(round % 2 ? first : second, now[1 - round % 2], c)) << "the other layer, round " << round;
      }
    });
  }
}

TEST(LayerMove, OnlyWhatARankLacksIsSentByTheNearestAndLeastBusyHolder) {
  // Ranks 0 and 1 are one node, 2 and 3 the other.
  const ExpertPlacement from(4, 4, {0, 1, 1, 2, 2, 3, 3, 0}), to(4, 4, {1, 3, 2, 1, 0, 1, 3, 0});
  const std::vector<Transfer> expected{{5, 1, 2, 0}, {7, 4, 3, 2}, {1, 5, 0, 2}};
  EXPECT_EQ(plan_transfers(from, to, 2), expected);
  EXPECT_TRUE(plan_transfers(from, from).empty());
}

TEST(LoadWindow, HoldsTheSumOfTheLastSteps) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed(), 5);
  LoadWindow window(2, 3, 4);
  std::vector<std::vector<int64_t>> steps;
  for (int step = 0; step < 20; ++step) {
    std::vector<int64_t> counts(6);
    for (uint32_t n = rng.below(5); n > 0; --n) {
      const int32_t ids[2] = {static_cast<int32_t>(rng.below(3)), static_cast<int32_t>(rng.below(3))};
      const int64_t layer = rng.below(2);
      window.add(layer, ids);
      for (const int32_t id : ids) ++counts[static_cast<size_t>(layer * 3 + id)];
    }
    window.end_step();
    steps.push_back(counts);
    std::vector<int64_t> expected(6);
    for (size_t s = steps.size() < 4 ? 0 : steps.size() - 4; s < steps.size(); ++s)
      for (size_t i = 0; i < 6; ++i) expected[i] += steps[s][i];
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), window.sums().begin(), window.sums().end())) << "step " << step;
    EXPECT_EQ(window.num_steps(), std::min<int64_t>(4, step + 1));
  }
}

}  // namespace
}  // namespace cadre::eplb
