#include "eplb/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "eplb/load_series.h"
#include "parallel/expert_load.h"
#include "tests/testing.h"

namespace cadre::eplb {
namespace {

constexpr double kRounding = 1e-9;

std::vector<double> skewed_load(Rng& rng, int64_t experts) {
  std::vector<double> out(static_cast<size_t>(experts));
  const double skew = 4 * rng.uniform();  // from even to a few hot ones
  for (double& l : out)
    l = std::floor(1000 * std::exp(skew * (rng.uniform() + rng.uniform() + rng.uniform() - 1.5) * 2));
  if (rng.below(8) == 0)
    for (double& l : out)
      if (rng.below(3) != 0) l = 0;
  if (rng.below(8) == 0) std::fill(out.begin(), out.end(), 7.0);
  return out;
}

Cluster random_cluster(Rng& rng) {
  Cluster c;
  c.num_experts = 1 + rng.below(96);
  c.ranks = 1 + static_cast<int>(rng.below(40));
  c.num_replicas = std::max<int64_t>(c.num_experts, c.ranks) + rng.below(48);
  return c;
}

// Slots of one layer, moves some experts' load elsewhere.
std::vector<double> shifted(Rng& rng, std::vector<double> load) {
  for (size_t i = 0; i < load.size() / 4 + 1; ++i)
    std::swap(load[rng.below(static_cast<uint32_t>(load.size()))], load[rng.below(static_cast<uint32_t>(load.size()))]);
  return load;
}

TEST(Deepseek, GivesThePublishedExample) {
  CADRE_DATA_OR_SKIP(data);
  const json::value file = parse_json_file(data / "expert_load" / "deepseek_eplb_example.json");
  const auto weight = json::value_to<std::vector<std::vector<double>>>(file.at("weight"));
  const auto expected = json::value_to<std::vector<std::vector<int32_t>>>(file.at("slot_to_expert"));
  const Cluster cluster{.num_experts = 12, .ranks = 8, .num_replicas = 16, .nodes = 2, .groups = 4};
  for (size_t l = 0; l < weight.size(); ++l) {
    const ExpertPlacement p = deepseek_hierarchical(weight[l], cluster);
    EXPECT_EQ(std::vector<int32_t>(p.slot_to_expert().begin(), p.slot_to_expert().end()), expected[l]);
  }
}

TEST(Deepseek, ReplicatesAndPacksByHand) {
  // Spare slots: to 90, which is 45 twice, then to 60. Packed 45, 45, 40, 30, 30, 10, each onto the emptier of two
  // ranks while it has one of its three slots: the second rank gets both replicas of 60.
  const std::vector<double> load{90, 40, 60, 10};
  const ExpertPlacement p = deepseek(load, {.num_experts = 4, .ranks = 2, .num_replicas = 6});
  EXPECT_EQ(std::vector<int32_t>(p.slot_to_expert().begin(), p.slot_to_expert().end()),
            (std::vector<int32_t>{0, 1, 3, 0, 2, 2}));
  EXPECT_EQ(rank_loads(p, load), (std::vector<double>{95, 105}));
  EXPECT_TRUE(has_doubled(p));
}

TEST(Deepseek, FallsBackToTheGlobalPolicyWhereNodesDoNotDivideGroups) {
  Rng rng(testing::seed());
  const std::vector<double> load = skewed_load(rng, 12);
  Cluster c{.num_experts = 12, .ranks = 6, .num_replicas = 18, .nodes = 3, .groups = 4};
  EXPECT_EQ(deepseek_hierarchical(load, c), deepseek(load, c));
}

TEST(Deepseek, HierarchyKeepsGroupsOnNodes) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  for (int i = 0; i < 100; ++i) {
    Cluster c{.ranks = 8, .nodes = 2, .groups = 4};
    c.num_experts = 4 * (2 + rng.below(8));
    c.num_replicas = c.num_experts + rng.below(30);
    const ExpertPlacement p = deepseek_hierarchical(skewed_load(rng, c.num_experts), c);
    for (int64_t g = 0; g < c.groups; ++g) {
      const int64_t per_group = c.num_experts / c.groups;
      const int node = p.rank_of_slot(p.expert_to_slots(g * per_group)[0]) / 4;
      for (int64_t e = g * per_group; e < (g + 1) * per_group; ++e)
        for (const int32_t slot : p.expert_to_slots(e)) EXPECT_EQ(p.rank_of_slot(slot) / 4, node) << "expert " << e;
    }
  }
}

// ExpertPlacement itself refuses a missing expert and unequal slots.
void expect_valid(const ExpertPlacement& p, const Cluster& c, bool fills) {
  EXPECT_EQ(p.ep(), c.ranks);
  EXPECT_EQ(p.slots_per_rank(), c.slots_per_rank());
  EXPECT_FALSE(has_doubled(p));
  int64_t placed = 0;
  for (const int32_t e : p.slot_to_expert()) placed += e != kEmptySlot;
  const int64_t wanted = fills ? c.ranks * c.slots_per_rank() : c.num_replicas;
  EXPECT_LE(placed, std::min<int64_t>(wanted, c.num_experts * c.ranks));
}

TEST(Cadre, IsValidEvenAndRepeatableAfresh) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  int below = 0;
  constexpr int kCases = 1500;
  for (int i = 0; i < kCases; ++i) {
    const Cluster c = random_cluster(rng);
    const std::vector<double> load = skewed_load(rng, c.num_experts);
    MoveRules rules;
    rules.fill_all_slots = rng.below(2) == 0;
    const LayerPlan plan = cadre(load, c, nullptr, rules);
    expect_valid(plan.placement, c, rules.fill_all_slots);
    EXPECT_NEAR(plan.balancedness, balancedness(plan.placement, load), kRounding);
    EXPECT_EQ(plan.placement, cadre(load, c, nullptr, rules).placement);
    const ExpertPlacement published = deepseek(load, c);
    // The published algorithm may put two replicas on a rank, of a load that they then share unevenly: the one thing
    // that cadre is bound not to copy.
    if (plan.balancedness >= balancedness(published, load) - kRounding) continue;
    ++below;
    EXPECT_TRUE(has_doubled(published)) << i << ": " << c.num_experts << " experts, " << c.num_replicas << " slots, "
                                        << c.ranks << " ranks";
  }
  EXPECT_LE(below, kCases / 50);
}

