#include "parallel/rank_bytes.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "config/bytes.h"
#include "config/test_configs.h"
#include "parallel/options.h"
#include "tests/testing.h"

namespace cadre {
namespace {

struct Named {
  std::string name;
  ModelConfig config;
};

// Every configuration of tests/reference, and the small ones of each family.
std::vector<Named> models() {
  std::vector<Named> out;
  for (const auto& entry : std::filesystem::directory_iterator(testing::source_dir() / "tests" / "reference"))
    if (std::filesystem::exists(entry.path() / "config.json")) out.push_back({entry.path().filename().string(), load_model_config(entry.path())});
  for (const std::string_view type : testing::kModelTypes) out.push_back({"small " + std::string(type), parse_model_config(testing::small_config_with(type, "{}"))});
  return out;
}

ExpertPlacement placement_of(const ModelConfig& config, const Layout& layout) {
  if (config.moe.router.num_experts == 0) return {};
  return ExpertPlacement::initial(config.moe.router.num_experts, layout.ep, layout.placement);
}

// The layouts of the equivalence matrix and some more, where this model allows them.
std::vector<Layout> layouts(const ModelConfig& config) {
  std::vector<Layout> out;
  for (const int world : {1, 2, 3, 4, 6, 8})
    for (int dp = 1; dp <= world; ++dp)
      for (int ep = 1; ep <= world; ++ep)
        for (const int dense_tp : {1, world}) {
          ParallelOptions o;
          o.tp_size = world, o.dp_size = dp, o.enable_dp_attention = true, o.ep_size = ep, o.moe_dense_tp_size = dense_tp;
          o.expert_placement_strategy = ep % 2 ? "linear" : "round_robin";
          try {
            out.push_back(resolve_layout(o, config).layout);
          } catch (const Error&) {
          }
        }
  return out;
}

// How many ranks hold the same value of a tensor, by what it is shared by.
int64_t copies(const TensorShard& shard, const ModelConfig& config, const Layout& l) {
  const bool is_expert = shard.expert != TensorShard::kNoExpert;
  switch (shard.by) {
    case ShardBy::kNothing: return is_expert ? l.moe_tp : l.world;
    case ShardBy::kQueryHeads: return l.world / l.attn_tp;
    case ShardBy::kKvHeads: return l.world / std::min<int64_t>(l.attn_tp, config.attention.num_kv_heads);
    case ShardBy::kDenseWidth: return l.world / l.dense_tp;
    case ShardBy::kSharedWidth: return l.exchange == ExchangeKind::kNone ? 1 : l.world;
    case ShardBy::kExpertWidth: return 1;
  }
  return 0;
}

TEST(RankBytes, EveryValueIsHeldAsOftenAsItsShareSaysAndRanksAddUpToTheCheckpoint) {
  for (const auto& [name, config] : models()) {
    const auto specs = checkpoint_tensors(config);
    const auto all = layouts(config);
    EXPECT_GE(all.size(), 2u) << name;
    for (const Layout& layout : all) {
      SCOPED_TRACE(fmt::format("{}: world {} dp {} ep {} dense {}", name, layout.world, layout.attn_dp, layout.ep, layout.dense_tp));
      int64_t checkpoint = 0, replicated = 0;
      for (const TensorSpec& spec : specs) {
        if (spec.kind == TensorKind::kNextN) continue;
        checkpoint += spec.bytes();
        const TensorShard shard = tensor_shard_of(spec, config);
        const int64_t along = spec.shape[static_cast<size_t>(shard.dim)], each = spec.bytes() / along;
        std::vector<int> holders(static_cast<size_t>(along));
        for (int rank = 0; rank < layout.world; ++rank) {
          const int ep = layout.coords(rank).ep;
          if (shard.expert >= 0 && placement_of(config, layout).expert_map(ep)[static_cast<size_t>(shard.expert)] < 0) continue;
          if (shard.expert == TensorShard::kAllExperts && ep != 0) continue;  // look at the first rank's experts
          const Slice s = shard_slice(shard, spec, config, layout, rank);
          for (int64_t i = s.first; i < s.first + s.count; ++i) ++holders[static_cast<size_t>(i)];
        }
        for (const int n : holders) {
          const int64_t want = copies(shard, config, layout);
          if (spec.is_scale) {
            ASSERT_GE(n, want) << spec.name;  // ranks may share a scale
          } else {
            ASSERT_EQ(n, want) << spec.name;
          }
          replicated += (n - 1) * each;
        }
      }
      int64_t held = 0;
      for (const RankBytes& bytes : rank_bytes(config, layout, placement_of(config, layout))) held += bytes.total();
      ASSERT_EQ(held - replicated, checkpoint);
    }
  }
}

TEST(RankBytes, OneRankHoldsTheCheckpointByKind) {
  for (const auto& [name, config] : models()) {
    std::map<TensorKind, int64_t> sums;
    for (const TensorSpec& spec : checkpoint_tensors(config)) sums[spec.kind] += spec.bytes();
    const RankBytes b = rank_bytes(config, {}, placement_of(config, {}))[0];
    EXPECT_EQ(b, (RankBytes{sums[TensorKind::kEmbedding], sums[TensorKind::kHead], sums[TensorKind::kNorm], sums[TensorKind::kAttention], sums[TensorKind::kDenseMlp],
                            sums[TensorKind::kRouter], sums[TensorKind::kSharedExpert], sums[TensorKind::kRoutedExpert]}))
        << name;
  }
}

TEST(RankBytes, WhatTheExchangeReplicatesByHand) {
  // 16 experts of 3 * 32 * 64 bfloat16 values in 2 sparse layers; a shared expert of the same size.
  const ModelConfig config = parse_model_config(testing::small_config_with("deepseek_v3", "{}"));
  const int64_t expert = 3 * 32 * 64 * 2, dense = 3 * 96 * 64 * 2;
  const Layout with_ep{.world = 4, .attn_dp = 4, .ep = 4, .exchange = ExchangeKind::kAllToAll};
  for (const RankBytes& b : rank_bytes(config, with_ep, placement_of(config, with_ep))) {
    EXPECT_EQ(b.routed, 2 * 4 * expert);
    EXPECT_EQ(b.shared, 2 * expert);
    EXPECT_EQ(b.dense, dense);
    EXPECT_EQ(b.router, 2 * (16 * 64 * 2 + 16 * 4));
    EXPECT_EQ(b.embedding, 320 * 64 * 2);
  }
  const Layout without{.world = 4, .attn_tp = 4, .moe_tp = 4, .dense_tp = 4};
  const auto split = rank_bytes(config, without, placement_of(config, without));
  for (const RankBytes& b : split) {
    EXPECT_EQ(b.routed, 2 * 16 * expert / 4);
    EXPECT_EQ(b.shared, 2 * expert / 4);
    EXPECT_EQ(b.dense, dense / 4);
    EXPECT_EQ(b.router, 2 * (16 * 64 * 2 + 16 * 4));
  }
  const Layout uneven{.world = 3, .attn_dp = 3, .ep = 3, .exchange = ExchangeKind::kAllToAll};
  const auto thirds = rank_bytes(config, uneven, placement_of(config, uneven));
  EXPECT_EQ(thirds[0].routed, 2 * 6 * expert);
  EXPECT_EQ(thirds[2].routed, 2 * 5 * expert);
  const Layout both{.world = 4, .attn_dp = 4, .ep = 2, .moe_tp = 2, .exchange = ExchangeKind::kAllToAll};
  for (const RankBytes& b : rank_bytes(config, both, placement_of(config, both))) EXPECT_EQ(b.routed, 2 * 8 * expert / 2);
}

TEST(RankBytes, LatentAttentionSplitsHeadsAndKeepsDownProjections) {
  const ModelConfig config = parse_model_config(testing::small_config_with("deepseek_v3", "{}"));
  const Layout layout{.world = 4, .attn_tp = 4, .ep = 4, .exchange = ExchangeKind::kAllToAll};
  // Per layer and rank: q_a 48 x 64, kv_a 48 x 64 whole; of q_b 48 x 48, kv_b 64 x 32, o 64 x 32 one head of four.
  for (const RankBytes& b : rank_bytes(config, layout, placement_of(config, layout)))
    EXPECT_EQ(b.attention, 3 * 2 * (48 * 64 + 48 * 64 + 48 * 48 + 64 * 32 + 64 * 32));
}

TEST(RankBytes, KvHeadsAndBytesFollowTheShare) {
  const ModelConfig qwen = parse_model_config(testing::small_config_with("qwen3_moe", "{}"));  // 2 KV heads of 32, 4 layers
  const int64_t head = 2 * 32 * 4 * 4;
  EXPECT_EQ(rank_kv_bytes_per_token(qwen, {}, DType::kF32), kv_bytes_per_token(qwen, DType::kF32));
  EXPECT_EQ(rank_kv_bytes_per_token(qwen, {.world = 2, .attn_tp = 2, .moe_tp = 2}, DType::kF32), head);
  const Layout eight{.world = 8, .attn_tp = 8, .moe_tp = 8};
  EXPECT_EQ(rank_kv_bytes_per_token(qwen, eight, DType::kF32), head);
  EXPECT_EQ(rank_kv_heads(qwen, eight, 3), (Slice{0, 1}));
  EXPECT_EQ(rank_kv_heads(qwen, eight, 4), (Slice{1, 1}));
  const ModelConfig deepseek = parse_model_config(testing::small_config_with("deepseek_v3", "{}"));
  EXPECT_EQ(rank_kv_bytes_per_token(deepseek, {.world = 4, .attn_tp = 4, .moe_tp = 4}, DType::kBF16), kv_bytes_per_token(deepseek, DType::kBF16));
  EXPECT_EQ(rank_kv_heads(deepseek, {}, 0).count, 0);
}

// The seed's figures: an FP8 checkpoint of 671 GB, 11.41 GB of it attention; 44 MB an expert.
TEST(RankBytes, DeepseekV3AsTheSeedWeighsIt) {
  CADRE_DATA_OR_SKIP(data);
  const ModelConfig config = load_model_config(data / "configs/hf/deepseek-ai--DeepSeek-V3_config.json");
  const RankBytes one = rank_bytes(config, {}, placement_of(config, {}))[0];
  EXPECT_NEAR(static_cast<double>(one.attention), 11.41e9, 0.02e9);
  const Layout dp16{.world = 16, .attn_dp = 16, .ep = 16, .exchange = ExchangeKind::kAllToAll}, tp16{.world = 16, .attn_tp = 16, .moe_tp = 16, .dense_tp = 16};
  const auto wide = rank_bytes(config, dp16, placement_of(config, dp16)), split = rank_bytes(config, tp16, placement_of(config, tp16));
  EXPECT_EQ(wide[5].attention, one.attention);
  EXPECT_EQ(wide[5].routed * 16, one.routed);
  EXPECT_EQ(wide[5].routed, 58 * 16 * expert_bytes(config));
  EXPECT_NEAR(static_cast<double>(wide[5].attention - split[5].attention), 10.7e9, 1.4e9);  // the seed splits q_a and kv_a too
  EXPECT_EQ(rank_kv_bytes_per_token(config, dp16, DType::kBF16), 70'272);
}

TEST(RankBytes, ServedPublishedModelsAddUp) {
  CADRE_DATA_OR_SKIP(data);
  int num_models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(data / "configs/hf")) {
    ModelConfig config;
    try {
      config = load_model_config(entry.path());
    } catch (const Error&) {
      continue;  // not served
    }
    ++num_models;
    SCOPED_TRACE(entry.path().filename().string());
    const RankBytes one = rank_bytes(config, {}, placement_of(config, {}))[0];
    for (const auto& [dp, ep] : {std::pair{4, 2}, {2, 4}, {3, 3}, {1, 1}}) {
      ParallelOptions o;
      o.tp_size = dp == 3 ? 3 : 4, o.dp_size = dp, o.enable_dp_attention = true;
      if (config.moe.router.num_experts > 0) o.ep_size = ep;
      Layout layout;
      try {
        layout = resolve_layout(o, config).layout;
      } catch (const Error&) {
        continue;
      }
      RankBytes sum;
      for (const RankBytes& b : rank_bytes(config, layout, placement_of(config, layout)))
        sum.routed += b.routed, sum.embedding += b.embedding, sum.router += b.router, sum.dense += b.dense, sum.attention += b.attention;
      // What is whole on each rank beside the experts' slices: output biases, and scales that two slices share.
      EXPECT_GE(sum.routed, one.routed);
      EXPECT_LE(static_cast<double>(sum.routed), static_cast<double>(one.routed) * 1.002);
      if (layout.moe_tp == 1) { EXPECT_EQ(sum.routed, one.routed); }
      EXPECT_EQ(sum.embedding, one.embedding * layout.world);
      EXPECT_EQ(sum.router, one.router * layout.world);
      EXPECT_GE(sum.attention, one.attention * layout.attn_dp);
      if (layout.attn_tp == 1) { EXPECT_EQ(sum.attention, one.attention * layout.world); }
      EXPECT_GE(sum.dense, one.dense * (layout.world / layout.dense_tp));
    }
  }
  EXPECT_GE(num_models, 20);
}

}  // namespace
}  // namespace cadre
