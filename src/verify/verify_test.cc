// The verifier itself: it must find what is wrong, and say no to files that are not in the form.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "config/model_config.h"
#include "tests/testing.h"
#include "verify/verify_model.h"
#include "verify/verify_text.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

fs::path checkpoint() { return testing::source_dir() / "tests" / "reference" / "deepseek_v3"; }

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The report when one value of one tensor of the reference is another.
template <typename T>
ModelReport report_with(const std::string& tensor, size_t index, T value) {
  const testing::TempDir dir;
  std::string bytes = read_file(checkpoint() / "reference.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  for (const SafetensorsEntry& e : read_safetensors_header(std::as_bytes(std::span(bytes)), "reference"))
    if (e.name == tensor) std::memcpy(bytes.data() + e.begin + index * sizeof(T), &value, sizeof(T));
  std::ofstream(dir.path() / "reference.safetensors", std::ios::binary) << bytes;
  const ModelConfig config = load_model_config(checkpoint());
  ModelRunner runner({.config = config, .open_weights = [] { return open_checkpoint(checkpoint()); }, .decoder = {.max_batched_tokens = 256}, .num_blocks = 40});
  return verify_model(runner, ReferenceSet(dir.path()), {}, 1);
}

TEST(VerifyModel, FindsOneWrongLogit) {
  const ModelReport report = report_with("logits.1", 3 * 320 + 7, 1000.0f);
  EXPECT_FALSE(report.passed());
  EXPECT_TRUE(report.prompts[0].passed(report.bounds));
  EXPECT_GT(report.prompts[1].max_logit_error, 900);
  EXPECT_EQ(report.prompts[1].max_logit_error_position, 3);
  EXPECT_FALSE(report_with("logits.1", 0, std::nanf("")).passed());
  EXPECT_NE(report_text(report).find("FAILED"), std::string::npos);
  EXPECT_FALSE(report_json(report).at("passed").as_bool());
  json::serialize(report_json(report_with("logits.1", 0, std::nanf(""))));
}

TEST(VerifyModel, FindsOneWrongGreedyTokenAndOneWrongRoute) {
  const ModelReport greedy = report_with<int32_t>("greedy.2", 5, 319);
  EXPECT_FALSE(greedy.passed());
  EXPECT_EQ(greedy.prompts[2].first_greedy_difference, 5);
  const ModelReport route = report_with<int32_t>("router.1.model.layers.1.mlp.gate.2", 0, 99);
  EXPECT_FALSE(route.passed());
  EXPECT_EQ(route.prompts[1].num_route_differences, 1);
  const ModelReport weight = report_with<float>("router.1.model.layers.1.mlp.gate.1", 4, -3.0f);
  EXPECT_EQ(weight.prompts[1].num_route_differences, 1);
}

TEST(VerifyModel, RefusesWhatIsNotInTheForm) {
  const testing::TempDir dir;
  EXPECT_THROW(ReferenceSet{dir.path()}, Error);
  std::ofstream(dir.path() / "reference.safetensors", std::ios::binary) << std::string("\x02\0\0\0\0\0\0\0{}", 10);
  EXPECT_THROW(ReferenceSet{dir.path()}, Error);
  const ReferenceSet reference(checkpoint());
  EXPECT_THROW(reference.read("0", 321), Error);
  EXPECT_THROW(reference.read("9", 320), Error);
}

fs::path own_tokenizer() { return testing::source_dir() / "tests" / "tokenizer" / "kimi_k2"; }

TEST(VerifyText, TokenizerVectorsPassAndOneWrongIdIsFound) {
  const VectorReport good = verify_tokenizer(own_tokenizer(), own_tokenizer() / "vectors.jsonl");
  EXPECT_TRUE(good.passed()) << report_text(good);
  EXPECT_GE(good.num_equal, 100);
  const testing::TempDir dir;
  const fs::path file = dir.path() / "v.jsonl";
  std::ofstream(file) << R"({"text":"ab","ids":[1,2,3]})" << "\n\n" << R"({"text":"","ids":[]})" << "\n";
  const VectorReport bad = verify_tokenizer(own_tokenizer(), file);
  EXPECT_FALSE(bad.passed());
  EXPECT_EQ(bad.num_different, 1);
  EXPECT_EQ(bad.num_equal, 1);
  EXPECT_EQ(bad.failures.at(0).line, 1);
  for (const char* line : {"{", "[]", R"({"text":"x"})", R"({"text":"x","ids":[-1]})", R"({"ids":[]})", ""}) {
    std::ofstream(file) << line;
    EXPECT_THROW(verify_tokenizer(own_tokenizer(), file), Error) << line;
  }
  EXPECT_THROW(verify_tokenizer(own_tokenizer(), dir.path() / "none"), Error);
}

TEST(VerifyText, TemplatesAreFoundComparedAndSkipped) {
  const testing::TempDir dir;
  fs::create_directories(dir.path() / "templates");
  fs::create_directories(dir.path() / "model");
  std::ofstream(dir.path() / "templates" / "a.jinja") << "{{ messages[0].content }}{{ strftime_now('%Y') }}";
  std::ofstream(dir.path() / "model" / "tokenizer_config.json") << R"({"chat_template":"{{ raise_exception('no') }}"})";
  const fs::path file = dir.path() / "v.jsonl";
  const std::string right = R"({"template":"templates/a.jinja","case":"x","messages":[{"content":"hi"}],"rendered":"hi2026"})", no = R"({"template":"tokenizer_config:model","error":"no"})",
                    absent = R"({"template":"b.jinja","rendered":""})", wrong = R"({"template":"a.jinja","messages":[{"content":"ho"}],"rendered":"hi2026"})",
                    not_refused = R"({"template":"a.jinja","messages":[{"content":"ho"}],"error":"e"})";
  constexpr int64_t kNow = 1767312000;  // 2026-01-02
  std::ofstream(file) << right << "\n" << no << "\n" << absent << "\n";
  for (const fs::path& given : {dir.path(), dir.path() / "templates", dir.path() / "templates/"}) {
    const VectorReport report = verify_templates(given, file, kNow);
    EXPECT_TRUE(report.passed()) << report_text(report);
    EXPECT_EQ(report.num_equal, 2);
    EXPECT_EQ(report.missing, std::vector<std::string>{"b.jinja"});
  }
  std::ofstream(file) << right << "\n" << wrong << "\n" << not_refused << "\n";
  const VectorReport report = verify_templates(dir.path() / "templates", file, kNow);
  EXPECT_EQ(report.num_different, 2);
  EXPECT_FALSE(report.passed());
  std::ofstream(file) << absent;
  EXPECT_FALSE(verify_templates(dir.path(), file, kNow).passed()) << "nothing compared is not a pass";
}

}  // namespace
}  // namespace cadre
