#include "engine/output_stream.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "base/utf8.h"
#include "tests/support/piece_tokenizer.h"
#include "tests/testing.h"

namespace cadre {
namespace {

using testing::PieceTokenizer;

// Pieces over a small alphabet, so that stop strings are met often: single letters, overlaps, cut and whole characters of
// 2, 3 and 4 bytes, bytes that are never valid, an empty piece, and two special tokens.
const std::vector<std::string> kPieces = {"a", "b", "ab", "aba", "ba", "bb", "\xC3", "\xA9", "\xC3\xA9", "\xE2", "\x82", "\xAC",
                                          "a\xE2\x82", "\xAC" "b", "\xF0\x9F", "\x98\x80", "\xF0\x9F\x98\x80", "\xFF", "",
                                          "<|s|>", "<|e|>"};
constexpr int32_t kEnd = 20;
constexpr size_t kFirstInvalid = 17;

struct Case {
  std::vector<int32_t> ids;
  SamplingParams params;
  std::vector<int32_t> ending_ids;
  int64_t max_tokens = 0;
};

struct Outcome {
  std::string text;
  FinishReason finish = FinishReason::kCancelled;
  std::optional<std::string> stop_reason;
  std::optional<int32_t> stop_token;
  int64_t num_tokens = 0;
};

// The definition over the whole text, without any state: look at every length of answer in turn.
class Oracle {
 public:
  Oracle(const Tokenizer& tokenizer, const Case& c) : tokenizer_(tokenizer), c_(c) {}

  // Text of the first `count` tokens, without a cut character at its end.
  std::string showable(size_t count) const {
    std::string bytes;
    for (size_t i = 0; i < count; ++i)
      if (!skips(c_.ids[i])) bytes += tokenizer_.piece(c_.ids[i]);
    return utf8::replace_invalid(std::string_view(bytes).substr(0, utf8::complete_length(bytes)));
  }
  std::string whole(size_t count) const { return tokenizer_.decode(std::span(c_.ids).first(count), c_.params.skip_special_tokens); }
  bool skips(int32_t id) const { return c_.params.skip_special_tokens && tokenizer_.is_special(id); }

  // Bytes that may belong to a stop string yet: the longest end of text that begins one.
  size_t held(const std::string& text) const {
    size_t held = 0;
    for (const std::string& stop : c_.params.stop)
      for (size_t n = 1; n < stop.size() && n <= text.size(); ++n)
        if (text.ends_with(stop.substr(0, n))) held = std::max(held, n);
    return held;
  }

  // Looks for a stop string that ends in (from, text.size()]; cuts there.
  bool find_stop(const std::string& text, size_t from, Outcome* out) const {
    for (size_t end = from + 1; end <= text.size(); ++end) {
      const std::string* best = nullptr;
      for (const std::string& stop : c_.params.stop)
        if (std::string_view(text).substr(0, end).ends_with(stop) && (!best || stop.size() > best->size())) best = &stop;
      if (!best) continue;
      out->text = text.substr(0, c_.params.include_stop ? end : end - best->size());
      out->stop_reason = *best;
      out->finish = FinishReason::kStop;
      return true;
    }
    return false;
  }

  Outcome run() const {
    Outcome out;
    const auto min_tokens = static_cast<size_t>(c_.params.min_tokens);
    for (size_t count = 1; count <= c_.ids.size(); ++count) {
      out.num_tokens = static_cast<int64_t>(count);
      const int32_t id = c_.ids[count - 1];
      const bool may_end = count > min_tokens;
      const bool ends = may_end && std::count(c_.ending_ids.begin(), c_.ending_ids.end(), id) > 0;
      if (ends) {
        // The flush of a cut character is the only text that comes now and that a stop string may end in.
        if (!c_.params.include_stop && count > min_tokens &&
            find_stop(whole(count - 1), showable(count - 1).size(), &out))
          return out;
        out.text = whole(c_.params.include_stop ? count : count - 1);
        out.finish = FinishReason::kStop;
        out.stop_token = id;
        return out;
      }
      if (may_end && find_stop(showable(count), showable(count - 1).size(), &out)) return out;
      if (static_cast<int64_t>(count) == c_.max_tokens) {
        if (may_end && find_stop(whole(count), showable(count).size(), &out)) return out;
        out.text = whole(count);
        out.finish = FinishReason::kLength;
        return out;
      }
    }
    out.text = whole(c_.ids.size());
    return out;
  }

