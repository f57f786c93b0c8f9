#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "tests/testing.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace cadre {
namespace {

std::filesystem::path fixtures() { return testing::source_dir() / "tests" / "tokenizer"; }

constexpr const char* kFixtures[] = {"spm_legacy", "spm_metaspace", "spm_unknown", "gemma",  "llama3",
                                     "neox",       "kimi_k2",       "deepseek_v2", "falcon", "prefix_space"};

std::vector<json::value> read_lines(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<json::value> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, file.string()));
  return lines;
}

std::vector<TokenId> ids_of(const json::value& value) {
  std::vector<TokenId> ids;
  for (const auto& id : value.as_array()) ids.push_back(static_cast<TokenId>(id.as_int64()));
  return ids;
}

std::string string_of(const json::value& value) { return std::string(std::string_view(value.as_string())); }

std::string stream(const Tokenizer& tokenizer, std::span<const TokenId> ids, bool skip) {
  IncrementalDetokenizer detokenizer(tokenizer, skip);
  std::string text;
  for (const TokenId id : ids) {
    std::string shown;
    detokenizer.push(id, &shown);
    EXPECT_TRUE(utf8::is_valid(shown));
    text += shown;
  }
  detokenizer.finish(&text);
  return text;
}

// Lines {"text", "ids", "decoded" where it is not the text, "ids_special" in own fixtures}: encoded, decoded, streamed.
void check_vectors(const Tokenizer& tokenizer, const std::filesystem::path& file, size_t min_lines) {
  const auto lines = read_lines(file);
  EXPECT_GE(lines.size(), min_lines);
  for (const json::value& vector : lines) {
    const std::string text = string_of(vector.at("text"));
    SCOPED_TRACE(cadre::quoted(text, 400));
    const std::vector<TokenId> expected = ids_of(vector.at("ids"));
    const json::value* decoded = vector.as_object().if_contains("decoded");
    ASSERT_EQ(tokenizer.encode(text, false), expected);
    ASSERT_EQ(tokenizer.decode(expected, false), decoded ? string_of(*decoded) : text);
    ASSERT_EQ(stream(tokenizer, expected, false), tokenizer.decode(expected, false));
    ASSERT_EQ(stream(tokenizer, expected, true), tokenizer.decode(expected, true));
    const json::value* special = vector.as_object().if_contains("ids_special");
    if (!special || (!expected.empty() && expected[0] == tokenizer.bos_id())) continue;
    ASSERT_EQ(tokenizer.encode(text, true), ids_of(*special));
  }
}

class SharedTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(SharedTokenizer, VectorsEqual) {
  CADRE_DATA_OR_SKIP(data);
  const auto tokenizer = load_tokenizer(data / "tokenizers" / GetParam());
  check_vectors(*tokenizer, data / "tokenizers" / "test_vectors" / (std::string(GetParam()) + ".jsonl"), 400);
}

INSTANTIATE_TEST_SUITE_P(All, SharedTokenizer, ::testing::Values("deepseek_v3", "qwen3", "gptoss"));

class OwnTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(OwnTokenizer, VectorsEqual) {
  const auto tokenizer = load_tokenizer(fixtures() / GetParam());
  check_vectors(*tokenizer, fixtures() / GetParam() / "vectors.jsonl", 150);
}

// Any ids: padding rows, specials, bytes that never make a character.
TEST_P(OwnTokenizer, StreamOfRandomIdsEqualsWhole) {
  SCOPED_TRACE(testing::seed());
  const auto tokenizer = load_tokenizer(fixtures() / GetParam());
  Rng rng(testing::seed());
  for (int round = 0; round < 2000; ++round) {
    std::vector<TokenId> ids(rng.below(12));
    for (TokenId& id : ids) id = static_cast<TokenId>(rng.below(static_cast<uint32_t>(tokenizer->vocab_size()) + 5));
    const bool skip = rng.below(2) == 1;
    ASSERT_EQ(stream(*tokenizer, ids, skip), tokenizer->decode(ids, skip)) << json::serialize(json::value_from(ids));
  }
}

INSTANTIATE_TEST_SUITE_P(All, OwnTokenizer, ::testing::ValuesIn(kFixtures));

