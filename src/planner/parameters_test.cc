// Parameters by kind against what model cards and reports publish, and bytes by kind in every weight type.
#include <gtest/gtest.h>

#include <fstream>
#include <tuple>

#include "base/error.h"
#include "base/rng.h"
#include "config/bytes.h"
#include "config/test_configs.h"
#include "parallel/options.h"
#include "planner/known_model.h"
#include "planner/planned_model.h"
#include "tests/testing.h"

namespace cadre::planner {
namespace {

struct Published {
  const char* file;
  double total_billions, active_billions;  // as printed; active 0: a dense model
  double digits;                           // half of the last digit printed
  // Which parameters "active" leaves out: publishers count the embedding, or the embedding and the head, or neither.
  enum { kAll, kNoEmbedding, kNoEmbeddingNoHead } counts;
  const char* source;
};

constexpr Published kPublished[] = {
    {"deepseek-ai--DeepSeek-V3", 671, 37, 0.7, Published::kNoEmbedding, "DeepSeek-V3 Technical Report, abstract: 671B, 37B activated"},
    {"deepseek-ai--DeepSeek-R1", 671, 37, 0.7, Published::kNoEmbedding, "DeepSeek-R1 model card: 671B, 37B"},
    {"deepseek-ai--DeepSeek-V3.1", 671, 37, 0.7, Published::kNoEmbedding, "DeepSeek-V3.1 model card: 671B, 37B"},
    {"deepseek-ai--DeepSeek-V2.5", 236, 21, 0.5, Published::kAll, "DeepSeek-V2 report: 236B, 21B activated"},
    {"deepseek-ai--DeepSeek-V2-Lite", 15.7, 2.4, 0.06, Published::kNoEmbedding, "DeepSeek-V2-Lite model card: 15.7B, 2.4B activated"},
    {"moonshotai--Kimi-K2-Instruct", 1000, 32, 30, Published::kAll, "Kimi-K2 model card: 1T, 32B activated"},
    {"Qwen--Qwen3-235B-A22B", 235, 22, 0.5, Published::kAll, "Qwen3-235B-A22B model card: 235B, 22B activated, 234B without embedding"},
    {"Qwen--Qwen3-30B-A3B", 30.5, 3.3, 0.06, Published::kAll, "Qwen3-30B-A3B model card: 30.5B, 3.3B activated, 29.9B without embedding"},
    {"Qwen--Qwen3-Coder-480B-A35B-Instruct", 480, 35, 0.5, Published::kAll, "Qwen3-Coder model card: 480B, 35B activated"},
    {"Qwen--Qwen1.5-MoE-A2.7B", 14.3, 2.7, 0.06, Published::kAll, "Qwen1.5-MoE-A2.7B model card: 14.3B, 2.7B activated"},
    {"Qwen--Qwen2-57B-A14B", 57.4, 14.2, 0.06, Published::kAll, "Qwen2 report, table 1: 57B, 14B activated; the checkpoint has 57.4B"},
    {"mistralai--Mixtral-8x7B-v0.1", 46.7, 12.9, 0.06, Published::kAll, "Mistral AI, Mixtral of experts: 46.7B, 12.9B a token"},
    {"mistralai--Mixtral-8x22B-v0.1", 141, 39, 0.5, Published::kAll, "Mistral AI, Mixtral 8x22B: 141B, 39B active"},
    {"allenai--OLMoE-1B-7B-0125", 6.9, 1.3, 0.06, Published::kAll, "OLMoE paper: 6.9B, 1.3B active"},
    {"openai--gpt-oss-120b", 116.83, 5.13, 0.006, Published::kNoEmbedding, "gpt-oss model card, table 1: 116.83B, 5.13B active"},
    {"openai--gpt-oss-20b", 20.91, 3.61, 0.006, Published::kNoEmbedding, "gpt-oss model card, table 1: 20.91B, 3.61B active"},
    {"zai-org--GLM-4.5", 355, 32, 3, Published::kNoEmbeddingNoHead,
     "GLM-4.5 model card: 355B, 32B active (with its prediction layer 356.8B)"},
    {"zai-org--GLM-4.5-Air_via-reap", 106, 12, 1, Published::kNoEmbeddingNoHead, "GLM-4.5-Air model card: 106B, 12B active"},
    {"meta-llama--Llama-2-7b-hf", 6.74, 0, 0.006, Published::kAll, "Llama 2 checkpoint: 6.74B"},
    {"meta-llama--Llama-2-13b-hf", 13.0, 0, 0.06, Published::kAll, "Llama 2 checkpoint: 13.0B"},
    {"meta-llama--Llama-2-70b-hf", 69.0, 0, 0.06, Published::kAll, "Llama 2 checkpoint: 69.0B"},
    {"meta-llama--Meta-Llama-3.1-8B", 8.03, 0, 0.006, Published::kAll, "Llama 3.1 checkpoint: 8.03B"},
    {"meta-llama--Meta-Llama-3.1-70B", 70.6, 0, 0.06, Published::kAll, "Llama 3.1 checkpoint: 70.6B"},
    {"meta-llama--Meta-Llama-3.1-405B", 405.9, 0, 0.06, Published::kAll, "Llama 3.1 checkpoint: 406B (405.85)"},
    {"Qwen--Qwen3-0.6B", 0.6, 0, 0.06, Published::kAll, "Qwen3-0.6B model card: 0.6B, 0.44B without embedding"},
    {"Qwen--Qwen3-1.7B", 1.7, 0, 0.06, Published::kAll, "Qwen3-1.7B model card: 1.7B, 1.4B without embedding"},
    {"Qwen--Qwen3-8B", 8.2, 0, 0.06, Published::kAll, "Qwen3-8B model card: 8.2B, 6.95B without embedding"},
    {"Qwen--Qwen3-32B", 32.8, 0, 0.06, Published::kAll, "Qwen3-32B model card: 32.8B, 31.2B without embedding"},
};

ModelConfig published(const std::filesystem::path& data, const std::string& name) {
  return load_model_config(data / "configs" / "hf" / (name + "_config.json"));
}

double billions(int64_t count) { return static_cast<double>(count) / 1e9; }

TEST(Parameters, AreThePublishedOnes) {
  CADRE_DATA_OR_SKIP(data);
  for (const Published& p : kPublished) {
    SCOPED_TRACE(std::string(p.file) + ": " + p.source);
    const PlannedModel model(published(data, p.file), WeightType::kCheckpoint);
    const RankBytes count = model.parameters();
    EXPECT_NEAR(billions(count.total()), p.total_billions, p.digits);
    if (p.active_billions == 0) continue;
    int64_t active = model.active_parameters();
    if (p.counts != Published::kAll) active -= count.embedding;
    if (p.counts == Published::kNoEmbeddingNoHead) active -= count.head;
    EXPECT_NEAR(billions(active), p.active_billions, std::max(p.digits, 0.06)) << billions(active);
  }
}

TEST(Parameters, ByKindAsTheCardsHaveThem) {
  CADRE_DATA_OR_SKIP(data);
  // gpt-oss model card, table 1: MLP 114.71B and 19.12B, attention 0.96B and 0.64B, embedding and unembedding 1.16B.
  for (const auto& [name, mlp, attention] :
       {std::tuple{"openai--gpt-oss-120b", 114.71, 0.96}, std::tuple{"openai--gpt-oss-20b", 19.12, 0.64}}) {
    const RankBytes c = PlannedModel(published(data, name), WeightType::kCheckpoint).parameters();
    EXPECT_NEAR(billions(c.routed + c.router), mlp, 0.006);
    EXPECT_NEAR(billions(c.attention), attention, 0.006);
    EXPECT_NEAR(billions(c.embedding + c.head), 1.16, 0.006);
  }
  // DeepSeek-V3's weights file: the prediction module has 11.5B of its own beside an embedding and a head of 0.9B each.
  const PlannedModel v3(published(data, "deepseek-ai--DeepSeek-V3"), WeightType::kCheckpoint);
  const RankBytes c = v3.parameters();
  EXPECT_NEAR(billions(v3.next_token_parameters() - c.embedding - c.head), 11.5, 0.15);
  EXPECT_NEAR(billions(c.embedding), 0.9, 0.05);
  // Qwen3's cards: without embedding.
  for (const auto& [name, rest, digits] : {std::tuple{"Qwen--Qwen3-235B-A22B", 234.0, 0.5}, std::tuple{"Qwen--Qwen3-30B-A3B", 29.9, 0.06},
                                           std::tuple{"Qwen--Qwen3-8B", 6.95, 0.006}, std::tuple{"Qwen--Qwen3-32B", 31.2, 0.06},
                                           std::tuple{"Qwen--Qwen3-1.7B", 1.4, 0.06}, std::tuple{"Qwen--Qwen3-0.6B", 0.44, 0.006}}) {
    const RankBytes q = PlannedModel(published(data, name), WeightType::kCheckpoint).parameters();
    EXPECT_NEAR(billions(q.total() - q.embedding - q.head), rest, digits) << name;
  }
}

// Kind by kind, the classes add up to the checkpoint's own list of tensors.
TEST(Parameters, AddUpToTheCheckpointsTensors) {
  std::vector<ModelConfig> configs;
  for (const std::string_view type : testing::kModelTypes) configs.push_back(parse_model_config(testing::small_config_with(type, "{}")));
  configs.push_back(parse_model_config(testing::small_config_with("deepseek_v3", R"({"num_nextn_predict_layers": 2})")));
  for (const ModelConfig& config : configs) {
    RankBytes bytes, parameters;
    int64_t next_bytes = 0, next_parameters = 0;
    for (const TensorSpec& spec : checkpoint_tensors(config)) {
      if (spec.kind == TensorKind::kNextN)
        next_bytes += spec.bytes(), next_parameters += spec.parameters();
      else
        rank_bytes_of(bytes, spec.kind) += spec.bytes(), rank_bytes_of(parameters, spec.kind) += spec.parameters();
    }
    const PlannedModel model(config, WeightType::kCheckpoint);
    EXPECT_EQ(model.bytes(), bytes) << config.model_type;
    EXPECT_EQ(model.parameters(), parameters) << config.model_type;
    EXPECT_EQ(model.next_token_bytes(), next_bytes);
    EXPECT_EQ(model.next_token_parameters(), next_parameters);
  }
}

TEST(WeightTypes, MatrixBytes) {
  EXPECT_EQ(matrix_bytes(WeightType::kBF16, 256, 512), 256 * 512 * 2);
  EXPECT_EQ(matrix_bytes(WeightType::kFp8, 256, 512), 256 * 512 + 2 * 4 * 4);
  EXPECT_EQ(matrix_bytes(WeightType::kFp8, 257, 513), 257 * 513 + 3 * 5 * 4);
  EXPECT_EQ(matrix_bytes(WeightType::kMxfp4, 256, 512), 256 * 256 + 256 * 16);
  EXPECT_EQ(matrix_bytes(WeightType::kNvfp4, 256, 512), 256 * 256 + 256 * 32 + 8);
  EXPECT_EQ(matrix_bytes(WeightType::kInt8, 256, 512), 256 * 512 + 256 * 4);
  EXPECT_EQ(matrix_bytes(WeightType::kInt4, 256, 512), 256 * 256 + 256 * 4 * 2);
}

// A bfloat16 checkpoint planned in FP8 is the checkpoint that the engine would load in FP8, and one in FP8 planned in bfloat16
// the plain one.
TEST(WeightTypes, Fp8AndBfloat16AreTheEnginesOwn) {
  CADRE_DATA_OR_SKIP(data);
  const ModelConfig plain = published(data, "Qwen--Qwen3-30B-A3B"), stored = published(data, "Qwen--Qwen3-30B-A3B-FP8");
  EXPECT_EQ(PlannedModel(plain, WeightType::kFp8).bytes(), PlannedModel(stored, WeightType::kCheckpoint).bytes());
  EXPECT_EQ(PlannedModel(stored, WeightType::kBF16).bytes(), PlannedModel(plain, WeightType::kCheckpoint).bytes());
}

TEST(WeightTypes, SmallerTypesTakeLessAndPartsAddUp) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  for (const std::string_view type : testing::kModelTypes) {
    const ModelConfig config =
        parse_model_config(testing::small_config_with(type, type == "gpt_oss" ? R"({"hidden_size": 256, "intermediate_size": 256})"
                                                            : type == "mixtral" || type == "llama" || type == "qwen3" || type == "olmoe"
                                                                ? R"({"hidden_size": 256, "intermediate_size": 512})"
                                                                : R"({"hidden_size": 256, "moe_intermediate_size": 256})"));
    const int64_t wide = PlannedModel(config, WeightType::kBF16).bytes().total();
    for (const WeightType t : {WeightType::kFp8, WeightType::kMxfp4, WeightType::kNvfp4, WeightType::kInt8, WeightType::kInt4}) {
      const PlannedModel model(config, t);
      EXPECT_LT(model.bytes().total(), wide) << type << " " << weight_type_name(t);
      // What no kind of quantisation touches stays; the same holds of every rank.
      const PlannedModel plain(config, WeightType::kBF16);
      EXPECT_EQ(model.bytes().embedding, plain.bytes().embedding);
      EXPECT_EQ(model.bytes().norms, plain.bytes().norms);
      EXPECT_EQ(model.bytes().router, plain.bytes().router);
      EXPECT_EQ(model.parameters(), plain.parameters()) << type << " " << weight_type_name(t);
      if (config.moe.router.num_experts == 0) continue;
      const Layout layout{.world = 4, .attn_dp = 4, .ep = 4, .exchange = ExchangeKind::kAllToAll};
      int64_t routed = 0;
      for (int rank = 0; rank < 4; ++rank) routed += model.rank_bytes(layout, initial_placement(config, layout), rank).routed;
      EXPECT_EQ(routed, model.bytes().routed) << type << " " << weight_type_name(t);
    }
  }
}

TEST(WeightTypes, NamesAreCheckedAndFilesBesideAreRead) {
  EXPECT_EQ(parse_weight_type("auto"), WeightType::kCheckpoint);
  EXPECT_EQ(parse_weight_type("bfloat16"), WeightType::kBF16);
  EXPECT_THROW(parse_weight_type(""), Error);
  EXPECT_THROW(parse_weight_type("FP16"), Error);
  const testing::TempDir dir;
  std::ofstream(dir.path() / "config.json") << testing::small_config("qwen3_moe");
  EXPECT_FALSE(read_known_model(dir.path()).weight_type);
  std::ofstream(dir.path() / "hf_quant_config.json") << R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16}})";
  EXPECT_EQ(read_known_model(dir.path()).weight_type, WeightType::kNvfp4);
}

}  // namespace
}  // namespace cadre::planner
