// The parts of a tokenizer.json by themselves, against what the tokenizers library made of random texts
// (tools/make_tokenizer_fixtures.py), and the merging against a plain one.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "tests/testing.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_kind.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/recent_characters.h"
#include "tokenizer/regex_syntax.h"
#include "tokenizer/unicode.h"

namespace cadre {
namespace {

template <typename Check>
void for_each_line(const char* file, size_t min_lines, Check&& check) {
  std::ifstream in(testing::source_dir() / "tests" / "tokenizer" / file);
  size_t num_lines = 0;
  for (std::string line; std::getline(in, line); ++num_lines) {
    const json::value value = parse_json(line, file);
    SCOPED_TRACE(line.substr(0, 600));
    check(json_object(value.at("part"), "part"), std::string(std::string_view(value.at("text").as_string())),
          value.at("result"));
  }
  EXPECT_GE(num_lines, min_lines);
}

TEST(PreTokenizer, CutsAsTheReference) {
  for_each_line("pre_tokenizers.jsonl", 1000,
                [](const JsonObject& part, const std::string& text, const json::value& result) {
                  const PreTokenizer pre_tokenizer(part);
                  MatchScratch scratch;
                  scratch.set_has_recent_characters(has_recent_characters(text));
                  json::array pieces;
                  pre_tokenizer.run(text, true, scratch, [&](std::string_view piece, bool) {
                    pieces.emplace_back(pre_tokenizer.gives_bytes() ? alphabet_text(piece) : std::string(piece));
                  });
                  EXPECT_EQ(pieces, result.as_array());
                });
}

TEST(Normalizer, RewritesAsTheReference) {
  for_each_line("normalizers.jsonl", 100,
                [](const JsonObject& part, const std::string& text, const json::value& result) {
                  MatchScratch scratch;
                  EXPECT_EQ(Normalizer(part).apply(text, scratch), std::string_view(result.as_string()));
                });
}

TEST(ByteAlphabet, IsOneToOne) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(alphabet_text("A \n\xC3"), "A\xC4\xA0\xC4\x8A\xC3\x83");
  EXPECT_EQ(alphabet_bytes(alphabet_text(all)), all);
  EXPECT_EQ(alphabet_bytes("a b"), std::nullopt);
  EXPECT_EQ(alphabet_bytes("\xE2\x96\x81"), std::nullopt);
}

TEST(Unicode, Normalizes) {
  EXPECT_EQ(normalized("e\xCC\x81", NormalForm::kNfc), "\xC3\xA9");
  EXPECT_EQ(normalized("\xC3\xA9", NormalForm::kNfd), "e\xCC\x81");
  EXPECT_EQ(normalized("\xEF\xAC\x81", NormalForm::kNfkc), "fi");
  EXPECT_EQ(normalized("q\xCC\x87\xCC\xA3", NormalForm::kNfc), "q\xCC\xA3\xCC\x87");
  EXPECT_EQ(normalized("\xE1\x84\x80\xE1\x85\xA1", NormalForm::kNfc), "\xEA\xB0\x80");
  EXPECT_EQ(lowercased("\xC4\xB0\xCE\xA3"), "i\xCC\x87\xCF\x83");
}

TEST(RecentCharacters, StandInsKeepPlaces) {
  EXPECT_EQ(stand_in(U'a'), U'a');
  EXPECT_NE(stand_in(0x1FAE8), char32_t{0x1FAE8});  // an emoji of Unicode 15
  const std::string text = "a\xF0\x9F\xAB\xA8z\xE5\xBC\xA6";
  EXPECT_TRUE(has_recent_characters(text));
  EXPECT_FALSE(has_recent_characters("a\xF0\x9F\x98\x80"));
  EXPECT_EQ(with_stand_ins(text).size(), text.size());
  EXPECT_TRUE(with_stand_ins(text).ends_with("z\xE5\xBC\xA6"));
}

TEST(Pattern, RefusesWhatItDoesNotUnderstand) {
  for (const char* pattern : {"(", ")", "[a", "a**b(", "\\p{L", "\\p{No Such Script}", "\\p", "(?z:a)", "\\xff",
                              "\\ud800", "[z-a]", "(?<=a+)b", "\\", "(?<n", "[[:nope:]]", "\\k<n"})
    EXPECT_THROW(Pattern(pcre2_from_oniguruma(pattern), pattern), Error) << pattern;
  EXPECT_THROW(pcre2_from_oniguruma(std::string(100, '[') + "a" + std::string(100, ']')), Error);
}

// A search that explodes ends with an Error, not in hours.
TEST(Pattern, EndsWhenASearchExplodes) {
  const Pattern pattern(pcre2_from_oniguruma("(a+)+$"), "(a+)+$");
  MatchScratch scratch;
  size_t begin = 0, end = 0;
  EXPECT_THROW(pattern.find(std::string(40, 'a') + "!", 0, scratch, &begin, &end), Error);
  EXPECT_TRUE(pattern.find("aaa", 0, scratch, &begin, &end));
}

TEST(Pattern, RunBeforeAnEndTakesLinearTime) {
  for (const char* source : {R"(\s+$)", R"(\s+(?=x))", R"([ \t]+\n)"}) {
    const Pattern pattern(pcre2_from_oniguruma(source), source);
    MatchScratch scratch;
    std::string text(1 << 20, ' ');
    text.back() = 'y';
    size_t num_matches = 0;
    pattern.split(text, scratch, [&](size_t, size_t, bool is_match) { num_matches += is_match; });
    EXPECT_EQ(num_matches, 0u);
  }
}

// The same answers where the machine has no JIT.
TEST(Pattern, WorksWithoutJit) {
  for_each_line("pre_tokenizers.jsonl", 1000,
                [](const JsonObject& part, const std::string& text, const json::value& result) {
                  if (part.string("type") != "Split" || part.string("behavior") != "Isolated") return;
                  const PatternSource source = json_pattern(part);
                  if (!source.is_regex) return;
                  const Pattern pattern("(*NO_JIT)" + pcre2_from_oniguruma(source.text), source.text);
                  MatchScratch scratch;
                  scratch.set_has_recent_characters(has_recent_characters(text));
                  json::array pieces;
                  pattern.split(text, scratch, [&](size_t begin, size_t end, bool) {
                    if (begin != end) pieces.emplace_back(text.substr(begin, end - begin));
                  });
                  EXPECT_EQ(pieces, result.as_array());
                });
}

// Merges as defined: the lowest rank anywhere, the leftmost among equals, again and again.
std::vector<TokenId> merge_plainly(std::vector<TokenId> ids,
                                   const std::map<std::pair<TokenId, TokenId>, std::pair<int, TokenId>>& merges) {
  for (;;) {
    size_t best = ids.size();
    int best_rank = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = merges.find({ids[i], ids[i + 1]});
      if (found == merges.end() || (best < ids.size() && found->second.first >= best_rank)) continue;
      best = i;
      best_rank = found->second.first;
    }
    if (best == ids.size()) return ids;
    ids[best] = merges.at({ids[best], ids[best + 1]}).second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Random vocabularies over three letters; texts short and long, so that both ways of merging are met.
TEST(BpeModel, MergesAsDefined) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::map<std::string, TokenId> vocab = {{"a", 0}, {"b", 1}, {"c", 2}};
    std::map<std::pair<TokenId, TokenId>, std::pair<int, TokenId>> merges;
    json::array list;
    for (uint32_t n = rng.below(40); n > 0; --n) {
      const std::string left = tokens[rng.below(static_cast<uint32_t>(tokens.size()))];
      const std::string right = tokens[rng.below(static_cast<uint32_t>(tokens.size()))];
      if ((left + right).size() > 12) continue;
      const auto [added, is_new] = vocab.emplace(left + right, static_cast<TokenId>(tokens.size()));
      if (is_new) tokens.push_back(left + right);
      merges[{vocab[left], vocab[right]}] = {static_cast<int>(list.size()), added->second};
      list.push_back({json::value(left), json::value(right)});
    }
    json::object model{{"type", "BPE"}, {"vocab", json::value_from(vocab)}, {"merges", list}};
    const BpeModel bpe(JsonObject(model, "model"), false);
    BpeScratch scratch;
    for (int text_idx = 0; text_idx < 20; ++text_idx) {
      std::string text;
      std::vector<TokenId> letters, ids;
      for (uint32_t n = 1 + rng.below(text_idx % 2 ? 20 : 200); n > 0; --n)
        letters.push_back(static_cast<TokenId>(rng.below(3)));
      for (const TokenId letter : letters) text += static_cast<char>('a' + letter);
      bpe.encode(text, scratch, &ids);
      ASSERT_EQ(ids, merge_plainly(letters, merges)) << text << json::serialize(model);
    }
  }
}

}  // namespace
}  // namespace cadre