TEST(HfTokenizer, StreamOfRandomIdsEqualsWholeOnPublishedOnes) {
  CADRE_DATA_OR_SKIP(data);
  SCOPED_TRACE(testing::seed());
  for (const char* name : {"deepseek_v3", "qwen3", "gptoss"}) {
    const auto tokenizer = load_tokenizer(data / "tokenizers" / name);
    Rng rng(testing::seed());
    for (int round = 0; round < 3000; ++round) {
      std::vector<TokenId> ids(1 + rng.below(20));
      for (TokenId& id : ids)
        id = static_cast<TokenId>(rng.below(static_cast<uint32_t>(tokenizer->vocab_size()) + 200));
      const bool skip = rng.below(2) == 1;
      ASSERT_EQ(stream(*tokenizer, ids, skip), tokenizer->decode(ids, skip)) << name;
    }
  }
}

// Without a normalizer that loses something, decode(encode(text)) is the text.
TEST(HfTokenizer, RoundTrips) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  const auto demo = load_tokenizer(testing::source_dir() / "models" / "demo");
  const auto llama = load_tokenizer(fixtures() / "spm_legacy");
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (uint32_t n = rng.below(20); n > 0; --n) {
      const uint32_t c = rng.below(4) == 0 ? rng.below(0x10FFFF) : rng.below(0x250);
      if (c < 0xD800 || c > 0xDFFF) utf8::append(text, c);
    }
    ASSERT_EQ(demo->decode(demo->encode(text, false), false), text);
    // The metaspace stands for the space, and one that is written cannot come back.
    if (text.find("\xE2\x96\x81") != text.npos) continue;
    ASSERT_EQ(llama->decode(llama->encode(text, false), false), text);
  }
}

TEST(HfTokenizer, Demo) {
  const auto tokenizer = load_tokenizer(testing::source_dir() / "models" / "demo");
  ASSERT_TRUE(tokenizer->bos_id());
  EXPECT_EQ(tokenizer->bos_id(), tokenizer->id_of("<|begin|>"));
  EXPECT_EQ(tokenizer->eos_id(), tokenizer->id_of("<|end|>"));
  EXPECT_TRUE(tokenizer->is_special(*tokenizer->bos_id()));
  EXPECT_FALSE(tokenizer->chat_template().empty());
  EXPECT_EQ(tokenizer->vocab_size(), 4096);
}

// One begin token, whoever writes it: the flag, the text, or a template in the text.
TEST(HfTokenizer, ExactlyOneBeginToken) {
  for (const auto& dir :
       {testing::source_dir() / "models" / "demo", fixtures() / "llama3", fixtures() / "spm_legacy"}) {
    const auto tokenizer = load_tokenizer(dir);
    const TokenId bos = *tokenizer->bos_id();
    const std::string bos_text = tokenizer->decode(std::vector<TokenId>{bos}, false);
    for (const std::string& text : {std::string("Hi"), bos_text + "Hi"}) {
      const auto ids = tokenizer->encode(text, true);
      EXPECT_EQ(std::count(ids.begin(), ids.end(), bos), 1) << dir << text;
      EXPECT_EQ(ids.at(0), bos);
    }
    EXPECT_EQ(tokenizer->encode("", true), std::vector<TokenId>{bos});
    EXPECT_EQ(tokenizer->encode("", false), std::vector<TokenId>{});
  }
}

// A byte-level tokenizer of a few tokens; parts are written over its own.
std::string small_json(std::string_view parts = "") {
  return std::string(
             R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3, "</s>": 4}, "merges": ["a b"]},
    "added_tokens": [{"id": 3, "content": "<s>", "special": true}, {"id": 4, "content": "</s>", "special": true}],
    "decoder": {"type": "Fuse"})") +
         (parts.empty() ? "" : ",") + std::string(parts) + "}";
}

TEST(HfTokenizer, ConfigFlagsWinOverThePostProcessor) {
  const std::string with_template = small_json(R"("post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}})");
  const auto ids = [&](std::string_view json, std::string_view config) {
    return tokenizer_from_json(json, config)->encode("ab", true);
  };
  const std::string named = R"("bos_token": "<s>", "eos_token": {"content": "</s>"})";
  EXPECT_EQ(ids(with_template, ""), (std::vector<TokenId>{3, 2}));
  EXPECT_EQ(ids(with_template, "{" + named + "}"), (std::vector<TokenId>{3, 2}));
  EXPECT_EQ(ids(with_template, "{" + named + R"(, "add_bos_token": false})"), (std::vector<TokenId>{2}));
  EXPECT_EQ(ids(with_template, "{" + named + R"(, "add_eos_token": true})"), (std::vector<TokenId>{3, 2, 4}));
  EXPECT_EQ(ids(small_json(), "{" + named + "}"), (std::vector<TokenId>{2}));
  EXPECT_EQ(ids(small_json(), "{" + named + R"(, "add_bos_token": true, "add_eos_token": true})"),
            (std::vector<TokenId>{3, 2, 4}));
  EXPECT_THROW(ids(small_json(), R"({"add_bos_token": true})"), Error);
  EXPECT_THROW(ids(small_json(), R"({"bos_token": "<nope>"})"), Error);
}

