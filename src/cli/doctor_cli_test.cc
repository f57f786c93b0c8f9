// cadre doctor as a user runs it. --no-measure, because what is measured depends on the machine and its other programs.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "tests/support/program.h"
#include "tests/testing.h"

namespace cadre {
namespace {

using testing::Ran;
Ran run(const std::string& arguments) { return testing::run_cadre("doctor " + arguments); }

class DoctorCli : public ::testing::Test {
 protected:
  void SetUp() override {
    write("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 60000000 kB\n");
    write("/proc/cpuinfo", "processor : 0\nmodel name : Made Up\nphysical id : 0\ncore id : 0\nflags : avx2 fma\n");
  }
  void write(const std::string& path, const std::string& text) const {
    const auto at = dir_.path() / path.substr(1);
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << text;
  }
  std::string root() const { return "--no-measure --root " + dir_.path().string() + " "; }
  testing::TempDir dir_;
};

TEST_F(DoctorCli, NotesAreNoProblems) {
  const Ran ran = run(root() + "--json");
  ASSERT_EQ(ran.code, 0) << ran.out;
  const json::value report = parse_json(ran.out, "report");
  EXPECT_EQ(report.at("problems").as_int64(), 0);
  EXPECT_EQ(report.at("status").as_string(), "note");  // no GPU driver in this tree
  bool has_model = false;
  for (const json::value& finding : report.at("findings").as_array())
    for (const char* key : {"section", "name", "status", "text", "advice", "values"}) {
      ASSERT_TRUE(finding.as_object().contains(key));
      has_model |= finding.at("text") == "Made Up";
    }
  EXPECT_TRUE(has_model) << ran.out;
  EXPECT_EQ(run(root()).code, 0);
}

TEST_F(DoctorCli, AProblemEndsWithOne) {
  write("/proc/self/limits", "Max open files            16                   16                   files     \n");
  const Ran ran = run(root());
  EXPECT_EQ(ran.code, 1) << ran.out;
  EXPECT_NE(ran.out.find("problem  open files"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("1 problem,"), std::string::npos) << ran.out;
}

TEST_F(DoctorCli, ATakenPortIsAProblem) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  socklen_t length = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  const Ran ran = run(root() + "--port " + std::to_string(ntohs(address.sin_port)));
  ::close(fd);
  EXPECT_EQ(ran.code, 1) << ran.out;
  EXPECT_NE(ran.out.find("is not free"), std::string::npos) << ran.out;
}

TEST_F(DoctorCli, SaysWhatAModelNeeds) {
  const std::string demo = (testing::source_dir() / "models" / "demo").string();
  const Ran ran = run(root() + "--json --model " + demo);
  ASSERT_EQ(ran.code, 0) << ran.out;
  EXPECT_NE(ran.out.find("1,920 bytes each"), std::string::npos) << ran.out;
  // A model of the same kind with more words than fit.
  json::object config = parse_json_file(testing::source_dir() / "tests/reference/llama/config.json").get_object();
  config["vocab_size"] = 16'000'000;
  write("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 1100000 kB\n");
  const testing::TempDir large;
  std::ofstream(large.path() / "config.json") << json::serialize(config);
  const Ran too_large = run(root() + "--model " + (large.path() / "config.json").string());
  EXPECT_EQ(too_large.code, 1) << too_large.out;
  EXPECT_NE(too_large.out.find("short"), std::string::npos) << too_large.out;
}

TEST_F(DoctorCli, AModelThatIsNotServedIsAProblemAndAMissingOneAWrongFlag) {
  const testing::TempDir dir;
  std::ofstream(dir.path() / "config.json")
      << R"({"architectures": ["StarfishForCausalLM"], "model_type": "starfish"})";
  const Ran unknown = run(root() + "--model " + dir.path().string());
  EXPECT_EQ(unknown.code, 1) << unknown.out;
  EXPECT_NE(unknown.out.find("starfish"), std::string::npos);
  for (const char* arguments : {"--model /nowhere", "--root /nowhere", "--port 0", "--port 70000", "--threads 0",
                                "--kv-cache-dtype int3", "--frobnicate"}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.out;
    EXPECT_TRUE(ran.out.rfind("cadre", 0) == 0) << ran.out;
  }
}

}  // namespace
}  // namespace cadre
