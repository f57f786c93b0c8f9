#include "parallel/kv_budget.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

TEST(KvBudget, SharesMemoryAmongRanksAndStopsAtWhatSequencesCanFill) {
  const KvBudget budget{.bytes = 10'000, .num_ranks = 2, .token_bytes = 10, .max_num_seqs = 100, .max_model_len = 1000};
  EXPECT_EQ(kv_blocks_in(budget), 31);  // 5000 / 160
  KvBudget few = budget;
  few.max_num_seqs = 2, few.max_model_len = 33;
  EXPECT_EQ(kv_blocks_in(few), 6);  // three blocks each
  KvBudget poor = budget;
  poor.bytes = 319;
  EXPECT_EQ(kv_blocks_in(poor), 0);
  poor.bytes = -5;
  EXPECT_EQ(kv_blocks_in(poor), 0);
}

TEST(KvBudget, UnlessToldTheCacheLeavesRoomForTheWeights) {
  EXPECT_EQ(kv_bytes_unless_told(1000, 0), 400);
  EXPECT_EQ(kv_bytes_unless_told(1000, 500), 400);
  EXPECT_EQ(kv_bytes_unless_told(1000, 900), 90);
  EXPECT_EQ(kv_bytes_unless_told(1000, 2000), 0);
  EXPECT_EQ(kv_bytes_unless_told(-5, 0), 0);
}

}  // namespace
}  // namespace cadre
