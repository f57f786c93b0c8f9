// Files that are cut, lie, or are of another kind: one sentence each, naming what was found.
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/rng.h"
#include "tests/testing.h"
#include "tokenizer/tokenizer.h"

namespace cadre {
namespace {

std::string message_of(std::string_view json, std::string_view config = {}) {
  try {
    tokenizer_from_json(json, config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string with_model(const std::string& model) { return "{\"model\": " + model + "}"; }

std::string with_part(const std::string& part) {
  return R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}, )" + part + "}";
}

struct Case {
  std::string json;
  const char* expected_in_message;
};

void expect_refused(const std::vector<Case>& cases) {
  for (const Case& bad : cases) {
    const std::string message = message_of(bad.json);
    EXPECT_NE(message.find(bad.expected_in_message), std::string::npos) << bad.json << "\n  said: " << message;
    EXPECT_NE(message.find("expected"), std::string::npos) << message;
  }
}

TEST(BadTokenizer, Models) {
  expect_refused({
      {"", "tokenizer.json"},
      {"[]", "an array"},
      {"{}", "model"},
      {R"({"model": 3})", "found 3"},
      {with_model(R"({"type": "Unigram", "vocab": [["a", 0.0]]})"), "Unigram"},
      {with_model(R"({"type": "WordPiece", "vocab": {"a": 0}})"), "WordPiece"},
      {with_model(R"({"type": "BPE", "merges": []})"), "vocab"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 0}})"), "merges"},
      {with_model(R"({"type": "BPE", "vocab": [], "merges": []})"), "an object"},
      {with_model(R"({"type": "BPE", "vocab": {"a": -1}, "merges": []})"), "found -1"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 99999999999}, "merges": []})"), "99999999999"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 2147483647}, "merges": []})"), "2147483647"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 18446744073709551615}, "merges": []})"), "18446744073709551615"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 1.5}, "merges": []})"), "1.5"},
      {with_model(R"({"type": "BPE", "vocab": {"a": "0"}, "merges": []})"), "the string"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []})"), "each id once"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]})"), "'ab'"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a z"]})"), "'z'"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]})"), "two tokens"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]})"), "two tokens"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 0}, "merges": [["a", 3]]})"), "two tokens"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 0}, "merges": {"a": "b"}})"), "an array"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1})"), "dropout"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>"})"), "</w>"},
      {with_model(R"({"type": "BPE", "vocab": {"a": 0}, "merges": [], "byte_fallback": 1})"), "byte_fallback"},
  });
}

TEST(BadTokenizer, Parts) {
  expect_refused({
      {with_part(R"("normalizer": {"type": "Precompiled", "precompiled_charsmap": "x"})"), "Precompiled"},
      {with_part(R"("normalizer": {"type": "Precompiled", "precompiled_charsmap": "x"})"), "NFC"},
      {with_part(R"("normalizer": {"type": "Replace", "pattern": {"Regex": "("}, "content": ""})"),
       "regular expression"},
      {with_part(R"("normalizer": {"type": "Replace", "pattern": {}, "content": ""})"), "pattern"},
      {with_part(R"("normalizer": [])"), "an object"},
      {with_part(R"("pre_tokenizer": {"type": "BertPreTokenizer"})"), "BertPreTokenizer"},
      {with_part(R"("pre_tokenizer": {"type": "Split", "pattern": {"String": "x"}, "behavior": "Sideways"})"),
       "Sideways"},
      {with_part(R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": 3})"), "an array"},
      {with_part(R"("pre_tokenizer": {"type": "Metaspace", "replacement": "ab"})"), "one character"},
      {with_part(R"("pre_tokenizer": {})"), "type"},
      {with_part(R"("decoder": {"type": "CTC"})"), "CTC"},
      {with_part(R"("decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})"),
       "order"},
      {with_part(R"("decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"},
                 {"type": "Strip", "content": " ", "start": 0, "stop": 1}]})"),
       "stop"},
      {with_part(R"("post_processor": {"type": "Magic"})"), "Magic"},
      {with_part(R"("post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]})"),
       "Sequence A"},
      {with_part(R"("post_processor": {"type": "TemplateProcessing", "single": [], "special_tokens": {}})"), "0 times"},
      {with_part(R"("post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}},
                 {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [-4]}}})"),
       "-4"},
      {with_part(R"("added_tokens": [{"id": 1, "content": "a"}])"), "expected id 0"},
      {with_part(R"("added_tokens": [{"id": 1, "content": "new"}])"), "free id"},
      {with_part(R"("added_tokens": [{"id": -3, "content": "new"}])"), "-3"},
      {with_part(R"("added_tokens": [{"id": 5, "content": "x"}, {"id": 6, "content": "x"}])"), "expected id 5"},
      {with_part(R"("added_tokens": [{"id": 5, "content": "x"}, {"id": 5, "content": "y"}])"), "another has"},
      {with_part(R"("added_tokens": [{"id": 2147483648, "content": "x"}])"), "2147483648"},
      {with_part(R"("added_tokens": [{"content": "x"}])"), "id"},
      {with_part(R"("added_tokens": [3])"), "an object"},
  });
}

TEST(BadTokenizer, Configs) {
  const std::string good = with_part(R"("decoder": null)");
  EXPECT_EQ(message_of(good), "");
  for (const char* config :
       {"[]", "{", R"({"bos_token": 3})", R"({"add_bos_token": "yes"})", R"({"split_special_tokens": true})",
        R"({"added_tokens_decoder": {"x": {}}})", R"({"added_tokens_decoder": {"9": "x"}})",
        R"({"added_tokens_decoder": {"2000000000": {"content": "x"}}})"})
    EXPECT_NE(message_of(good, config).find("tokenizer_config.json"), std::string::npos) << config;
}

TEST(BadTokenizer, DeepAndCutFiles) {
  EXPECT_NE(message_of(std::string(100000, '[')).find("levels"), std::string::npos);
  std::ifstream in(testing::source_dir() / "tests" / "tokenizer" / "llama3" / "tokenizer.json");
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  ASSERT_EQ(message_of(whole), "");
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  for (int round = 0; round < 100; ++round)
    EXPECT_NE(message_of(std::string_view(whole).substr(0, rng.below(static_cast<uint32_t>(whole.size() - 1)))), "");
}

TEST(BadTokenizer, MissingFile) {
  const testing::TempDir dir;
  try {
    load_tokenizer(dir.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    EXPECT_NE(std::string(error.what()).find("tokenizer.json"), std::string::npos);
  }
}

TEST(BadTokenizer, TextIsRefusedNotTheServer) {
  const auto tokenizer = tokenizer_from_json(with_model(R"({"vocab": {"a": 0}, "merges": [], "unk_token": "<unk>"})"));
  EXPECT_THROW(tokenizer->encode("\xC3", false), Error);
  EXPECT_THROW(tokenizer->encode("z", false), Error);  // needs the unknown token, which the vocabulary lacks
  EXPECT_EQ(tokenizer->encode("aa", false), (std::vector<TokenId>{0, 0}));
}

}  // namespace
}  // namespace cadre
