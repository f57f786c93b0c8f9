#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

std::vector<BlockId> allocate(BlockPool& pool, int64_t count) {
  std::vector<BlockId> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(pool.allocate());
  return out;
}

void give_back(BlockPool& pool, std::vector<BlockId>* blocks) {
  for (const BlockId id : *blocks) pool.release(id);
  blocks->clear();
}

TEST(PrefixCache, FindsTheLongestRunOfLeadingKeys) {
  BlockPool pool(8);
  PrefixCache cache(pool);
  std::vector<int32_t> held;
  std::vector<BlockId> own = allocate(pool, 3);
  for (size_t i = 0; i < 3; ++i) cache.insert(10 + i, std::span(own).subspan(i, 1), &held);
  EXPECT_EQ(cache.num_idle_blocks(), 0);
  std::vector<int32_t> held2;
  std::vector<BlockId> shared;
  const std::vector<uint64_t> keys{10, 11, 99, 12};
  EXPECT_EQ(cache.acquire(keys, 10, &held2, &shared), 2);
  EXPECT_EQ(shared, (std::vector<BlockId>{own[0], own[1]}));
  EXPECT_EQ(pool.ref_count(own[0]), 3);  // the owner, the cache, the finder
  std::vector<int32_t> held3;
  std::vector<BlockId> first;
  EXPECT_EQ(cache.acquire(keys, 1, &held3, &first), 1);
  EXPECT_EQ(cache.acquire(std::vector<uint64_t>{11 + 50}, 1, &held3, &first), 0);
  cache.release(&held), cache.release(&held2), cache.release(&held3);
  give_back(pool, &own), give_back(pool, &shared), give_back(pool, &first);
  EXPECT_EQ(cache.num_idle_blocks(), 3);
  EXPECT_EQ(pool.num_free(), 5);
}

TEST(PrefixCache, EvictsWhatIsIdleLongestAndTheDeepestFirst) {
  BlockPool pool(6);
  PrefixCache cache(pool, 2);
  std::vector<int32_t> held, other;
  std::vector<BlockId> own = allocate(pool, 4), mine = allocate(pool, 2);
  cache.insert(1, std::span(own).first(2), &held);
  cache.insert(2, std::span(own).last(2), &held);
  cache.insert(7, mine, &other);
  cache.release(&held), give_back(pool, &own);
  cache.release(&other), give_back(pool, &mine);
  EXPECT_EQ(cache.num_idle_blocks(), 6);
  EXPECT_EQ(pool.num_free(), 0);
  cache.evict();
  EXPECT_EQ(pool.num_free(), 2);
  std::vector<BlockId> blocks;
  EXPECT_EQ(cache.acquire(std::vector<uint64_t>{1, 2}, 2, &held, &blocks), 1);  // 2 is gone, 1 is held again
  cache.evict();
  EXPECT_EQ(cache.acquire(std::vector<uint64_t>{7}, 1, &other, &blocks), 0);
  EXPECT_EQ(cache.num_idle_blocks(), 0);
  EXPECT_EQ(cache.num_entries(), 1);
}

TEST(PrefixCache, TwoThatComputeTheSameShareTheEntryAndKeepTheirBlocks) {
  BlockPool pool(2);
  PrefixCache cache(pool);
  std::vector<int32_t> held, other;
  std::vector<BlockId> own = allocate(pool, 1), mine = allocate(pool, 1);
  cache.insert(5, own, &held);
  cache.insert(5, mine, &other);
  EXPECT_EQ(pool.ref_count(mine[0]), 1);
  cache.release(&held), give_back(pool, &own);
  EXPECT_EQ(cache.num_idle_blocks(), 0);
  cache.release(&other), give_back(pool, &mine);
  EXPECT_EQ(cache.num_idle_blocks(), 1);
  EXPECT_EQ(pool.num_free(), 1);
}

}  // namespace
}  // namespace cadre