TEST(HfTokenizer, ConfigMayNameFurtherAddedTokens) {
  const auto tokenizer =
      tokenizer_from_json(small_json(), R"({"added_tokens_decoder": {"3": {"content": "<s>", "special": true},
                        "9": {"content": "<think>", "special": false}, "10": {"content": "<|x|>", "special": true}}})");
  EXPECT_EQ(tokenizer->encode("a<think>b<|x|>", false), (std::vector<TokenId>{0, 9, 1, 10}));
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{0, 9, 7, 10}, true), "a<think>");
  EXPECT_EQ(tokenizer->vocab_size(), 11);
}

TEST(HfTokenizer, ChatTemplatePlaces) {
  const auto of_config = [](std::string_view config) {
    return tokenizer_from_json(small_json(), config)->chat_template();
  };
  EXPECT_EQ(of_config(""), "");
  EXPECT_EQ(of_config(R"({"chat_template": "T"})"), "T");
  EXPECT_EQ(
      of_config(R"({"chat_template": [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "D"}]})"),
      "D");
  EXPECT_EQ(of_config(R"({"chat_template": [{"name": "only", "template": "O"}]})"), "O");
  EXPECT_EQ(of_config(R"({"chat_template": [{"name": "x", "template": "X"}, {"name": "y", "template": "Y"}]})"), "");
  EXPECT_THROW(of_config(R"({"chat_template": 3})"), Error);

  const testing::TempDir dir;
  const auto write = [&](const char* name, const std::string& text) { std::ofstream(dir.path() / name) << text; };
  write("tokenizer.json", small_json());
  write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(load_tokenizer(dir.path())->chat_template(), "config");
  write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(load_tokenizer(dir.path())->chat_template(), "json");
  write("chat_template.jinja", "jinja\n");
  EXPECT_EQ(load_tokenizer(dir.path())->chat_template(), "jinja\n");
}

TEST(HfTokenizer, DecoderLess) {
  const auto tokenizer = tokenizer_from_json(
      R"({"model": {"vocab": {"a": 0, "b": 1}, "merges": []}, "added_tokens": null, "decoder": null})");
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{0, 5, 1, 0}, false), "a b a");
}

// What takes quadratic time elsewhere: one letter, marks in falling order, spaces before the end of a line.
TEST(HfTokenizer, LongRunsTakeNoQuadraticTime) {
  const auto start = std::chrono::steady_clock::now();
  std::string falling_marks;
  for (const char* mark : {"\xCC\x81", "\xCC\xA3"})
    for (int i = 0; i < (1 << 18); ++i) falling_marks += mark;
  std::string spaces(1 << 20, ' ');
  spaces.back() = 'x';
  for (const char* name : kFixtures) {
    const auto tokenizer = load_tokenizer(fixtures() / name);
    for (const std::string& text : {std::string(1 << 20, 'x'), std::string(1 << 20, 'X'), spaces, falling_marks})
      EXPECT_GT(tokenizer->encode(text, false).size(), 0u);
  }
  // Forty texts of a megabyte. A quadratic one alone would take hours; sanitizers and a busy machine have their room.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(10));
}

TEST(HfTokenizer, ThreadsShareOne) {
  const auto tokenizer = load_tokenizer(fixtures() / "kimi_k2");
  const auto lines = read_lines(fixtures() / "kimi_k2" / "vectors.jsonl");
  std::vector<std::thread> threads;
  std::array<bool, 4> right{};
  for (size_t t = 0; t < right.size(); ++t)
    threads.emplace_back([&, t] {
      right[t] = std::all_of(lines.begin(), lines.end(), [&](const json::value& line) {
        return tokenizer->encode(string_of(line.at("text")), false) == ids_of(line.at("ids"));
      });
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, (std::array<bool, 4>{true, true, true, true}));
}

}  // namespace
}  // namespace cadre
