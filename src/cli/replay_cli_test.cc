// cadre plan --replay as a user runs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/json.h"
#include "tests/support/program.h"
#include "tests/testing.h"

namespace cadre {
namespace {

using testing::Ran;

class ReplayCli : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(dir_.path() / name) << text;
    return (dir_.path() / name).string();
  }
  std::string azure() const {
    std::string text = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
    for (int i = 0; i < 60; ++i)
      text += "2023-11-16 18:17:" + std::to_string(10 + i / 2) + ".5," + std::to_string(100 + 37 * (i % 9)) + "," +
              std::to_string(1 + i % 30) + "\n";
    return file("azure.csv", text);
  }
  std::string calibration(const std::string& us = "100", const std::string& name = "cost.json") const {
    return file(
        name,
        R"({"model": "m", "cost": {"us": {"step": )" + us +
            R"(, "decode_row": 10, "decode_context_token": 0, "prefill_row": 20, "prefill_pair": 0, "active_expert": 1, "other_ranks_row": 0, "prefill_sequence": 0},
        "num_experts": 8, "top_k": 2}, "ranks": 2, "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_prefill_tokens_per_step": 16, "num_kv_blocks": 100, "max_model_len": 512})");
  }
  static Ran plan(const std::string& arguments) { return testing::run_cadre("plan " + arguments); }
  static std::string devices() {
    return "--model " + (testing::source_dir() / "models" / "demo").string() + " --hardware h100-80g x4 ";
  }
  testing::TempDir dir_;
};

TEST_F(ReplayCli, SaysHowATraceWouldBeServedByLayoutAndPolicy) {
  const std::string arguments =
      devices() + "--replay " + azure() + " --replay-policy round_robin,total_tokens --replay-layouts 2 --json";
  const Ran ran = plan(arguments), again = plan(arguments);
  ASSERT_EQ(ran.code, 0) << ran.out;
  EXPECT_EQ(ran.out, again.out);
  const json::value report = parse_json(ran.out, "report");
  EXPECT_EQ(report.at("trace").at("requests").as_int64(), 60);
  const json::array& runs = report.at("runs").as_array();
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_EQ(runs[0].at("layout"), runs[1].at("layout"));
  EXPECT_NE(runs[0].at("layout"), runs[2].at("layout"));
  EXPECT_EQ(runs[1].at("policy").as_string(), "total_tokens");
  for (const json::value& run : runs) {
    EXPECT_EQ(run.at("answered").as_int64(), 60);
    EXPECT_EQ(run.at("ttft_ms").at("count").as_int64(), 60);
    EXPECT_GT(run.at("ttft_ms").at("p50").to_number<double>(), 0);
    EXPECT_LE(run.at("tpot_ms").at("p50").to_number<double>(), run.at("tpot_ms").at("p99").to_number<double>());
  }
  const Ran text = plan(devices() + "--replay " + azure());
  EXPECT_EQ(text.code, 0) << text.out;
  EXPECT_NE(text.out.find("60 answered"), std::string::npos) << text.out;
}

TEST_F(ReplayCli, FindsPrefixesAndMovesExperts) {
  std::string trace;
  for (int i = 0; i < 30; ++i)
    trace += R"({"timestamp": )" + std::to_string(i * 400) +
             R"(, "input_length": 700, "output_length": 20, "hash_ids": [1, )" + std::to_string(5 + i) + "]}\n";
  const std::string mooncake = file("mooncake.jsonl", trace);
  const auto cached = [&](const std::string& flags) {
    const Ran ran = plan(devices() + "--json --replay " + mooncake + flags);
    EXPECT_EQ(ran.code, 0) << ran.out;
    return parse_json(ran.out, "report").at("runs").as_array().at(0).at("cached_tokens").as_int64();
  };
  EXPECT_EQ(cached(""), 0);
  EXPECT_GT(cached(" --prefix-cache"), 20 * 512);
  std::string rows;
  for (int expert = 0; expert < 64; ++expert) rows += (expert ? ", " : "") + std::to_string(expert < 6 ? 1000 : 10);
  const std::string load = file("load.json", R"({"logical_count": [[)" + rows + "]]}");
  const Ran moved = plan(devices() + "--json --replay " + mooncake + " --replay-load " + load +
                         " --replay-eplb --replay-eplb-interval 200 --replay-eplb-window 50 --replay-layouts 12");
  ASSERT_EQ(moved.code, 0) << moved.out;
  int64_t rebalances = 0;
  const json::value report = parse_json(moved.out, "report");
  for (const json::value& run : report.at("runs").as_array()) rebalances += run.at("rebalances").as_int64();
  EXPECT_GT(rebalances, 0) << moved.out;
}

