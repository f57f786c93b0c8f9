// The program itself, run as a user runs it: exit codes, messages, output.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "base/json.h"
#include "cli/units.h"
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
  FILE* pipe = ::popen((program + " " + arguments + " 2>&1 </dev/null").c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) ran.out.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

std::string demo() { return (testing::source_dir() / "models" / "demo").string(); }

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(Cli, HelpSaysWhatThereIs) {
  const Ran ran = run("--help");
  EXPECT_EQ(ran.code, 0);
  for (const char* word : {"serve", "generate", "inspect", "ask", "verify", "Exit codes"}) EXPECT_TRUE(contains(ran.out, word)) << word;
  for (const char* command : {"serve", "generate", "inspect", "ask", "verify"}) EXPECT_EQ(run(std::string(command) + " --help").code, 0) << command;
}

TEST(Cli, BadFlagsAndFilesEndWithOneSentenceAndCode2) {
  for (const std::string& arguments : std::vector<std::string>{"serve", "serve " + demo() + " --max-num-seqs 0", "serve " + demo() + " --no-such-flag",
                                       "frobnicate", "generate " + demo(), "generate /nowhere --prompt x", "inspect /nowhere",
                                       "generate " + demo() + " --prompt x --max-model-len 5000", "generate " + demo() + " --prompt x --kv-cache-memory 12parsecs",
                                       "generate " + demo() + " --prompt x --max-num-seqs 9 --max-num-batched-tokens 8",
                                       "generate " + demo() + " --file /nowhere", "ask ftp://x y", "verify", "verify --reference /nowhere",
                                       "verify --reference " + demo() + " --tokenizer " + demo(), "verify --tokenizer " + demo(),
                                       "verify --tokenizer " + demo() + " --vectors /nowhere", "verify --templates /nowhere --vectors /nowhere",
                                       "verify --templates " + demo() + " --vectors /nowhere --now today"}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.out;
    EXPECT_TRUE(ran.out.rfind("cadre", 0) == 0) << ran.out;
    EXPECT_LE(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << ran.out;
  }
}

TEST(Cli, AnUnknownArchitectureIsRefusedByNameWithTheKnownOnes) {
  const testing::TempDir dir;
  std::ofstream(dir.path() / "config.json") << R"({"architectures": ["StarfishForCausalLM"], "model_type": "starfish"})";
  const Ran ran = run("serve --port 0 " + dir.path().string());
  EXPECT_EQ(ran.code, 2);
  for (const char* word : {"starfish", "DeepseekV3ForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM"}) EXPECT_TRUE(contains(ran.out, word)) << ran.out;
}

TEST(Cli, ATakenPortIsSaidBeforeAnythingIsLoaded) {
  // TEST-NET-1 (RFC 5737): never an address of this machine, so the bind fails.
  const Ran ran = run("serve --host 192.0.2.1 --port 0 " + demo());
  EXPECT_EQ(ran.code, 3) << ran.out;
}

TEST(Cli, GenerateIsGreedyAsTheReference) {
  const json::value reference = parse_json_file(testing::source_dir() / "models" / "demo" / "reference.json");
  for (const json::value& entry : reference.as_array()) {
    const std::string prompt(std::string_view(entry.at("text").as_string())), expected(std::string_view(entry.at("greedy").as_string()));
    if (contains(prompt, "\n")) continue;  // not a line of shell
    const Ran ran = run("generate " + demo() + " --temperature 0 --max-tokens 12 --json --prompt '" + prompt + "' 2>/dev/null");
    ASSERT_EQ(ran.code, 0) << ran.out;
    const json::value answer = parse_json(ran.out.substr(0, ran.out.find('\n')), "answer");
    const std::string text(std::string_view(answer.at("text").as_string()));
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(text, expected.substr(0, text.size())) << prompt;
  }
}

TEST(Cli, ABatchFromAFileAnswersAsEachPromptAlone) {
  const testing::TempDir dir;
  const auto file = dir.path() / "prompts.txt";
  std::ofstream(file) << "Once upon a time there was\n\n{\"prompt\": \"Es war einmal\"}\nThe function returns a pointer to\n";
  const std::string flags = "generate " + demo() + " --temperature 0 --max-tokens 10 --json ";
  const Ran batch = run(flags + "--file " + file.string());
  ASSERT_EQ(batch.code, 0) << batch.out;
  for (const char* prompt : {"Once upon a time there was", "Es war einmal", "The function returns a pointer to"}) {
    const Ran alone = run(flags + "--prompt '" + prompt + "'");
    EXPECT_TRUE(contains(batch.out, alone.out.substr(0, alone.out.find('\n')))) << prompt << "\n" << batch.out << alone.out;
  }
  EXPECT_TRUE(contains(batch.out, "new tokens/s"));
}

TEST(Cli, DummyWeightsRunAnyConfigurationAndRepeat) {
  for (const char* name : {"deepseek_v3_fp8", "gpt_oss_mxfp4", "qwen2_moe", "llama"}) {
    const std::string flags = "generate " + (testing::source_dir() / "tests" / "reference" / name / "config.json").string() +
                              " --load-format dummy --seed 4 --max-tokens 6 --ignore-eos --json --prompt hello";
    const Ran first = run(flags), second = run(flags);
    EXPECT_EQ(first.code, 0) << first.out;
    EXPECT_EQ(first.out.substr(0, first.out.find('\n')), second.out.substr(0, second.out.find('\n'))) << name;
    EXPECT_TRUE(contains(first.out, "\"completion_tokens\":6")) << first.out;
  }
}

TEST(Cli, InspectPrintsTextAndJson) {
  EXPECT_TRUE(contains(run("inspect " + demo()).out, "routed experts"));
  const Ran ran = run("inspect --json " + demo());
  EXPECT_TRUE(parse_json(ran.out, "inspect").is_object()) << ran.out;
}

TEST(Cli, VerifyPrintsATableOrJsonAndItsVerdictIsTheExitCode) {
  const std::string reference = (testing::source_dir() / "tests" / "reference" / "mixtral").string();
  const Ran table = run("verify --reference " + reference);
  EXPECT_EQ(table.code, 0) << table.out;
  EXPECT_TRUE(contains(table.out, "logit error") && contains(table.out, "passed")) << table.out;
  const Ran as_json = run("verify --json --reference " + reference);
  EXPECT_EQ(as_json.code, 0);
  EXPECT_EQ(parse_json(as_json.out, "report").at("prompts").as_array().size(), 4u) << as_json.out;
  // Another model's weights under the reference: everything differs.
  const testing::TempDir dir;
  for (const char* file : {"config.json", "reference.safetensors"})
    std::filesystem::copy(std::filesystem::path(reference) / file, dir.path() / file);
  const Ran wrong = run("verify --load-format dummy --json --reference " + dir.path().string());
  EXPECT_EQ(wrong.code, 1) << wrong.out;
  EXPECT_FALSE(parse_json(wrong.out, "report").at("passed").as_bool());
  const auto tokenizer = testing::source_dir() / "tests" / "tokenizer" / "llama3";
  EXPECT_EQ(run("verify --tokenizer " + tokenizer.string() + " --vectors " + (tokenizer / "vectors.jsonl").string()).code, 0);
}

TEST(Units, BytesAreReadAndWritten) {
  EXPECT_EQ(cli::parse_bytes("1.5GiB", "f"), int64_t{3} << 29);
  EXPECT_EQ(cli::parse_bytes("2MB", "f"), 2'000'000);
  EXPECT_EQ(cli::parse_bytes("4096", "f"), 4096);
  for (const char* bad : {"", "x", "1.5.2GiB", "-3", "12parsecs", "1e40", "nan"}) EXPECT_THROW(cli::parse_bytes(bad, "f"), std::runtime_error) << bad;
  EXPECT_EQ(cli::with_commas(1234567), "1,234,567");
  EXPECT_EQ(cli::bytes_text(1536), "1.50 KiB");
}

}  // namespace
}  // namespace cadre
