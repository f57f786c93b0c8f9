#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "tests/testing.h"

namespace cadre {
namespace {

TEST(BlockPool, GivesEachBlockOnceAndTakesItBack) {
  BlockPool pool(5);
  std::set<BlockId> ids;
  for (int i = 0; i < 5; ++i) ids.insert(pool.allocate());
  EXPECT_EQ(ids, (std::set<BlockId>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.num_free(), 0);
  pool.add_ref(3);
  pool.release(3);
  EXPECT_EQ(pool.num_free(), 0);
  pool.release(3);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.allocate(), 3);
}

TEST(BlockPoolDeathTest, MisuseIsABug) {
  BlockPool pool(1);
  EXPECT_DEATH(pool.release(0), "is free");
  EXPECT_DEATH(pool.add_ref(0), "is free");
  EXPECT_DEATH(pool.release(1), "block 1 of 1");
  pool.allocate();
  EXPECT_DEATH(pool.allocate(), "all 1 blocks are taken");
}

// Against a map of counts, over random calls; a second pool given the same calls gives the same ids.
TEST(BlockPool, AgreesWithAMapOfCounts) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  for (int round = 0; round < 20; ++round) {
    const int64_t num_blocks = 1 + rng.below(40);
    BlockPool pool(num_blocks), twin(num_blocks);
    std::map<BlockId, int> held;
    for (int i = 0; i < 500; ++i) {
      const uint32_t what = rng.below(3);
      if (what == 0 && pool.num_free() > 0) {
        const BlockId id = pool.allocate();
        ASSERT_EQ(twin.allocate(), id);
        ASSERT_TRUE(held.emplace(id, 1).second);
      } else if (what != 0 && !held.empty()) {
        auto it = std::next(held.begin(), rng.below(static_cast<uint32_t>(held.size())));
        what == 1 ? pool.add_ref(it->first) : pool.release(it->first);
        what == 1 ? twin.add_ref(it->first) : twin.release(it->first);
        it->second += what == 1 ? 1 : -1;
        if (it->second == 0) held.erase(it);
      }
      ASSERT_EQ(pool.num_free(), num_blocks - static_cast<int64_t>(held.size()));
      for (const auto& [id, count] : held) ASSERT_EQ(pool.ref_count(id), count);
    }
  }
}

}  // namespace
}  // namespace cadre