TEST_F(ReplayCli, TakesMeasuredStepTimes) {
  const Ran ran = plan("--json --replay " + azure() + " --replay-cost " + calibration());
  ASSERT_EQ(ran.code, 0) << ran.out;
  const json::value report = parse_json(ran.out, "report");
  const json::value& run = report.at("runs").as_array().at(0);
  EXPECT_EQ(run.at("layout").as_string(), "m");
  EXPECT_EQ(run.at("requests_of_rank").as_array().size(), 2u);
}

TEST_F(ReplayCli, CalibratesAndReplaysWhatItMeasured) {
  const std::string demo = (testing::source_dir() / "models" / "demo").string(),
                    cost = (dir_.path() / "measured.json").string();
  std::string trace = "arrival_s,input_tokens,output_tokens\n";
  for (int i = 0; i < 4; ++i) trace += "0.0" + std::to_string(i) + ",20,3\n";
  const std::string check = file("check.csv", trace);
  const Ran ran = testing::run_cadre("calibrate " + demo +
                                     " --json --rounds 1 --max-num-seqs 2 --max-model-len 96 --threads 1 --out " +
                                     cost + " --check " + check);
  ASSERT_EQ(ran.code, 0) << ran.out;
  const json::value report = parse_json(ran.out, "report");
  EXPECT_GT(report.at("num_steps").as_int64(), 20);
  EXPECT_EQ(report.at("check").at("replayed").at("answered").as_int64(), 4);
  EXPECT_EQ(plan("--json --replay " + check + " --replay-cost " + cost).code, 0);
  EXPECT_EQ(
      testing::run_cadre("calibrate " + demo + " --out /nowhere/x --rounds 1 --max-num-seqs 1 --max-model-len 64").code,
      2);
  EXPECT_EQ(testing::run_cadre("calibrate /nowhere").code, 2);
  EXPECT_EQ(testing::run_cadre("calibrate " + demo + " --rounds 0").code, 2);
}

TEST_F(ReplayCli, BadTracesAndFlagsEndWithOneSentenceAndCode2) {
  const std::string unsorted = file("unsorted.csv", "arrival_s,input_tokens,output_tokens\n5,1,1\n4,1,1\n"),
                    words = file("words.csv", "arrival_s,input_tokens,output_tokens\n5,one,1\n"),
                    columns = file("columns.csv", "arrival_s,output_tokens\n5,1\n"), empty = file("empty.csv", ""),
                    other = file("other.json", "{}");
  for (const std::string& arguments :
       {devices() + "--replay /nowhere", devices() + "--replay " + unsorted, devices() + "--replay " + words,
        devices() + "--replay " + columns, devices() + "--replay " + empty, devices() + "--replay " + other,
        devices() + "--replay " + azure() + " --replay-rate 0",
        devices() + "--replay " + azure() + " --replay-rate nan",
        devices() + "--replay " + azure() + " --replay-policy best",
        devices() + "--replay " + azure() + " --replay-policy follow_bootstrap_room",
        devices() + "--replay " + azure() + " --replay-eplb",
        devices() + "--replay " + azure() + " --replay-load " + other,
        devices() + "--replay " + azure() + " --replay-repeat 0", "--replay " + azure() + " --replay-cost " + other,
        "--replay " + azure() + " --replay-cost " + calibration("-1", "negative.json"),
        "--replay-cost " + calibration(), "--replay " + azure()}) {
    const Ran ran = plan(arguments);
    EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.out;
    EXPECT_TRUE(ran.out.rfind("cadre", 0) == 0) << ran.out;
    EXPECT_LE(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << ran.out;
  }
}

}  // namespace
}  // namespace cadre