TEST(Cadre, IsAtLeastAsBalancedAsTheHierarchy) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  for (int i = 0; i < 200; ++i) {
    const Cluster c{.num_experts = 64,
                    .ranks = 8,
                    .num_replicas = 64 + 8 * static_cast<int64_t>(rng.below(4)),
                    .nodes = 2,
                    .groups = 8};
    const std::vector<double> load = skewed_load(rng, c.num_experts);
    const ExpertPlacement published = deepseek_hierarchical(load, c);
    if (has_doubled(published)) continue;
    EXPECT_GE(cadre(load, c).balancedness, balancedness(published, load) - kRounding);
  }
}

TEST(Cadre, MovesLittleFromTheCurrentPlacement) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  int below = 0;
  constexpr int kCases = 500;
  for (int i = 0; i < kCases; ++i) {
    const Cluster c = random_cluster(rng);
    const std::vector<double> load = skewed_load(rng, c.num_experts);
    const ExpertPlacement before = cadre(load, c).placement;
    // The same load: only what a plan afresh did not find.
    const LayerPlan again = cadre(load, c, &before);
    if (again.moved == 0) {
      EXPECT_EQ(again.placement, before);
    } else {
      EXPECT_GT(again.balancedness, balancedness(before, load));
    }
    const std::vector<double> later = shifted(rng, load);
    const LayerPlan plan = cadre(later, c, &before);
    expect_valid(plan.placement, c, true);
    EXPECT_EQ(plan.moved, moved_slots(before, plan.placement));
    EXPECT_EQ(plan.placement, cadre(later, c, &before).placement);
    EXPECT_GE(plan.balancedness, balancedness(before, later) - kRounding);
    const ExpertPlacement published = deepseek(later, c);
    if (plan.balancedness < balancedness(published, later) - kRounding) {
      ++below;
      EXPECT_TRUE(has_doubled(published));
    }
    // Experts that stay on their rank stay in their slot.
    for (size_t s = 0; s < before.slot_to_expert().size(); ++s) {
      const int32_t was = before.slot_to_expert()[s];
      if (was == kEmptySlot) continue;
      const auto now = plan.placement.experts_of(before.rank_of_slot(static_cast<int64_t>(s)));
      if (std::find(now.begin(), now.end(), was) == now.end()) continue;
      EXPECT_EQ(plan.placement.slot_to_expert()[s], was);
    }
  }
  EXPECT_LE(below, kCases / 50);
}

