#include "config/tensor_spec.h"

#include <gtest/gtest.h>

#include <map>

#include "base/json.h"
#include "config/bytes.h"
#include "config/module_names.h"
#include "config/test_configs.h"
#include "tests/testing.h"

namespace cadre {
namespace {

ModelConfig parse_with(std::string_view model_type, std::string_view changes) {
  return parse_model_config(testing::small_config_with(model_type, changes));
}

std::map<std::string, TensorSpec> by_name(const ModelConfig& config) {
  std::map<std::string, TensorSpec> result;
  for (TensorSpec& spec : checkpoint_tensors(config)) {
    const std::string name = spec.name;
    EXPECT_TRUE(result.emplace(name, std::move(spec)).second) << name << " twice";
  }
  return result;
}

double billions(const ModelConfig& config) {
  double sum = 0;
  for (const TensorSpec& spec : checkpoint_tensors(config))
    if (spec.kind != TensorKind::kNextN) sum += static_cast<double>(spec.parameters());
  return sum / 1e9;
}

ModelConfig published(const std::filesystem::path& data, const std::string& name) {
  return load_model_config(data / "configs/hf" / (name + "_config.json"));
}

// As the model cards and reports state them.
TEST(TensorSpec, ParameterCountsOfPublishedModels) {
  CADRE_DATA_OR_SKIP(data);
  const std::map<std::string, double> expected = {{"deepseek-ai--DeepSeek-V3", 671.03},
                                                  {"Qwen--Qwen3-30B-A3B", 30.53},
                                                  {"Qwen--Qwen3-235B-A22B", 235.09},
                                                  {"openai--gpt-oss-120b", 116.83},
                                                  {"openai--gpt-oss-20b", 20.91},
                                                  {"mistralai--Mixtral-8x7B-v0.1", 46.70},
                                                  {"allenai--OLMoE-1B-7B-0125", 6.92},
                                                  {"deepseek-ai--DeepSeek-V2-Lite", 15.71},
                                                  {"zai-org--GLM-4.5", 352.80},
                                                  {"meta-llama--Meta-Llama-3.1-8B", 8.03},
                                                  {"Qwen--Qwen3-8B", 8.19},
                                                  {"moonshotai--Kimi-K2-Instruct", 1026.41},
                                                  {"Qwen--Qwen1.5-MoE-A2.7B", 14.32},
                                                  {"Qwen--Qwen3-0.6B", 0.596},
                                                  {"deepseek-ai--DeepSeek-V2.5", 235.74}};
  for (const auto& [name, count] : expected)
    EXPECT_NEAR(billions(published(data, name)), count, count * 0.0004) << name;
}

TEST(TensorSpec, NextTokenLayerOfDeepseekV3IsAbout11Billion) {
  CADRE_DATA_OR_SKIP(data);
  double sum = 0;
  for (const TensorSpec& spec : checkpoint_tensors(published(data, "deepseek-ai--DeepSeek-V3"))) {
    if (spec.kind != TensorKind::kNextN) continue;
    EXPECT_FALSE(spec.required);
    sum += static_cast<double>(spec.parameters());
  }
  EXPECT_NEAR(sum / 1e9, 11.6 + 1.85, 0.1);  // its layer, its copies of embedding and head
}

TEST(TensorSpec, NamesAndShapesByFamily) {
  const auto mixtral = by_name(parse_with("mixtral", "{}"));
  EXPECT_EQ(mixtral.at("model.layers.2.block_sparse_moe.experts.7.w2.weight").shape, (Shape{64, 96}));
  EXPECT_EQ(mixtral.at("model.layers.0.block_sparse_moe.gate.weight").shape, (Shape{8, 64}));
  const auto oss = by_name(parse_with("gpt_oss", R"({"quantization_config": {"quant_method": "mxfp4"}})"));
  EXPECT_EQ(oss.at("model.layers.1.mlp.experts.gate_up_proj_blocks").shape, (Shape{8, 64, 2, 16}));
  EXPECT_EQ(oss.at("model.layers.1.mlp.experts.down_proj_scales").shape, (Shape{8, 64, 1}));
  EXPECT_EQ(oss.at("model.layers.1.mlp.experts.gate_up_proj_blocks").parameters(), 8 * 64 * 64);
  EXPECT_EQ(oss.at("model.layers.1.mlp.experts.down_proj_scales").parameters(), 0);
  EXPECT_EQ(oss.at("model.layers.3.self_attn.sinks").shape, (Shape{8}));
  EXPECT_EQ(by_name(parse_with("gpt_oss", "{}")).at("model.layers.1.mlp.experts.gate_up_proj").shape,
            (Shape{8, 64, 64}));
  const auto tied = by_name(parse_with("qwen3", "{}"));
  EXPECT_EQ(tied.count("lm_head.weight"), 0u);
  EXPECT_EQ(by_name(parse_with("olmoe", "{}")).at("model.layers.0.self_attn.q_norm.weight").shape, (Shape{64}));
  const auto qwen2 = by_name(parse_with("qwen2_moe", "{}"));
  EXPECT_EQ(qwen2.at("model.layers.0.mlp.shared_expert_gate.weight").shape, (Shape{1, 64}));
  EXPECT_EQ(qwen2.at("model.layers.0.self_attn.q_proj.bias").shape, (Shape{64}));
  EXPECT_EQ(qwen2.count("model.layers.0.self_attn.o_proj.bias"), 0u);
}

TEST(TensorSpec, Fp8ScalesCoverBlocksOf128) {
  const auto specs = by_name(parse_with(
      "deepseek_v3", R"({"hidden_size": 256, "intermediate_size": 320, "quantization_config": {"quant_method": "fp8",
      "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.0.self_attn"]}})"));
  EXPECT_EQ(specs.at("model.layers.0.mlp.up_proj.weight").dtype, DType::kF8E4M3);
  EXPECT_EQ(specs.at("model.layers.0.mlp.up_proj.weight_scale_inv").shape, (Shape{3, 2}));
  EXPECT_EQ(specs.at("model.layers.0.mlp.up_proj.weight_scale_inv").dtype, DType::kF32);
  EXPECT_EQ(specs.at("model.layers.1.self_attn.kv_a_proj_with_mqa.weight_scale_inv").shape, (Shape{1, 2}));
  EXPECT_EQ(specs.at("model.layers.0.self_attn.o_proj.weight").dtype, DType::kBF16);
  EXPECT_EQ(specs.count("model.layers.0.self_attn.o_proj.weight_scale_inv"), 0u);
  for (const char* name :
       {"model.embed_tokens.weight", "lm_head.weight", "model.layers.1.mlp.gate.weight", "model.norm.weight"})
    EXPECT_EQ(specs.at(name).dtype, DType::kBF16) << name;
  EXPECT_EQ(specs.at("model.layers.1.mlp.gate.e_score_correction_bias").dtype, DType::kF32);
}

