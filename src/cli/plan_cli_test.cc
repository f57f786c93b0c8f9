// `cadre plan` and the check at start as a user runs them.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "base/json.h"
#include "config/test_configs.h"
#include "tests/support/program.h"
#include "tests/testing.h"

namespace cadre {
namespace {

using testing::Ran;
using testing::run_cadre;

class PlanCli : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(dir_.path() / name) << text;
    return (dir_.path() / name).string();
  }
  std::string config(std::string_view type, std::string_view changes = "{}") const { return file("config.json", json::serialize(testing::small_config_with(type, changes))); }
  const testing::TempDir dir_;
};

void expect_refused(const Ran& ran, std::string_view with) {
  EXPECT_EQ(ran.code, 2) << ran.out;
  EXPECT_NE(ran.out.find(with), std::string::npos) << ran.out;
  EXPECT_EQ(ran.out.find("-nan"), std::string::npos) << ran.out;
}

TEST_F(PlanCli, SaysItInTextJsonAndHtml) {
  const std::string model = config("deepseek_v3"), html = (dir_.path() / "plan.html").string();
  const Ran text = run_cadre("plan --model " + model + " --hardware h100-80g x4 --context 1k --sla-tpot 50ms");
  ASSERT_EQ(text.code, 0) << text.out;
  for (const char* part : {"by the procedure:", "expert parallelism: 4", "chosen", "KV pool", "SGLang:", "vLLM:", "cadre serve"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  const Ran as_json = run_cadre("plan --json --model " + model + " --hardware h100-80g --gpus 4 --html " + html);
  ASSERT_EQ(as_json.code, 0) << as_json.out;
  const json::value plan = parse_json(as_json.out, "plan");
  EXPECT_EQ(plan.at("hardware").at("devices").as_int64(), 4);
  EXPECT_FALSE(plan.at("ranked").as_array().empty());
  std::ifstream in(html);
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(run_cadre("plan --list-hardware").code, 0);
}

TEST_F(PlanCli, TheCommandItPrintsIsOneThatStarts) {
  const std::string model = config("qwen3_moe");
  const Ran as_json = run_cadre("plan --json --model " + model + " --hardware cpu-epyc-9654:4 --context 64 --max-batch 8");
  ASSERT_EQ(as_json.code, 0) << as_json.out;
  std::string line(parse_json(as_json.out, "plan").at("commands").at(0).at("lines").at(0).as_string());
  line = line.substr(line.find("serve "));
  const Ran check = run_cadre("plan --check " + line + " --load-format dummy");
  EXPECT_EQ(check.code, 0) << line << "\n" << check.out;
}

TEST_F(PlanCli, WhatDoesNotFitExitsWithOneAndARemedy) {
  CADRE_DATA_OR_SKIP(data);
  const std::string v3 = (data / "configs" / "hf" / "deepseek-ai--DeepSeek-V3_config.json").string();
  const auto start = std::chrono::steady_clock::now();
  const Ran ran = run_cadre("plan --model " + v3 + " --hardware h100-80g x8");
  EXPECT_EQ(ran.code, 1) << ran.out;
  for (const char* part : {"Nothing fits", "GB short per rank", "devices"}) EXPECT_NE(ran.out.find(part), std::string::npos) << ran.out;
  const Ran unserved = run_cadre("plan --model " + (data / "configs" / "hf" / "Qwen--Qwen3-Next-80B-A3B-Thinking_config.json").string() + " --hardware h100 x8");
  EXPECT_EQ(unserved.code, 1);
  EXPECT_NE(unserved.out.find("What is not known"), std::string::npos) << unserved.out;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_F(PlanCli, BadFlagsAndFilesAreRefusedByName) {
  const std::string model = config("qwen3_moe"), base = "plan --model " + model + " --hardware h100-80g:8 ";
  expect_refused(run_cadre("plan --hardware h100-80g:8"), "--model");
  expect_refused(run_cadre("plan --model " + model), "--hardware");
  expect_refused(run_cadre("plan --model " + model + " --hardware h10-80g"), "nearest: h100-80g");
  expect_refused(run_cadre("plan --model " + model + " --hardware h100-80g x0"), "from 1 to 4096");
  expect_refused(run_cadre("plan --model " + model + " --hardware h100-80g x8 --gpus 4"), "--gpus");
  for (const char* flags : {"--nodes 0", "--nodes -1", "--gpus 0", "--batch 0", "--batch -4", "--max-batch 0", "--prefill-rows 0", "--redundant-experts -1"})
    expect_refused(run_cadre(base + flags), "--help");
  expect_refused(run_cadre(base + "--nodes 3"), "--nodes");
  expect_refused(run_cadre(base + "--nodes 16"), "--nodes");
  for (const char* value : {"0", "-1", "8x", "", "k", "99999999999", "1e3"}) expect_refused(run_cadre(base + "--context '" + value + "'"), "--context");
  expect_refused(run_cadre(base + "--context 1m"), "the model's context");
  for (const char* value : {"0", "-5ms", "fast", "5 parsecs", "nan", "inf"}) expect_refused(run_cadre(base + "--sla-tpot '" + value + "'"), "--sla-tpot");
  for (const char* value : {"0", "-0.5", "1.5", "nan"}) expect_refused(run_cadre(base + "--balancedness " + value), "--balancedness");
  expect_refused(run_cadre(base + "--dtype fp7"), "nearest: fp8");
  expect_refused(run_cadre(base + "--kv-dtype fp4"), "--kv-dtype");
  expect_refused(run_cadre(base + "--html /nonexistent/x.html"), "--html");
  expect_refused(run_cadre(base + "--load " + file("load.json", "{}")), "logical_count");
  expect_refused(run_cadre(base + "--load " + file("load.json", R"({"logical_count": [[1, -1]]})")), "logical_count");
  expect_refused(run_cadre(base + "--load " + file("load.json", R"({"logical_count": [[0, 0]]})")), "above 0");
  expect_refused(run_cadre(base + "--hardware-file " + file("hw.json", R"({"hardware": [{"name": "h100-80g", "memory_gb": 0}]})")), "memory_gb");
  expect_refused(run_cadre("plan --model /nonexistent --hardware h100"), "/nonexistent");
}

TEST_F(PlanCli, ImpossibleSizesAreRefused) {
  for (const auto& [key, value] : std::vector<std::pair<const char*, const char*>>{{"hidden_size", "0"}, {"hidden_size", "-64"}, {"num_hidden_layers", "0"}, {"num_attention_heads", "0"},
                                                                                     {"num_key_value_heads", "0"}, {"num_experts", "-1"}, {"num_experts_per_tok", "0"}, {"num_experts_per_tok", "400"},
                                                                                     {"vocab_size", "0"}, {"moe_intermediate_size", "0"}, {"head_dim", "0"}, {"hidden_size", "1e300"},
                                                                                     {"hidden_size", "99999999999999"}, {"max_position_embeddings", "0"}, {"hidden_size", "\"big\""}}) {
    const std::string model = config("qwen3_moe", fmt::format("{{\"{}\": {}}}", key, value));
    expect_refused(run_cadre("plan --model " + model + " --hardware h100:8"), key);
  }
  expect_refused(run_cadre("plan --model " + file("config.json", "{}") + " --hardware h100:8"), "model_type");
  expect_refused(run_cadre("plan --model " + file("config.json", "[1, 2") + " --hardware h100:8"), "JSON");
  expect_refused(run_cadre("plan --model " + file("config.json", R"({"model_type": "mamba9", "hidden_size": 0})") + " --hardware h100:8"), "hidden_size");
  expect_refused(run_cadre("plan --model " + file("config.json", R"({"model_type": "mamba9", "num_hidden_layers": -3})") + " --hardware h100:8"), "num_hidden_layers");
  // Nothing to divide by is left out, not divided by.
  const Ran bare = run_cadre("plan --model " + file("config.json", R"({"model_type": "mamba9"})") + " --hardware h100:8");
  EXPECT_EQ(bare.code, 1) << bare.out;
}

TEST_F(PlanCli, TheCheckAtStartRefusesBeforeLoading) {
  const std::string model = config("qwen3_moe");
  const Ran fits = run_cadre("plan --check serve " + model + " --load-format dummy --num-kv-blocks 100 --tp-size 4 --dp-size 2 --enable-dp-attention --ep-size 4 --json");
  ASSERT_EQ(fits.code, 0) << fits.out;
  const json::value budget = parse_json(fits.out.substr(fits.out.find("{\"fits")), "budget");
  EXPECT_EQ(budget.at("ranks").as_array().size(), 4u);
  EXPECT_EQ(budget.at("tokens_in_all").as_int64(), 2 * 1600);
  for (const json::value& rank : budget.at("ranks").as_array())
    // 4 layers, 1 of 2 KV heads on each of two ranks, 32 values, keys and values, float32.
    EXPECT_EQ(rank.at("kv_pool").as_int64(), 100 * 16 * 4 * 2 * 32 * 4);
  for (const char* command : {"plan --check ", "serve "}) {
    const auto start = std::chrono::steady_clock::now();
    const Ran ran = run_cadre(std::string(command) + model + " --load-format dummy --num-kv-blocks 2000000000 --port 0");
    expect_refused(ran, "short");
    EXPECT_NE(ran.out.find("--num-kv-blocks"), std::string::npos) << ran.out;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  }
  expect_refused(run_cadre("plan --check " + model + " --tp-size 3"), "--tp-size");
  expect_refused(run_cadre("plan --check " + model + " --no-such-flag"), "--no-such-flag");
}

}  // namespace
}  // namespace cadre
