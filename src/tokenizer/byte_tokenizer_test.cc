#include "tokenizer/byte_tokenizer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "tests/testing.h"
#include "tokenizer/detokenizer.h"

namespace cadre {
namespace {

std::string stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip) {
  IncrementalDetokenizer detokenizer(tokenizer, skip);
  std::string text;
  for (const TokenId id : ids) {
    std::string piece;
    detokenizer.push(id, &piece);
    EXPECT_TRUE(utf8::is_valid(piece));
    text += piece;
  }
  detokenizer.finish(&text);
  return text;
}

TEST(ByteTokenizer, BytesAndSpecials) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.vocab_size(), 258);
  EXPECT_EQ(tokenizer.encode("a\xC3\xA9<|end|>", false), (std::vector<TokenId>{'a', 0xC3, 0xA9, 257}));
  EXPECT_EQ(tokenizer.encode("a", true), (std::vector<TokenId>{256, 'a'}));
  EXPECT_EQ(tokenizer.encode("<|begin|>a", true), (std::vector<TokenId>{256, 'a'}));
  EXPECT_EQ(tokenizer.encode("", true), (std::vector<TokenId>{256}));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{256, 'a', 257, 9999}, false), "<|begin|>a<|end|>");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{256, 'a', 257, 9999}, true), "a");
  EXPECT_EQ(tokenizer.id_of("<|end|>"), 257);
  EXPECT_EQ(tokenizer.id_of("<|nope|>"), std::nullopt);
  EXPECT_THROW(tokenizer.encode("\xFF", false), Error);
}

TEST(ByteTokenizer, LongestSpecialWins) {
  ByteTokenizerOptions options;
  options.special_tokens = {"<a", "<ab>", "<|end|>"};
  options.bos_token = "";
  const ByteTokenizer tokenizer(options);
  EXPECT_EQ(tokenizer.encode("<ab><a", true), (std::vector<TokenId>{257, 256}));
  EXPECT_EQ(tokenizer.bos_id(), std::nullopt);
  options.special_tokens.push_back("<a");
  EXPECT_THROW(ByteTokenizer{options}, Error);
}

// The stream of any ids, broken characters included, equals the whole text, and shows only whole characters.
TEST(ByteTokenizer, StreamEqualsWhole) {
  SCOPED_TRACE(testing::seed());
  const ByteTokenizer tokenizer;
  Rng rng(testing::seed());
  const std::vector<TokenId> leads = {0xC3, 0xE4, 0xF0, 0xF4, 0xED, 0xE0, 0xC0, 0xFF};
  for (int round = 0; round < 20000; ++round) {
    std::vector<TokenId> ids;
    for (uint32_t n = rng.below(8); n > 0; --n) {
      switch (rng.below(4)) {
        case 0: ids.push_back(leads[rng.below(8)]); break;
        case 1: ids.push_back(static_cast<TokenId>(0x80 + rng.below(0x40))); break;
        default: ids.push_back(static_cast<TokenId>(rng.below(260)));
      }
    }
    const bool skip = rng.below(2) == 1;
    ASSERT_EQ(stream(tokenizer, ids, skip), tokenizer.decode(ids, skip));
  }
}

// Held back is at most an unfinished character.
TEST(IncrementalDetokenizer, HoldsBackOnlyACutCharacter) {
  const ByteTokenizer tokenizer;
  IncrementalDetokenizer detokenizer(tokenizer, false);
  const auto push = [&](int byte) {
    std::string text;
    detokenizer.push(byte, &text);
    return text;
  };
  EXPECT_EQ(push('a'), "a");
  EXPECT_EQ(push(0xF0), "");
  EXPECT_EQ(push(0x9F), "");
  EXPECT_EQ(push(0x8E), "");
  EXPECT_EQ(push(0xBB), "\xF0\x9F\x8E\xBB");
  EXPECT_EQ(push(0x80), "\xEF\xBF\xBD");
  EXPECT_EQ(push(0xE2), "");
  EXPECT_EQ(push('b'),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(push(0xE2), "");
  std::string text;
  detokenizer.finish(&text);
  EXPECT_EQ(text, "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace cadre