TEST(ModuleNames, PatternsOfModulesToNotConvert) {
  const ModuleNames names(
      {"lm_head", "model.layers.1", "model.layers.*.self_attn", "model.layers.*.mlp.router", "re.*.x", "mlp.gate"});
  EXPECT_TRUE(names.contains("lm_head"));
  EXPECT_TRUE(names.contains("model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(names.contains("model.layers.11.mlp.up_proj"));
  EXPECT_TRUE(names.contains("model.layers.11.self_attn.q_proj"));
  EXPECT_FALSE(names.contains("model.layers.11.self_attn2"));
  EXPECT_TRUE(names.contains("model.layers.3.mlp.router"));
  EXPECT_TRUE(names.contains("model.layers.3.mlp.gate"));
  EXPECT_FALSE(names.contains("model.layers.3.mlp.gate_proj"));
  EXPECT_FALSE(names.contains("model.layers.3.mlp.experts"));
  EXPECT_TRUE(ModuleNames({"*"}).contains("anything"));
  EXPECT_TRUE(ModuleNames({".*self_attn.*"}).contains("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(ModuleNames({"*.self_attn.*"}).contains("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(ModuleNames({"model.layers.*"}).contains("model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(ModuleNames({""}).contains("anything"));
  EXPECT_FALSE(ModuleNames({}).contains("anything"));
}

TEST(Bytes, CacheAndExperts) {
  const ModelConfig small = parse_with("deepseek_v3", "{}");
  EXPECT_EQ(kv_values_per_token_layer(small), 48);
  EXPECT_EQ(kv_bytes_per_token(parse_with("mixtral", "{}"), DType::kF32), 3 * 2 * 2 * 8 * 4);
  EXPECT_EQ(expert_bytes(small), 3 * 64 * 32 * 2);
  EXPECT_EQ(expert_bytes(parse_with("llama", "{}")), 0);
  // Blocks, one scale a block, and two biases in bf16.
  EXPECT_EQ(expert_bytes(parse_with("gpt_oss", R"({"quantization_config": {"quant_method": "mxfp4"}})")),
            64 * 64 / 2 + 64 * 2 + 64 * 32 / 2 + 64 + (64 + 64) * 2);
}

TEST(Bytes, DeepseekV3) {
  CADRE_DATA_OR_SKIP(data);
  const ModelConfig v3 = published(data, "deepseek-ai--DeepSeek-V3");
  EXPECT_EQ(kv_bytes_per_token(v3, DType::kBF16), 70272);
  EXPECT_EQ(expert_bytes(v3), 3 * 2048 * 7168 + 3 * 16 * 56 * 4);
}

}  // namespace
}  // namespace cadre
