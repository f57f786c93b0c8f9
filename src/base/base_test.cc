#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "base/utf8.h"

namespace cadre {
namespace {

// Known answers from the Random123 distribution's kat_vectors (philox4x32 10).
TEST(Rng, MatchesThePublishedPhiloxVectors) {
  using A4 = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0}, {0, 0, 0, 0}), (A4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (A4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Rng, UniformStaysBelowOne) {
  Rng rng(7);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const float u = rng.uniform();
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

TEST(Utf8, ReplacesEachMaximalInvalidPartOnce) {
  EXPECT_EQ(utf8::replace_invalid("a\xF0\x9F\x98z"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(utf8::replace_invalid("\xC0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(utf8::replace_invalid("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(utf8::replace_invalid("na\xC3\xAFve"), "na\xC3\xAFve");
}

TEST(Utf8, HoldsBackOnlyACutCharacter) {
  EXPECT_EQ(utf8::complete_length("ab\xE2\x82"), 2u);
  EXPECT_EQ(utf8::complete_length("ab\xE2\x82\xAC"), 5u);
  EXPECT_EQ(utf8::complete_length("ab\xFF"), 3u);
  EXPECT_EQ(utf8::complete_length("\xF0\x9F\x98"), 0u);
  EXPECT_EQ(utf8::complete_length("\x80\x80\x80"), 3u);
}

TEST(Utf8, RoundTripsEveryScalarValue) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string s;
    utf8::append(s, c);
    size_t n = 0;
    ASSERT_EQ(utf8::decode(s, &n), c);
    ASSERT_EQ(n, s.size());
  }
}

TEST(Json, RefusesDeepAndBrokenText) {
  EXPECT_THROW(parse_json(std::string(1000, '['), "x"), Error);
  EXPECT_THROW(parse_json("{\"a\":", "x"), Error);
  EXPECT_THROW(parse_json("{} {}", "x"), Error);
  EXPECT_THROW(parse_json("", "x"), Error);
}

TEST(Json, NamesTheKeyAndTheValueItRefuses) {
  const json::value v = parse_json(R"({"k": 5000000000, "s": "x", "n": null, "d": 8.0})", "config.json");
  const JsonObject o(v.get_object(), "config.json");
  EXPECT_FALSE(o.has("n"));
  EXPECT_EQ(o.integer("d", 0, 10), 8);
  try {
    o.integer("k", 0, 10);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "config.json: expected 'k' to be an integer from 0 to 10, found 5000000000");
    EXPECT_EQ(e.param(), "k");
  }
  EXPECT_THROW(o.integer("s", 0, 10), Error);
  EXPECT_THROW(o.integer("missing", 0, 10), Error);
}

TEST(Quoted, EscapesWhatATerminalShouldNotSee) { EXPECT_EQ(quoted("a\x1b\xFF\n"), "'a\\x1b\\xff\\x0a'"); }

TEST(ThreadPool, RunsEachTaskOnceForAnyNumberOfThreads) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 63, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
      pool.parallel_for(n, [&](int64_t i, int w) {
        EXPECT_LT(w, threads);
        hits[static_cast<size_t>(i)]++;
      });
      for (auto& h : hits) EXPECT_EQ(h, 1);
    }
  }
}

}  // namespace
}  // namespace cadre
