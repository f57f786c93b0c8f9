// `cadre eplb` as a user runs it: exit codes, files, JSON.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "base/json.h"
#include "eplb/placement_file.h"
#include "tests/testing.h"

namespace cadre {
namespace {

struct Ran {
  int code = -1;
  std::string out;  // standard output and error together
};

Ran run(const std::string& arguments) {
  const std::string program = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cadre").string();
  Ran ran;
  FILE* pipe = ::popen((program + " eplb " + arguments + " 2>&1 </dev/null").c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) ran.out.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

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

}  // namespace
}  // namespace cadre
