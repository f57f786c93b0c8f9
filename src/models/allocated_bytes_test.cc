// What the arithmetic says a rank allocates, against what decoders and caches have allocated: weights and KV pools, to the byte.
#include "parallel/allocated_bytes.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "comm/inproc/inproc_world.h"
#include "comm/rank_groups.h"
#include "config/bytes.h"
#include "config/test_configs.h"
#include "kv/kv_store.h"
#include "models/decoder.h"
#include "models/quantization.h"
#include "parallel/options.h"
#include "tests/testing.h"

namespace cadre {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kConfigurations = 100;
#else
constexpr int kConfigurations = 1000;
#endif

template <typename T>
T pick(Rng& rng, std::initializer_list<T> values) { return values.begin()[rng.below(static_cast<uint32_t>(values.size()))]; }

json::object random_sizes(Rng& rng, std::string_view type) {
  json::object c = testing::small_config_with(type, "{}");
  const bool is_mla = type.starts_with("deepseek");
  const int64_t heads = pick(rng, {4, 8, 12, 16});
  c["hidden_size"] = type == "gpt_oss" ? 64 : pick(rng, {32, 64, 96, 160});
  c["num_hidden_layers"] = 1 + rng.below(4);
  c["vocab_size"] = 20 + rng.below(100);
  c["num_attention_heads"] = heads;
  c["intermediate_size"] = type == "gpt_oss" ? pick(rng, {32, 64, 128, 256}) : 4 * (1 + rng.below(64));
  if (is_mla) {
    c["num_key_value_heads"] = heads;
    c["qk_nope_head_dim"] = 8 * (1 + rng.below(6)), c["v_head_dim"] = 8 * (1 + rng.below(6)), c["kv_lora_rank"] = 16 * (1 + rng.below(5));
    if (type == "deepseek_v3") c["q_lora_rank"] = rng.below(3) ? json::value(8 * (1 + rng.below(12))) : json::value(nullptr);
    c["first_k_dense_replace"] = rng.below(2);
    c["n_shared_experts"] = rng.below(3);
  } else {
    c["num_key_value_heads"] = pick(rng, {heads, heads / 2, heads / 4});
    if (c.contains("head_dim")) c["head_dim"] = type == "gpt_oss" ? 32 : 8 * (1 + rng.below(5));
    else c["hidden_size"] = heads * 8;
  }
  if (c.contains("moe_intermediate_size")) c["moe_intermediate_size"] = 4 * (1 + rng.below(80));
  if (c.contains("shared_expert_intermediate_size")) c["shared_expert_intermediate_size"] = 4 * rng.below(40);
  for (const char* key : {"num_experts", "num_local_experts"})
    if (c.contains(key)) c[key] = 4 + rng.below(10);
  if (type == "gpt_oss") c["layer_types"] = json::array(static_cast<size_t>(c["num_hidden_layers"].to_number<int64_t>()), "full_attention");
  if (!is_mla) c["tie_word_embeddings"] = rng.below(2) == 1;
  c["torch_dtype"] = pick<const char*>(rng, {"bfloat16", "float16", "float32"});
  if (type == "gpt_oss" && rng.below(2)) c["quantization_config"] = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"}}};
  if ((is_mla || type == "qwen3_moe" || type == "glm4_moe" || type == "qwen3") && rng.below(2))
    c["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  return c;
}

ParallelOptions random_ranks(Rng& rng, int world, bool has_experts) {
  ParallelOptions o;
  o.tp_size = world;
  o.dp_size = std::min(world, pick(rng, {1, 2, 4}));
  o.enable_dp_attention = true;
  if (has_experts) {
    o.ep_size = std::min(world, pick(rng, {1, 2, 4}));
    o.num_redundant_experts = *o.ep_size > 1 && rng.below(2) ? rng.below(5) : 0;
    o.expert_placement_strategy = pick<const char*>(rng, {"linear", "round_robin"});
    if (*o.ep_size > 1) o.moe_a2a_backend = pick<const char*>(rng, {"auto", "alltoall", "alltoall_low_latency", "allgather_reducescatter"});
  }
  if (rng.below(2)) o.moe_dense_tp_size = pick(rng, {1, world});
  return o;
}

void expect_equal(const ModelConfig& config, const Layout& layout, DType kv_dtype, std::optional<WeightFormat> quantization, int64_t blocks, uint64_t seed) {
  const std::vector<TensorClass> classes = tensor_classes(config);
  const int64_t experts = config.moe.router.num_experts;
  const int64_t slots = experts > 0 ? ExpertPlacement::initial(experts, layout.ep, layout.placement, layout.redundant_experts).slots_per_rank() : 0;
  std::vector<int64_t> weights(static_cast<size_t>(layout.world)), kv(weights.size());
  const auto load = [&](int rank, RankGroups* groups) {
    const auto source = make_dummy_weights(config, seed);
    const Decoder decoder(config, *source, {.max_batched_tokens = 16, .kv_dtype = kv_dtype, .quantization = quantization, .groups = groups});
    weights[static_cast<size_t>(rank)] = decoder.weight_bytes();
    kv[static_cast<size_t>(rank)] = KvStore(decoder.kv_layout(), blocks).bytes();
  };
  if (layout.world == 1) {
    load(0, nullptr);
  } else {
    auto worlds = make_inproc_worlds(layout.world);
    std::vector<std::thread> threads;  // making groups is a collective
    for (int rank = 0; rank < layout.world; ++rank)
      threads.emplace_back([&, rank] {
        RankGroups groups(*worlds[static_cast<size_t>(rank)], layout, config.num_layers);
        load(rank, &groups);
      });
    for (std::thread& t : threads) t.join();
  }
  for (int rank = 0; rank < layout.world; ++rank) {
    EXPECT_EQ(allocated_bytes(classes, config, layout, slots, rank, quantization).total(), weights[static_cast<size_t>(rank)]) << "rank " << rank;
    EXPECT_EQ(rank_kv_bytes_per_token(config, layout, kv_dtype) * kKvBlockTokens * blocks, kv[static_cast<size_t>(rank)]) << "rank " << rank;
  }
}

TEST(AllocatedBytes, EqualThePlansForAThousandLegalConfigurations) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  Rng rng(seed);
  int on_one = 0, on_four = 0, quantized = 0, converted = 0;
  for (int tried = 0; on_one + on_four < kConfigurations && !::testing::Test::HasFailure(); ++tried) {
    ASSERT_LT(tried, 20000);
    const std::string_view type = testing::kModelTypes[rng.below(std::size(testing::kModelTypes))];
    const json::object sizes = random_sizes(rng, type);
    const int world = rng.below(2) ? 4 : 1;
    ModelConfig config;
    ResolvedLayout resolved;
    try {
      config = parse_model_config(parse_json(json::serialize(sizes), "sizes").as_object());
      resolved = resolve_layout(random_ranks(rng, world, config.moe.router.num_experts > 0), config);
    } catch (const Error&) {
      continue;  // not legal
    }
    SCOPED_TRACE(json::serialize(sizes) + fmt::format(" dp {} tp {} ep {} dense {}", resolved.layout.attn_dp, resolved.layout.attn_tp, resolved.layout.ep, resolved.layout.dense_tp));
    // Converted when loaded, where the layout allows it.
    std::optional<WeightFormat> quantization;
    try {
      const auto format = parse_quantization(pick<const char*>(rng, {"none", "none", "int8", "int4", "bfloat16", "float32"}));
      if (format) check_quantization(config, resolved.layout, *format, DType::kF32);
      quantization = format;
    } catch (const Error&) {
    }
    converted += quantization.has_value();
    expect_equal(config, resolved.layout, rng.below(2) ? DType::kBF16 : DType::kF32, quantization, 1 + rng.below(40), seed);
    ++(world == 1 ? on_one : on_four);
    quantized += config.quant != WeightQuant::kNone;
  }
  std::printf("%d on one rank, %d on four, %d quantised, %d converted when loaded\n", on_one, on_four, quantized, converted);
  EXPECT_GT(converted, kConfigurations / 10);
  EXPECT_GT(on_one, kConfigurations / 5);
  EXPECT_GT(on_four, kConfigurations / 5);
  EXPECT_GT(quantized, kConfigurations / 10);
}

}  // namespace
}  // namespace cadre
