#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "tests/testing.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace cadre {
namespace {

std::vector<TokenId> ids_of(const json::value& value) {
  std::vector<TokenId> ids;
  for (const auto& id : value.as_array()) ids.push_back(static_cast<TokenId>(id.as_int64()));
  return ids;
}

// Every line {"text", "ids", "decoded" where it is not the text} of a vector file, encoded and decoded.
void check_vectors(const Tokenizer& tokenizer, const std::filesystem::path& file, size_t min_lines) {
  std::ifstream in(file);
  std::string line;
  size_t num_lines = 0, num_wrong = 0;
  while (std::getline(in, line)) {
    ++num_lines;
    const json::value vector = parse_json(line, "vector");
    const std::string text(std::string_view(vector.at("text").as_string()));
    const std::vector<TokenId> expected = ids_of(vector.at("ids"));
    const json::value* decoded = vector.as_object().if_contains("decoded");
    const std::string expected_text = decoded ? std::string(std::string_view(decoded->as_string())) : text;
    const auto ids = tokenizer.encode(text, false);
    EXPECT_EQ(ids, expected) << "text " << cadre::quoted(text, 400);
    EXPECT_EQ(tokenizer.decode(expected, false), expected_text);
    if (ids != expected && ++num_wrong == 5) break;
  }
  EXPECT_GE(num_lines, min_lines);
}

class SharedTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(SharedTokenizer, VectorsEqual) {
  CADRE_DATA_OR_SKIP(data);
  const auto tokenizer = load_tokenizer(data / "tokenizers" / GetParam());
  check_vectors(*tokenizer, data / "tokenizers" / "test_vectors" / (std::string(GetParam()) + ".jsonl"), 400);
}

INSTANTIATE_TEST_SUITE_P(All, SharedTokenizer, ::testing::Values("deepseek_v3", "qwen3", "gptoss"));

}  // namespace
}  // namespace cadre