 private:
  const Tokenizer& tokenizer_;
  const Case& c_;
};

Case random_case(Rng& rng, bool valid_only) {
  Case c;
  const size_t num_pieces = rng.below(3) == 0 ? 6 : kPieces.size();
  for (uint32_t i = 1 + rng.below(40); i > 0; --i) {
    int32_t id = static_cast<int32_t>(rng.below(static_cast<uint32_t>(num_pieces)));
    if (valid_only && (id == 6 || id == 7 || (id >= 9 && id <= 15) || id == kFirstInvalid)) id = 8;
    c.ids.push_back(id);
  }
  c.max_tokens = 1 + rng.below(static_cast<uint32_t>(c.ids.size()) + 5);
  SamplingParams& p = c.params;
  if (rng.below(3) == 0) p.min_tokens = rng.below(10);
  p.include_stop = rng.below(3) == 0;
  p.skip_special_tokens = rng.below(3) != 0;
  if (rng.below(2) == 0) c.ending_ids.push_back(kEnd);
  if (rng.below(4) == 0) c.ending_ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint32_t>(kPieces.size()))));
  const std::vector<std::string> parts = {"a", "b", "a", "b", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xEF\xBF\xBD", "<|s|>", "<|"};
  for (uint32_t i = rng.below(4); i > 0; --i) {
    std::string stop;
    for (uint32_t n = 1 + rng.below(5); n > 0; --n) stop += parts[rng.below(static_cast<uint32_t>(parts.size()))];
    p.stop.push_back(stop);
  }
  return c;
}

std::string describe(const Case& c) {
  std::string out = fmt::format("max {} min {} include {} skip {} ids", c.max_tokens, c.params.min_tokens, c.params.include_stop,
                                c.params.skip_special_tokens);
  for (const int32_t id : c.ids) out += fmt::format(" {}", id);
  for (const std::string& stop : c.params.stop) out += fmt::format(" stop '{}'", stop);
  return out;
}

// Feeds the case; checks after every token that exactly what may become stop text is held back.
Outcome run_stream(const Tokenizer& tokenizer, const Case& c, const Oracle& oracle, std::vector<OutputToken>* tokens) {
  OutputStream stream(tokenizer, c.params, c.ending_ids, c.max_tokens);
  Outcome out;
  const auto take = [&](Delta& delta) {
    out.text += delta.text;
    EXPECT_TRUE(utf8::is_valid(delta.text));
    for (OutputToken& token : delta.tokens) tokens->push_back(std::move(token));
    out.num_tokens = delta.num_completion_tokens;
    if (!delta.finish) return;
    out.finish = *delta.finish;
    out.stop_reason = delta.stop_reason;
    out.stop_token = delta.stop_token;
  };
  for (size_t i = 0; i < c.ids.size() && !stream.is_finished(); ++i) {
    Delta delta;
    // The logprob carries the index, to show that it stays with its token.
    stream.push({.token = c.ids[i], .logprob = -static_cast<float>(i)}, &delta);
    take(delta);
    if (stream.is_finished()) break;
    const std::string showable = oracle.showable(i + 1);
    EXPECT_EQ(out.text, showable.substr(0, showable.size() - oracle.held(showable)));
  }
  if (!stream.is_finished()) {
    Delta delta;
    stream.finish(FinishReason::kCancelled, &delta);
    take(delta);
  }
  return out;
}

TEST(OutputStream, AgreesWithTheWholeTextInThousandsOfCases) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  const PieceTokenizer tokenizer(kPieces, 2);
  int num_stops = 0, num_cut = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Case c = random_case(rng, false);
    SCOPED_TRACE(describe(c));
    const Oracle oracle(tokenizer, c);
    const Outcome expected = oracle.run();
    std::vector<OutputToken> tokens;
    const Outcome got = run_stream(tokenizer, c, oracle, &tokens);
    if (expected.finish != FinishReason::kCancelled) {
      ASSERT_EQ(got.text, expected.text);
    }
    ASSERT_EQ(got.finish, expected.finish);
    ASSERT_EQ(got.stop_reason, expected.stop_reason);
    ASSERT_EQ(got.stop_token, expected.stop_token);
    ASSERT_EQ(got.num_tokens, expected.num_tokens);
    ASSERT_EQ(tokens.size(), static_cast<size_t>(expected.num_tokens));
    for (size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_EQ(tokens[i].token, c.ids[i]);
      ASSERT_EQ(tokens[i].logprob, -static_cast<float>(i));
    }
    if (HasFailure()) return;
    num_stops += got.stop_reason.has_value();
    num_cut += got.finish == FinishReason::kLength && got.text.ends_with("\xEF\xBF\xBD");
  }
  EXPECT_GT(num_stops, 1000);
  EXPECT_GT(num_cut, 100);
}

