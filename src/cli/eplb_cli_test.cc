// `cadre eplb` as a user runs it: exit codes, files, JSON.
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "config/model_config.h"
#include "eplb/placement_file.h"
#include "tests/support/program.h"
#include "tests/testing.h"

namespace cadre {
namespace {

using testing::Ran;

Ran run(const std::string& arguments) { return testing::run_cadre("eplb " + arguments); }

class EplbCli : public ::testing::Test {
 protected:
  std::string file(const char* name, const std::string& text) const {
    const std::filesystem::path path = dir_.path() / name;
    std::ofstream(path) << text;
    return path.string();
  }
  const testing::TempDir dir_;
  const std::string load_ = file("load.json", R"({"logical_count": [[0, 0, 0, 0], [90, 10, 30, 5], [7, 7, 7, 70]]})");
};

TEST_F(EplbCli, PlanWritesAPlacementAndAPicture) {
  const std::string out = (dir_.path() / "p.json").string(), svg = (dir_.path() / "p.svg").string();
  const Ran ran = run("plan " + load_ +
                      " --ranks 2 --redundant 2 --json --current trivial --expert-bytes 1MiB --us-per-row 2 --out " +
                      out + " --svg " + svg);
  ASSERT_EQ(ran.code, 0) << ran.out;
  const json::value report = parse_json(ran.out, "report");
  EXPECT_EQ(report.at("moved_bytes").as_int64(), report.at("moved_slots").as_int64() << 20);
  EXPECT_LT(report.at("step_ms").to_number<double>(), report.at("step_ms_before").to_number<double>());
  const eplb::ModelPlacement placement = eplb::read_placement(out);
  EXPECT_EQ(placement.layers, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(placement.placements[0].slots_per_rank(), 3);
  EXPECT_GT(std::filesystem::file_size(svg), 500u);
  // What was written is taken, and nothing is left to move.
  const Ran again = run("plan " + load_ + " --ranks 2 --redundant 2 --json --current " + out);
  ASSERT_EQ(again.code, 0) << again.out;
  EXPECT_EQ(parse_json(again.out, "report").at("moved_slots").as_int64(), 0);
  EXPECT_EQ(run("plan " + load_ + " --ranks 2").code, 0);
}

TEST_F(EplbCli, CompareAndSimulateReport) {
  const Ran compared = run("compare " + load_ + " --ranks 2 --redundant 2 --nodes 2 --groups 2 --json");
  ASSERT_EQ(compared.code, 0) << compared.out;
  const json::value report = parse_json(compared.out, "report");
  EXPECT_TRUE(report.at("passed").as_bool());
  EXPECT_EQ(report.at("algorithms").as_object().size(), 3u);
  const std::string series = file("series.json", "[[[9, 1, 1, 1]], [[9, 1, 1, 1]], [[9, 1, 1, 1]], [[1, 1, 1, 9]]]");
  const Ran simulated = run("simulate " + series + " --ranks 2 --redundant 2 --interval 1 --window 1 --json");
  ASSERT_EQ(simulated.code, 0) << simulated.out;
  EXPECT_EQ(parse_json(simulated.out, "report").at("rebalances").as_array().size(), 3u);
  EXPECT_EQ(run("compare " + load_ + " --ranks 2").code, 0);
  EXPECT_EQ(run("simulate " + series + " --ranks 2 --interval 2").code, 0);
}

TEST_F(EplbCli, BadInputEndsWithOneSentenceAndCode2) {
  const std::string zero = file("zero.json", R"({"logical_count": [[0, 0]]})"),
                    broken = file("broken.json", R"({"slots": 1})");
  for (const std::string& arguments : std::vector<std::string>{
           "plan " + load_ + " --ranks 9", "plan " + load_ + " --ranks 0",
           "plan " + load_ + " --ranks 2 --redundant -1", "plan /nowhere --ranks 2", "plan " + zero + " --ranks 2",
           "plan " + load_ + " --ranks 2 --current " + broken, "plan " + load_ + " --ranks 2 --algorithm best",
           "plan " + load_ + " --ranks 2 --step none", "plan " + load_ + " --ranks 2 --out /nowhere/x",
           "compare " + load_, "compare " + load_ + " --ranks 2 --only x", "compare " + load_ + " --ranks 2 --routes 4",
           "simulate " + load_ + " --ranks 2", "simulate " + load_ + " --ranks 2 --interval 0", "frobnicate"}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.out;
    EXPECT_TRUE(ran.out.rfind("cadre", 0) == 0) << ran.out;
    EXPECT_LE(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << ran.out;
  }
}

// Placements and loads that an engine begins with: answers do not change, and what does not fit is refused before loading.
TEST_F(EplbCli, ServingBeginsWithAPlacementOrALoad) {
  const std::string demo = (testing::source_dir() / "models" / "demo").string();
  const std::string ask = "generate " + demo + " --prompt 'Once upon a time' --max-tokens 8 --temperature 0 ";
  const testing::Ran alone = testing::run_cadre(ask);
  ASSERT_EQ(alone.code, 0) << alone.out;
  const std::string expected = alone.out.substr(0, alone.out.find('\n'));
  const ModelConfig config = load_model_config(demo);
  const int64_t experts = config.moe.router.num_experts;
  json::array counts, numbered;
  for (const LayerConfig& layer : config.layers) {
    json::array row;
    for (int64_t e = 0; e < experts; ++e) row.push_back(layer.is_sparse ? 1 + e * e % 17 : 0);
    counts.push_back(row);
    if (layer.is_sparse) numbered.push_back(row);
  }
  const std::string load = file("demo_load.json", json::serialize(json::object{{"logical_count", counts}}));
  const std::string sparse_load = file("sparse_load.json", json::serialize(json::object{{"logical_count", numbered}}));
  const std::string placement = (dir_.path() / "demo_placement.json").string();
  ASSERT_EQ(run("plan " + load + " --ranks 4 --redundant 8 --out " + placement).code, 0);
  const std::string layout = ask + "-dp 4 -ep --ep-num-redundant-experts 8 --init-expert-location ";
  for (const std::string& from : {load, sparse_load, placement, std::string("trivial")}) {
    const testing::Ran ran = testing::run_cadre(layout + from);
    ASSERT_EQ(ran.code, 0) << ran.out;
    EXPECT_NE(ran.out.find(expected), std::string::npos) << ran.out;
  }
  EXPECT_EQ(testing::run_cadre(ask + "-dp 4 -ep --eplb-config '{\"num_redundant_experts\": 8, \"window_size\": 10}' --init-expert-location " + placement).code, 0);
  const std::string shorter = file("shorter.json", R"({"logical_count": [[1, 2], [3, 4]]})"), broken = file("broken.json", "{}");
  for (const std::string& bad : {layout + shorter, layout + broken, layout + "/nowhere", layout + load_, ask + "--init-expert-location " + placement,
                                 ask + "-dp 4 -ep --init-expert-location " + placement, ask + "-dp 2 -ep --ep-num-redundant-experts 8 --init-expert-location " + placement,
                                 ask + "-dp 4 -ep --eplb-config '{'", ask + "-dp 4 -ep --eplb-config '{\"windowsize\": 3}'", ask + "-dp 4 -ep --eplb-config '{\"window_size\": 0}'",
                                 ask + "-dp 4 -ep --eplb-config '{\"policy\": \"best\"}'", ask + "-dp 4 -ep --ep-dispatch-algorithm luck"}) {
    const testing::Ran ran = testing::run_cadre(bad);
    EXPECT_EQ(ran.code, 2) << bad << "\n" << ran.out;
    EXPECT_EQ(ran.out.rfind("cadre", 0), 0u) << ran.out;
  }
}

}  // namespace
}  // namespace cadre