TEST(Cadre, PaysForNoMoveThatDoesNotRepay) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  for (int i = 0; i < 300; ++i) {
    const Cluster c = random_cluster(rng);
    const std::vector<double> load = skewed_load(rng, c.num_experts), later = shifted(rng, load);
    const ExpertPlacement before = cadre(load, c).placement;
    const auto fullest = [&](const ExpertPlacement& p) {
      const std::vector<double> loads = rank_loads(p, later);
      return *std::max_element(loads.begin(), loads.end());
    };
    MoveRules rules;
    rules.reach_reference = false;
    rules.rows_per_move = fullest(before) * 0.2 * rng.uniform() + 1e-3;
    const LayerPlan plan = cadre(later, c, &before, rules);
    EXPECT_GE(fullest(before) - fullest(plan.placement) + 1e-6, rules.rows_per_move * static_cast<double>(plan.moved));
    rules.rows_per_move = 1e18;
    EXPECT_EQ(cadre(later, c, &before, rules).moved, 0);
  }
}

TEST(Cadre, KeepsWhatItHasWithoutLoad) {
  const Cluster c{.num_experts = 8, .ranks = 4, .num_replicas = 12};
  const std::vector<double> none(8);
  const ExpertPlacement fresh = cadre(none, c).placement;
  expect_valid(fresh, c, true);
  EXPECT_EQ(cadre(none, c, &fresh).placement, fresh);
  EXPECT_EQ(cadre(none, c, &fresh).balancedness, 1);
}

TEST(Cadre, SpreadsAnExpertThatHasEverything) {
  const Cluster c{.num_experts = 8, .ranks = 4, .num_replicas = 12};
  std::vector<double> load(8);
  load[5] = 1000;
  const LayerPlan plan = cadre(load, c);
  EXPECT_EQ(plan.placement.expert_to_slots(5).size(), 4u);
  EXPECT_NEAR(plan.balancedness, 1, kRounding);
}

TEST(Balance, RefusesWhatItCannotPlan) {
  const auto refusal = [](const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  const std::vector<double> load{1, 2, 3, 4};
  EXPECT_NE(refusal([&] {
              deepseek(load, {.num_experts = 4, .ranks = 6, .num_replicas = 4});
            }).find("at least as many slots as ranks"),
            std::string::npos);
  EXPECT_NE(
      refusal([&] { cadre(load, {.num_experts = 4, .ranks = 2, .num_replicas = 3}); }).find("one for each expert"),
      std::string::npos);
  EXPECT_NE(refusal([&] {
              cadre(load, {.num_experts = 5, .ranks = 2, .num_replicas = 6});
            }).find("expected 5 experts, found 4"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              cadre(std::vector<double>{1, -1}, {.num_experts = 2, .ranks = 2, .num_replicas = 2});
            }).find("none below 0"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              cadre(std::vector<double>{1, NAN}, {.num_experts = 2, .ranks = 2, .num_replicas = 2});
            }).find("finite"),
            std::string::npos);
  EXPECT_NE(refusal([&] { parse_algorithm("best"); }).find("deepseek_hierarchical"), std::string::npos);
}