// In texts without invalid bytes: the tokens said to be in the text give the text, but for a last piece that was cut.
TEST(OutputStream, TokensInTheTextGiveTheText) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed());
  const PieceTokenizer tokenizer(kPieces, 2);
  for (int round = 0; round < 5000; ++round) {
    const Case c = random_case(rng, true);
    SCOPED_TRACE(describe(c));
    std::vector<OutputToken> tokens;
    const Outcome got = run_stream(tokenizer, c, Oracle(tokenizer, c), &tokens);
    std::string joined;
    size_t last_bytes = 0;
    for (const OutputToken& token : tokens) {
      if (!token.in_text) continue;
      last_bytes = tokenizer.piece(token.token).size();
      joined += tokenizer.piece(token.token);
    }
    if (got.stop_reason) {
      ASSERT_TRUE(joined.starts_with(got.text));
      ASSERT_LT(joined.size() - got.text.size(), std::max<size_t>(last_bytes, 1));
    } else {
      ASSERT_EQ(joined, got.text);
    }
    if (HasFailure()) return;
  }
}

struct Step {
  std::string text;
  size_t num_tokens;
};

// What the deltas of these pieces look like, one after the other.
std::vector<Step> steps(const std::vector<std::string>& pieces, SamplingParams params, int64_t max_tokens = 100,
                        Delta* last = nullptr) {
  const PieceTokenizer tokenizer(pieces);
  OutputStream stream(tokenizer, params, {}, max_tokens);
  std::vector<Step> out;
  for (size_t i = 0; i < pieces.size() && !stream.is_finished(); ++i) {
    Delta delta;
    stream.push({.token = static_cast<int32_t>(i)}, &delta);
    out.push_back({delta.text, delta.tokens.size()});
    if (last) *last = delta;
  }
  return out;
}

TEST(OutputStream, HoldsBackOnlyWhatMayBecomeAStop) {
  const auto out = steps({"hello <", "/", "x", "</", "end"}, {.stop = {"</end>"}}, 5);
  ASSERT_EQ(out.size(), 5u);
  EXPECT_EQ(out[0].text, "hello ");
  EXPECT_EQ(out[0].num_tokens, 1u);
  EXPECT_EQ(out[1].text, "");
  EXPECT_EQ(out[1].num_tokens, 0u);
  EXPECT_EQ(out[2].text, "</x");
  EXPECT_EQ(out[2].num_tokens, 2u);
  EXPECT_EQ(out[3].text, "");
  EXPECT_EQ(out[4].text, "</end");  // max_tokens ends it: flushed
  EXPECT_EQ(out[4].num_tokens, 2u);
}

TEST(OutputStream, StopTextIsNeverDelivered) {
  Delta last;
  const auto out = steps({"one", " tw", "o thr", "ee"}, {.stop = {"two", "o t"}}, 100, &last);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].text, "one");
  EXPECT_EQ(out[1].text, " ");
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.finish, FinishReason::kStop);
  EXPECT_EQ(last.stop_reason, "two");
  ASSERT_EQ(last.tokens.size(), 1u);
  EXPECT_FALSE(last.tokens[0].in_text);
}

TEST(OutputStream, MinTokensReadOverStops) {
  Delta last;
  const auto out = steps({"a", "STOP", "b", "STOP", "c"}, {.min_tokens = 3, .stop = {"STOP"}}, 100, &last);
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[1].text, "STOP");
  EXPECT_EQ(out[2].text, "b");
  EXPECT_EQ(last.finish, FinishReason::kStop);
  EXPECT_EQ(last.num_completion_tokens, 4);
}

TEST(OutputStream, CutCharacterAtTheEndIsReplacedOnce) {
  Delta last;
  const auto out = steps({"x\xF0\x9F", "\x98"}, {}, 2, &last);
  EXPECT_EQ(out[0].text, "x");
  EXPECT_EQ(last.text, "\xEF\xBF\xBD");
  EXPECT_EQ(last.finish, FinishReason::kLength);
}

}  // namespace
}  // namespace cadre
