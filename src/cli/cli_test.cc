// The program itself, run as a user runs it: exit codes, messages, output.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/json.h"
#include "cli/units.h"
#include "tests/support/program.h"
#include "tests/testing.h"

namespace cadre {
namespace {

using testing::Ran;

Ran run(const std::string& arguments) { return testing::run_cadre(arguments); }

std::string demo() { return (testing::source_dir() / "models" / "demo").string(); }

std::string reference(const char* name) { return (testing::source_dir() / "tests" / "reference" / name / "config.json").string(); }

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(Cli, HelpSaysWhatThereIs) {
  const Ran ran = run("--help");
  EXPECT_EQ(ran.code, 0);
  for (const char* word : {"serve", "generate", "inspect", "ask", "verify", "Exit codes"}) EXPECT_TRUE(contains(ran.out, word)) << word;
  for (const char* command : {"serve", "generate", "inspect", "ask", "verify"}) EXPECT_EQ(run(std::string(command) + " --help").code, 0) << command;
}

TEST(Cli, BadFlagsAndFilesEndWithOneSentenceAndCode2) {
  for (const std::string& arguments : std::vector<std::string>{"serve", "serve " + demo() + " --max-num-seqs 0", "serve " + demo() + " --no-such-flag",
                                       "serve " + demo() + " --load-balance-method random", "serve " + demo() + " --max-prefill-tokens-per-step -1",
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

// The lines of output that are JSON objects.
std::string json_lines(const std::string& text) {
  std::string out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("{")) out += line + "\n";
  return out;
}

TEST(Cli, FourRanksAnswerAsOne) {
  const std::string flags = "generate " + demo() + " --temperature 0 --max-tokens 10 --json --prompt 'Once upon a time there was' --prompt 'Es war einmal' ";
  const Ran one = run(flags);
  ASSERT_EQ(one.code, 0) << one.out;
  ASSERT_FALSE(json_lines(one.out).empty()) << one.out;
  for (const char* layout : {"-dp 4 --enable-expert-parallel", "-dp 2 -ep --dp-sync waves", "--tp-size 4 --dp-size 4 --enable-dp-attention --ep-size 4 --moe-a2a-backend deepep"})
    EXPECT_EQ(json_lines(run(flags + layout).out), json_lines(one.out)) << layout;
}

TEST(Cli, LaunchedProcessesAnswerAsOneRank) {
  const std::string command = "generate " + demo() + " --temperature 0 --max-tokens 8 --json --prompt 'Once upon a time there was' --prompt 'Es war einmal' ";
  const Ran one = run(command);
  for (const char* layout : {"-dp 3 -ep", "--tp-size 2 --ep-size 2"}) {
    const std::string ranks = layout[1] == 'd' ? "3" : "2";
    const Ran launched = run("launch -n " + ranks + " " + command + layout);
    EXPECT_EQ(launched.code, 0) << launched.out;
    EXPECT_EQ(json_lines(launched.out), json_lines(one.out)) << launched.out;
  }
  const Ran wrong = run("launch -n 2 " + command + "-dp 3 -ep");
  EXPECT_EQ(wrong.code, 2) << wrong.out;
  EXPECT_TRUE(contains(wrong.out, "found 2 started by cadre")) << wrong.out;
  EXPECT_EQ(run("launch -n 2").code, 2);
  EXPECT_EQ(run("launch -n 0 version").code, 2);
  const Ran report = run("launch -n 2 " + command + "-dp 2 -ep --report");
  EXPECT_EQ(report.code, 2) << report.out;
  EXPECT_TRUE(contains(report.out, "expected ranks as threads")) << report.out;
}

TEST(Cli, TraceFollowsOneTokenInTextAndJson) {
  const std::string flags = "generate " + demo() + " --prompt 'Once upon a time there was' --prompt 'Es war einmal' --trace-token 3 ";
  const Ran text = run(flags + "--tp-size 4 --dp-size 4 --enable-dp-attention --ep-size 4 --moe-a2a-backend deepep");
  EXPECT_EQ(text.code, 0) << text.out;
  for (const char* part : {"data-parallel rank 0 of 4, for life", "0 rows, idle; it takes the step with the others",
                           "feed-forward  SCATTERED: no gather", "calls and bytes equal what the cost functions predict",
                           "finished last", "added at the owner in top-k order"})
    EXPECT_TRUE(contains(text.out, part)) << part << "\n" << text.out;
  const Ran as_json = run(flags + "--json -dp 2 -ep"), one = run(flags + "--json");
  ASSERT_EQ(as_json.code, 0) << as_json.out;
  const json::value trace = parse_json(json_lines(as_json.out), "trace"), alone = parse_json(json_lines(one.out), "trace");
  EXPECT_TRUE(trace.at("counts_are_as_predicted").as_bool());
  EXPECT_EQ(trace.at("token"), alone.at("token")) << "any layout, one answer";
  EXPECT_EQ(alone.at("collectives").as_array().size(), 0u);
  for (const auto& [arguments, part] : std::vector<std::pair<std::string, std::string>>{{reference("llama") + " --load-format dummy --trace-token 1", "found a dense one (llama)"},
                                                                                        {demo() + " --trace-token 1 --trace-layer 99", "expected a sparse layer of the model"},
                                                                                        {demo() + " --trace-token 1000000", "within the context"},
                                                                                        {demo() + " --trace-token 0", "trace-token"}}) {
    const Ran ran = run("generate " + arguments + " --prompt x");
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_TRUE(contains(ran.out, part)) << ran.out;
  }
}

TEST(Cli, ReportTellsWhatMovedAndHowEvenTheLoadWas) {
  const testing::TempDir dir;
  const std::string file = (dir.path() / "report.json").string();
  const std::string flags = "generate " + demo() + " --temperature 0 --max-tokens 5 --ignore-eos --report --report-file " + file + " --prompt 'Once upon a time there was' --prompt 'Es war einmal' ";
  const auto calls = [&](const char* kind) {
    const json::value report = parse_json_file(file);
    for (const json::value& layers : report.at("moved").as_array())
      if (layers.at("layer_kind").as_string() == "sparse")
        for (const json::value& c : layers.at("collectives").as_array())
          if (c.at("kind").as_string() == kind) return c.at("calls_per_layer_and_step").as_double();
    return 0.0;
  };
  const Ran gather = run(flags + "-dp 4 -ep --all2all-backend allgather_reducescatter");
  ASSERT_EQ(gather.code, 0) << gather.out;
  EXPECT_TRUE(contains(gather.out, "balancedness") && contains(gather.out, "moe_gather") && contains(gather.out, "distinct tokens in the cluster")) << gather.out;
  EXPECT_EQ(calls("moe_gather"), 1);
  ASSERT_EQ(run(flags + "-dp 4 -ep --all2all-backend deepep").code, 0);
  EXPECT_EQ(calls("moe_gather"), 0) << "the gather that disappears";
  EXPECT_EQ(calls("dispatch"), 1);
  const json::value report = parse_json_file(file);
  // Each row of the prompts and of all but the last new token chose top_k experts in every layer.
  int64_t rows = -1;
  for (const json::value& layer : report.at("balance").as_array()) {
    int64_t sum = 0;
    for (const json::value& r : layer.at("rows_of_rank").as_array()) sum += r.as_int64();
    EXPECT_TRUE(rows < 0 || sum == rows);
    rows = sum;
    EXPECT_LE(layer.at("balancedness").as_double(), 1.0);
    EXPECT_GE(layer.at("balancedness").as_double(), 0.25);
  }
  EXPECT_GT(rows, 0);
  const Ran dense = run("generate " + reference("llama") + " --load-format dummy --max-tokens 2 --prompt x --report");
  EXPECT_EQ(dense.code, 0) << dense.out;
  EXPECT_TRUE(contains(dense.out, "nothing moves") && !contains(dense.out, "balancedness")) << dense.out;
  EXPECT_EQ(run(flags + "--report-file /nowhere/at/all").code, 2);
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

TEST(Cli, ExplainPrintsTheLayoutAndLoadsNothing) {
  const Ran one = run("serve " + demo() + " --explain");
  EXPECT_EQ(one.code, 0) << one.out;
  EXPECT_TRUE(contains(one.out, "layout  1 rank: attention dp 1 x cp 1 x tp 1; experts ep 1 x tp 1")) << one.out;
  EXPECT_FALSE(contains(one.out, "note")) << one.out;
  // A configuration alone: there are no weights to load.
  const Ran deep = run("serve " + reference("deepseek_v3") + " --tp 4 --dp-size 4 --ep 4 --enable-dp-attention --moe-a2a-backend deepep --explain");
  EXPECT_EQ(deep.code, 0) << deep.out;
  for (const char* part : {"4 ranks: attention dp 4 x cp 1 x tp 1; experts ep 4 x tp 1; dense layers tp 1; placement linear, exchange alltoall, dispatch float32, combine exact",
                           "deepep is read as alltoall", "sparse layers: 1-2", "feed-forward  SCATTERED: no gather, dispatch and combine over world (alltoall), the combine owns the sum",
                           "3     3/0/0          3/0        12-15    latent"})
    EXPECT_TRUE(contains(deep.out, part)) << part << "\n" << deep.out;
}

TEST(Cli, ExplainAsJsonIsTheSameLayout) {
  const Ran ran = run("serve " + reference("deepseek_v3") + " --tp 4 --dp-size 2 --ep 4 --enable-dp-attention --moe-a2a-backend deepep --explain-json");
  ASSERT_EQ(ran.code, 0) << ran.out;
  const json::value plan = parse_json(ran.out, "plan");
  EXPECT_EQ(plan.at("layout").at("attn_tp").as_int64(), 2);
  EXPECT_EQ(plan.at("layers").as_array().size(), 2u);
  const json::value& sparse = plan.at("layers").at(1);
  EXPECT_EQ(sparse.at("layers"), (json::array{1, 2}));
  EXPECT_EQ(sparse.at("attention").at("scatter_mode").as_string(), "TP_ATTN_FULL");
  EXPECT_EQ(sparse.at("feed_forward").at("scatter_mode").as_string(), "SCATTERED");
  EXPECT_EQ(sparse.at("feed_forward").at("owner_of_sum").as_string(), "combine");
  EXPECT_EQ(plan.at("ranks").at(3).at("experts"), (json::array{12, 13, 14, 15}));
}

TEST(Cli, PicturesInTheDocsAreWhatTheScriptDrawsToday) {
  const testing::TempDir dir;
  const std::string plan = (dir.path() / "plan.json").string(), script = (testing::source_dir() / "tools" / "draw_layer_plan.py").string();
  for (const auto& [picture, flags] : std::vector<std::pair<const char*, const char*>>{{"tp4_dp2_ep4_alltoall.svg", "--dp-size 2 --moe-a2a-backend alltoall"},
                                                                                      {"dp4_ep4_allgather.svg", "--dp-size 4 --moe-a2a-backend allgather_reducescatter"}}) {
    const Ran ran = run("serve " + reference("deepseek_v3") + " --tp-size 4 --enable-dp-attention --ep-size 4 " + flags + " --explain-json > " + plan + "; python3 " + script + " " + plan);
    ASSERT_EQ(ran.code, 0) << ran.out;
    std::ifstream file(testing::source_dir() / "docs" / "pictures" / picture);
    const std::string committed{std::istreambuf_iterator<char>(file), {}};
    EXPECT_TRUE(ran.out == committed) << picture << ": draw it again (docs/step_and_layer.md)";
  }
}

TEST(Cli, BothSpellingsExplainTheSameLayout) {
  const auto ranks = [](const Ran& ran) { return ran.out.substr(ran.out.find("layout")); };
  const std::string model = "generate " + reference("qwen3_moe") + " --explain ";
  const Ran sglang = run(model + "--tp-size 4 --dp-size 2 --enable-dp-attention --ep-size 4 --moe-a2a-backend alltoall");
  EXPECT_EQ(sglang.code, 0) << sglang.out;
  EXPECT_TRUE(contains(sglang.out, "attention     TP_ATTN_FULL: all-gather over attn_tp, reduce-scatter over attn_tp, which owns the sum")) << sglang.out;
  for (const char* vllm : {"-tp 2 -dp 2 -ep --all2all-backend alltoall", "-tp=2 -dp=2 -pcp 1 --enable-expert-parallel --all2all-backend=alltoall",
                           "--tensor-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel --all2all-backend alltoall"}) {
    const Ran ran = run(model + vllm);
    EXPECT_EQ(ran.code, 0) << ran.out;
    EXPECT_EQ(ranks(ran), ranks(sglang)) << vllm;
  }
}

TEST(Cli, ExplainNamesExpertsAndPartsOfEachRank) {
  const std::string model = "serve " + reference("olmoe") + " --explain ";
  const Ran robin = run(model + "-dp 4 -ep --expert-placement-strategy round_robin");
  EXPECT_TRUE(contains(robin.out, "3/0        3-15 by 4")) << robin.out;
  EXPECT_TRUE(contains(robin.out, "note    --all2all-backend: not given, so auto")) << robin.out;
  const Ran both = run(model + "--tp-size 4 --dp-size 4 --enable-dp-attention --ep-size 2");
  EXPECT_TRUE(contains(both.out, "1/1        8-15, part 2 of 2")) << both.out;
  const Ran uneven = run(model + "-dp 3 -ep");
  EXPECT_TRUE(contains(uneven.out, "6 on each of the first 1, 5 on the others")) << uneven.out;
  const Ran split = run("serve " + reference("qwen3_moe") + " --explain -tp 4");
  EXPECT_TRUE(contains(split.out, "each head is cached on 2 of them")) << split.out;
  EXPECT_TRUE(contains(split.out, "feed-forward  FULL: all-gather over world, reduce-scatter over world, which owns the sum")) << split.out;
}

TEST(Cli, LayoutsThatDoNotGoAreRefusedInOneSentence) {
  for (const auto& [flags, part] : std::vector<std::pair<std::string, std::string>>{{"--explain --tp-size 4 --dp-size 2", "start one server for each"},
                                                                                    {"--explain --tp-size 2 -ep", "one engine's spelling"},
                                                                                    {"--explain -tp 3", "query heads, found 3"},
                                                                                    {"--explain -dp 2 --enable-eplb", "--enable-expert-parallel"},
                                                                                    {"--explain -dp 2 -ep --all2all-backend mooncake", "alltoall_low_latency"},
                                                                                    {"--explain -tp two", "two"},
                                                                                    {"--load-format dummy --attn-cp-size 2 --tp-size 2", "context-parallel"}}) {
    const Ran ran = run("generate " + reference("qwen3_moe") + " --prompt x " + flags);
    EXPECT_EQ(ran.code, 2) << flags << "\n" << ran.out;
    EXPECT_TRUE(contains(ran.out, part)) << flags << "\n" << ran.out;
    EXPECT_LE(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << ran.out;
  }
  EXPECT_EQ(run("verify --tokenizer " + demo() + " --vectors /nowhere --explain").code, 2);
}

TEST(Cli, WhatDoesNothingOnOneRankIsSaidAndRuns) {
  const Ran ran = run("generate " + reference("qwen3_moe") + " --load-format dummy --max-tokens 2 --prompt x --enable-expert-parallel");
  EXPECT_EQ(ran.code, 0) << ran.out;
  EXPECT_TRUE(contains(ran.out, "cadre: --enable-expert-parallel: does nothing on one rank")) << ran.out;
}

TEST(Cli, ActivationDtypeIsExplainedJudgedByItsOwnBoundsAndRefusedWhereItCannotBe) {
  const Ran explained = run("serve " + demo() + " -dp 4 -ep --dispatch-dtype fp8 --activation-dtype fp8 --explain");
  EXPECT_EQ(explained.code, 0) << explained.out;
  EXPECT_TRUE(contains(explained.out, "inputs of products in fp8 where the weights are")) << explained.out;
  const Ran verified = run("verify --activation-dtype fp8 --reference " + demo());
  EXPECT_EQ(verified.code, 0) << verified.out;
  EXPECT_TRUE(contains(verified.out, "only reported")) << verified.out;
  // One answer from one rank and from four that send FP8 rows.
  const std::string prompt = " --activation-dtype fp8 --temperature 0 --max-tokens 24 --prompt 'Once upon a time'";
  const auto answer = [](const Ran& ran) { return ran.out.substr(0, ran.out.find('\n')); };
  const Ran one = run("generate " + demo() + prompt), four = run("generate " + demo() + " -dp 4 -ep --dispatch-dtype fp8" + prompt);
  EXPECT_EQ(four.code, 0) << four.out;
  EXPECT_TRUE(contains(four.out, answer(one))) << one.out << four.out;
  for (const char* refused : {"mixtral", "deepseek_v3_fp8"}) {  // the second because ranks cut groups of 128
    const Ran ran = run("serve " + reference(refused) + " -tp 2 --activation-dtype fp8 --explain");
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_TRUE(contains(ran.out, "--activation-dtype fp8: expected")) << ran.out;
  }
  EXPECT_EQ(run("generate " + demo() + " --activation-dtype fp4 --prompt x").code, 2);
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
