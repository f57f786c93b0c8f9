#include "eplb/load_series.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "tests/testing.h"

namespace cadre::eplb {
namespace {

std::string refusal(std::string_view text, const LoadFilter& filter = {}) {
  try {
    parse_load(text, "x.json", filter);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(LoadSeries, ReadsSglangsFormAndDropsDenseLayers) {
  const LoadSeries one = parse_load(R"({"logical_count": [[0, 0], [1, 2], [3, 4.5]]})", "x");
  EXPECT_EQ(one.layers, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(one.num_experts, 2);
  ASSERT_EQ(one.steps.size(), 1u);
  EXPECT_EQ(one.steps[0].rows, (std::vector<double>{1, 2, 3, 4.5}));
  // A layer that some step loads stays in all.
  const LoadSeries steps = parse_load(R"({"logical_count": [[[0, 0], [1, 2]], [[5, 0], [3, 4]]]})", "x");
  ASSERT_EQ(steps.steps.size(), 2u);
  EXPECT_EQ(steps.layers, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(steps.steps[1].rows, (std::vector<double>{5, 0, 3, 4}));
  EXPECT_EQ(steps.sum(0, 2), (std::vector<double>{5, 0, 4, 6}));
}

TEST(LoadSeries, ReadsOtherDocuments) {
  EXPECT_EQ(parse_load("[[1, 2]]", "x").num_experts, 2);
  EXPECT_EQ(parse_load("[[[1, 2]], [[3, 4]]]", "x").steps.size(), 2u);
  EXPECT_EQ(parse_load(R"({"weight": [[1, 2, 3]]})", "x").num_experts, 3);
  const LoadSeries named =
      parse_load("{\"note\": \"NaN-free\",\n\"loads\": {\"code\": [[1, 2]], \"prose\": [[3, 4]]}}", "x");
  ASSERT_EQ(named.steps.size(), 2u);
  EXPECT_EQ(named.steps[0].name, "code");
}

TEST(LoadSeries, ReadsRecordsByLayer) {
  const std::string text =
      "{\"model\": \"a\", \"domain\": \"x\", \"layer\": 7, \"counts\": [1, 2]}\n{\"model\": \"a\", \"domain\": \"x\", "
      "\"layer\": 3, \"counts\": [3, 4]}\n"
      "{\"model\": \"b\", \"domain\": \"x\", \"layer\": 3, \"counts\": [3, 4, 5]}\n";
  const LoadSeries a = parse_load(text, "x", {.only = {{"model", "a"}}});
  EXPECT_EQ(a.layers, (std::vector<int64_t>{3, 7}));
  EXPECT_EQ(a.steps[0].rows, (std::vector<double>{3, 4, 1, 2}));
  EXPECT_NE(refusal(text).find("--only"), std::string::npos);
}

TEST(LoadSeries, OwnFormComesBack) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  for (int i = 0; i < 50; ++i) {
    LoadSeries s{.num_experts = 1 + rng.below(9)};
    for (uint32_t l = 0; l < 1 + rng.below(4); ++l) s.layers.push_back(static_cast<int64_t>(l * 3));
    for (uint32_t step = 0; step < 1 + rng.below(5); ++step) {
      LoadStep one{.name = "step " + std::to_string(step), .num_steps = 1 + rng.below(100)};
      for (int64_t n = 0; n < s.num_layers() * s.num_experts; ++n)
        one.rows.push_back(rng.below(2) ? rng.below(100000) + 1 : 0.5 + rng.below(16) / 16.0);
      s.steps.push_back(std::move(one));
    }
    const LoadSeries back = parse_load(to_json_lines(s), "x");
    EXPECT_EQ(back.layers, s.layers);
    ASSERT_EQ(back.steps.size(), s.steps.size());
    for (size_t n = 0; n < s.steps.size(); ++n) {
      EXPECT_EQ(back.steps[n].rows, s.steps[n].rows);
      EXPECT_EQ(back.steps[n].num_steps, s.steps[n].num_steps);
      EXPECT_EQ(back.steps[n].name, s.steps[n].name);
    }
  }
}

TEST(LoadSeries, OwnFormAddsRanksAndRoutes) {
  const std::string head =
      "{\"format\": \"cadre.expert_load\", \"version\": 1, \"num_experts\": 3, \"layers\": [1, 4]}\n";
  const LoadSeries ranks = parse_load(head +
                                          "{\"step\": 5, \"rank\": 0, \"counts\": [[1, 0, 0], [0, 2, 0]]}\n{\"step\": "
                                          "5, \"rank\": 1, \"counts\": [[1, 0, 7], [0, 2, 0]]}\n",
                                      "x");
  ASSERT_EQ(ranks.steps.size(), 1u);
  EXPECT_EQ(ranks.steps[0].rows, (std::vector<double>{2, 0, 7, 0, 4, 0}));
  const LoadSeries routes = parse_load(head + "{\"step\": 0, \"routes\": [[[0, 2], [1, 2]], [[2, 0], [1, 0]]]}\n", "x");
  EXPECT_EQ(routes.steps[0].rows, (std::vector<double>{2, 0, 2, 1, 2, 1}));
  EXPECT_NE(refusal(head + "{\"step\": 0, \"routes\": [[[0, 3], [1, 2]]]}\n").find("experts 0 to 2, found 3"),
            std::string::npos);
  EXPECT_NE(refusal(head).find("found none"), std::string::npos);
}

TEST(LoadSeries, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"logical_count": [[1, 2], [3]]})", "layer 1: expected 2 experts as before, found 1"},
      {R"({"logical_count": [[1, -2]]})", "expert 1: expected a finite number of rows from 0 to 2^53, found -2"},
      {R"({"logical_count": [[1, 1e300]]})", "from 0 to 2^53"},
      {R"({"logical_count": [[1, NaN]]})", "found NaN"},
      {R"({"logical_count": [[1, Infinity]]})", "found Infinity"},
      {R"({"logical_count": [[1, null]]})", "expected a number of rows, found null"},
      {R"({"logical_count": [[1, "2"]]})", "found the string"},
      {R"({"logical_count": [[0, 0], [0, 0]]})", "only zeros"},
      {R"({"logical_count": []})", "found none"},
      {R"({"logical_count": [[]]})", "found none"},
      {R"({"logical_count": 5})", "found 5"},
      {R"({"logical_count": [[[1, 2]], [[1, 2], [3, 4]]]})", "step 1: expected 1 layers, found 2"},
      {R"({"loads": {}})", "name a load"},
      {R"({"something": 1})", "docs/eplb.md"},
      {"[1, 2]", "layer 0: expected a list"},
      {"", "JSON"},
      {R"({"logical_count": [[1, 2])", "JSON"},
      {"{\"format\": \"other\"}", "cadre.expert_load"},
      {"{\"format\": \"cadre.expert_load\", \"version\": 2}", "version"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_NE(refusal(text).find(expected), std::string::npos) << text << "\n" << refusal(text);
}

TEST(LoadSeries, RemarksOnOneExpertWithEverything) {
  EXPECT_TRUE(remarks(parse_load("[[1, 2]]", "x")).empty());
  const auto found = remarks(parse_load("[[1, 2], [0, 9]]", "x"));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("layer 1: expert 1 has every row"), std::string::npos);
}

TEST(LoadSeries, ReadsBareRoutes) {
  const testing::TempDir dir;
  const std::filesystem::path file = dir.path() / "routes.bin";
  const char bytes[] = {0, 1, 2, 2, 1, 0, 2, 1, 0, 0, 1, 1};  // 3 tokens, 2 layers, 2 experts each
  std::ofstream(file, std::ios::binary).write(bytes, sizeof bytes);
  const LoadSeries s =
      read_load(file, {.routes = LoadFilter::Routes{.layers = 2, .top_k = 2, .num_experts = 3, .tokens_per_step = 2}});
  ASSERT_EQ(s.steps.size(), 2u);
  EXPECT_EQ(s.steps[0].rows, (std::vector<double>{2, 2, 0, 0, 1, 3}));
  EXPECT_THROW(read_load(file, {.routes = LoadFilter::Routes{.layers = 5, .top_k = 1, .num_experts = 3}}), Error);
  EXPECT_THROW(read_load(file, {.routes = LoadFilter::Routes{.layers = 2, .top_k = 2, .num_experts = 2}}), Error);
  EXPECT_THROW(read_load(dir.path() / "absent.json"), Error);
}

// Whatever bytes come, an Error or a load.
TEST(LoadSeries, SurvivesDamage) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  const std::string good =
      "{\"format\": \"cadre.expert_load\", \"version\": 1, \"num_experts\": 2, \"layers\": [1, 4]}\n{\"step\": 0, "
      "\"steps\": 3, \"counts\": [[1, 0], [5, 2]]}\n";
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (uint32_t n = 0; n <= rng.below(4); ++n) {
      const size_t at = rng.below(static_cast<uint32_t>(text.size()));
      if (rng.below(2))
        text[at] = "{}[]:,-019en\"\n"[rng.below(14)];
      else
        text.erase(at, 1 + rng.below(8));
      if (text.empty()) text = "x";
    }
    try {
      EXPECT_FALSE(parse_load(text, "x").steps.empty());
    } catch (const Error&) {
    }
  }
}

TEST(LoadSeries, ReadsTheFilesThereAre) {
  CADRE_DATA_OR_SKIP(data);
  const std::filesystem::path loads = data / "expert_load";
  const LoadSeries r1 = read_load(loads / "deepseek_r1" / "prefill_in1024.json");
  EXPECT_EQ(r1.num_layers(), 58);
  EXPECT_EQ(r1.layers[0], 3);
  EXPECT_EQ(r1.num_experts, 256);
  const auto of_layer = r1.of(0, 0);
  EXPECT_EQ(std::accumulate(of_layer.begin(), of_layer.end(), 0.0), 67108864.0);
  EXPECT_EQ(read_load(loads / "demo_model_by_domain.json").steps.size(), 9u);
  EXPECT_EQ(read_load(loads / "deepseek_eplb_example.json").num_experts, 12);
  const LoadSeries olmoe =
      read_load(loads / "olmoe_paper" / "expert_counts.jsonl", {.only = {{"model", "Mixtral-8x7B"}, {"kind", "top1"}}});
  EXPECT_EQ(olmoe.layers, (std::vector<int64_t>{0, 15, 31}));
  EXPECT_EQ(olmoe.steps.size(), 5u);
  EXPECT_EQ(read_load(loads / "gptoss20b_tokens" / "counts_by_category.jsonl").num_layers(), 24);
  const LoadSeries routes =
      read_load(loads / "gptoss20b_tokens" / "experts_u8.bin",
                {.routes = LoadFilter::Routes{.layers = 24, .top_k = 4, .num_experts = 32, .tokens_per_step = 4096}});
  EXPECT_EQ(routes.steps.size(), (215438u + 4095) / 4096);
}

}  // namespace
}  // namespace cadre::eplb