// Every layer of every record of a file, over some clusters; and where the published mean is below 0.99, the mean is above it.
// is_strict false: not without redundant slots where experts divide among ranks, as the published packing can then be the best there is.
// With one slot a rank there is nothing to pack: the published numbers of replicas are the best.
void expect_never_below(const LoadSeries& series, std::span<const int> ranks, std::span<const int64_t> redundant, bool is_strict) {
  for (const int r : ranks)
    for (const int64_t extra : redundant) {
      const Cluster c{.num_experts = series.num_experts, .ranks = r, .num_replicas = series.num_experts + extra};
      if (c.num_replicas < r) continue;
      double mean = 0, published_mean = 0;
      for (int64_t s = 0; s < static_cast<int64_t>(series.steps.size()); ++s)
        for (int64_t l = 0; l < series.num_layers(); ++l) {
          const auto load = series.of(s, l);
          const LayerPlan plan = cadre(load, c);
          const double published = balancedness(deepseek(load, c), load);
          EXPECT_GE(plan.balancedness, published - kRounding)
              << r << " ranks, " << extra << " redundant, " << series.steps[static_cast<size_t>(s)].name << ", layer "
              << l;
          mean += plan.balancedness, published_mean += published;
        }
      const double layers = static_cast<double>(series.num_layers()) * static_cast<double>(series.steps.size());
      const bool can_be_best = c.slots_per_rank() == 1 || (!is_strict && extra == 0 && c.num_experts % r == 0);
      if (published_mean / layers < 0.99 && !can_be_best) {
        EXPECT_GT(mean, published_mean) << r << " ranks, " << extra << " redundant";
      }
    }
}

TEST(Cadre, IsNeverBelowThePublishedAlgorithmOnDeepseekR1) {
  CADRE_DATA_OR_SKIP(data);
  const int ranks[] = {8, 16, 32, 64, 72, 144};
  const int64_t redundant[] = {0, 32, 64};
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(data / "expert_load" / "deepseek_r1")) {
    SCOPED_TRACE(entry.path().filename().string());
    expect_never_below(read_load(entry.path()), ranks, redundant, true);
    ++files;
  }
  EXPECT_GT(files, 0);
  SCOPED_TRACE("skewed");
  const int few[] = {8, 32, 144};
  expect_never_below(read_load(data / "expert_load" / "deepseek_r1_skewed_1k1k.json"), few, redundant, false);
}

TEST(Cadre, IsNeverBelowThePublishedAlgorithmOnSmallerModels) {
  CADRE_DATA_OR_SKIP(data);
  const std::filesystem::path loads = data / "expert_load";
  const int ranks[] = {2, 4, 8, 12, 16};
  const int64_t redundant[] = {0, 8, 16};
  expect_never_below(read_load(loads / "demo_model_by_domain.json"), ranks, redundant, false);
  for (const char* model : {"OLMoE-1B-7B", "OLMoE-1B-7B-SFT", "OLMoE-1B-7B-DPO", "Mixtral-8x7B"})
    for (const char* kind : {"topk", "top1"}) {
      if (kind == std::string_view("top1") && std::string_view(model).size() > 12) continue;  // not recorded
      SCOPED_TRACE(fmt::format("{} {}", model, kind));
      expect_never_below(read_load(loads / "olmoe_paper" / "expert_counts.jsonl", {.only = {{"model", model}, {"kind", kind}}}), ranks, redundant, false);
    }
  SCOPED_TRACE("gpt-oss");
  expect_never_below(read_load(loads / "gptoss20b_tokens" / "counts_by_category.jsonl"), ranks, redundant, false);
}

}  // namespace
}  // namespace cadre::eplb
