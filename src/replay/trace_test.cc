#include "replay/trace.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "tests/testing.h"

namespace cadre::replay {
namespace {

std::string message_of(std::string_view text, const TraceOptions& options = {}) {
  try {
    parse_trace(text, "trace", options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidInput);
    return error.what();
  }
  return "(read)";
}

TEST(Trace, ReadsAzure) {
  const Trace trace = parse_trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 "
      "18:17:04.0319600,3180,8",
      "t");
  EXPECT_EQ(trace.format, "azure");
  EXPECT_EQ(trace.block_tokens, 0);
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].arrival_us, 0);
  EXPECT_EQ(trace.requests[1].arrival_us, 52'000);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 3180);
  EXPECT_EQ(trace.requests[1].output_tokens, 8);
}

TEST(Trace, ReadsServegenWithColumnsAnywhere) {
  const Trace trace = parse_trace(
      "client_id,output_tokens,arrival_s,input_tokens,reason_tokens\n23,669,1.000,207,511\n\n24,635,1.5,549,337\n",
      "t");
  EXPECT_EQ(trace.format, "servegen");
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[1].arrival_us, 500'000);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 549);
  EXPECT_EQ(trace.requests[1].output_tokens, 635);
}

TEST(Trace, ReadsMooncake) {
  const Trace trace = parse_trace(
      R"({"timestamp": 10, "input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 9]}
{"timestamp": 35, "input_length": 512, "output_length": 0, "hash_ids": [0]})",
      "t");
  EXPECT_EQ(trace.format, "mooncake");
  EXPECT_EQ(trace.block_tokens, 512);
  EXPECT_EQ(trace.requests[1].arrival_us, 25'000);
  EXPECT_EQ(trace.requests[1].output_tokens, 1);  // and a note says so
  EXPECT_EQ(trace.notes.size(), 1u);
  const auto ids = trace.blocks_of(trace.requests[0]);
  EXPECT_EQ(std::vector<uint64_t>(ids.begin(), ids.end()), (std::vector<uint64_t>{0, 7, 9}));
  EXPECT_EQ(trace.blocks_of(trace.requests[1]).size(), 1u);
}

TEST(Trace, ReadsSessionsBesideEachOther) {
  const std::string text =
      R"({"id": "a", "block_size": 64, "requests": [{"t": 0, "in": 100, "out": 3, "h": [[1, 2]]}, {"t": 15.0, "in": 200, "out": 4, "h": [[1, 2], [9, 2]]}]}
{"id": "b", "block_size": 64, "requests": [{"t": 0, "in": 64, "out": 5, "h": [[1, 1]]}]})";
  const Trace trace = parse_trace(text, "t", {.session_interval_s = 10});
  EXPECT_EQ(trace.format, "agentic");
  ASSERT_EQ(trace.requests.size(), 3u);
  EXPECT_EQ(trace.requests[1].arrival_us, 10'000'000);  // session b between a's two
  EXPECT_EQ(trace.requests[2].arrival_us, 15'000'000);
  EXPECT_EQ(trace.blocks_of(trace.requests[2])[1], trace.blocks_of(trace.requests[0])[1]);
  EXPECT_NE(trace.blocks_of(trace.requests[1])[0], trace.blocks_of(trace.requests[0])[0]);  // another session's block 1
}

TEST(Trace, FasterFewerAndAgain) {
  const std::string text = "arrival_s,input_tokens,output_tokens\n0,1,1\n1,2,1\n2,3,1\n";
  EXPECT_EQ(parse_trace(text, "t", {.rate = 4}).requests[2].arrival_us, 500'000);
  EXPECT_EQ(parse_trace(text, "t", {.limit = 2}).requests.size(), 2u);
  const Trace twice = parse_trace(text, "t", {.repeat = 2});
  ASSERT_EQ(twice.requests.size(), 6u);
  EXPECT_EQ(twice.requests[3].arrival_us, 3'000'000);
  EXPECT_EQ(twice.requests[5].prompt_tokens, 3);
  const Trace blocks =
      parse_trace(R"({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [4]})", "t", {.repeat = 3});
  EXPECT_EQ(blocks.blocks, (std::vector<uint64_t>{4, 9, 14}));
}

TEST(Trace, BadTracesAreRefusedByLine) {
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,5,5\n";
  struct Case {
    std::string text, says;
  };
  const std::string servegen = "arrival_s,input_tokens,output_tokens\n";
  for (const Case& c : std::vector<Case>{
           {"", "empty"},
           {" \n\n", "empty"},
           {"a,b,c\n1,2,3\n", "expected a header"},
           {"TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n", "no GeneratedTokens"},
           {"arrival_s,output_tokens\n1,5\n", "no input_tokens"},
           {azure + "2023-11-16 18:17:02.97,5,5\n", "trace:3: expected times in ascending order"},
           {azure + "2023-13-16 18:17:02.97,5,5\n", "trace:3: TIMESTAMP: expected a time"},
           {azure + "yesterday,5,5\n", "'yesterday'"},
           {azure + "2023-11-16 18:17:04,5\n", "expected 3 columns"},
           {azure + "2023-11-16 18:17:04,five,5\n", "ContextTokens: expected a whole number"},
           {azure + "2023-11-16 18:17:04,5.5,5\n", "whole number"},
           {azure + "2023-11-16 18:17:04,0,5\n", "expected a prompt"},
           {azure + "2023-11-16 18:17:04,-3,5\n", "expected a prompt"},
           {azure + "2023-11-16 18:17:04,3,-5\n", "expected an answer"},
           {azure + "2023-11-16 18:17:04,99999999999999999999,5\n", "whole number"},
           {azure + "2023-11-16 18:17:04,9999999999,5\n", "expected a prompt"},
           {servegen, "at least one request"},
           {servegen + "-1,5,5\n", "from 0"},
           {servegen + "nan,5,5\n", "expected seconds"},
           {servegen + "2,5,5\n1,5,5\n", "trace:3: expected times in ascending order"},
           {servegen + "0,5,5\n1e10,5,5\n", "at most 1e+09 s"},
           {"{\"timestamp\": 1}", "input_length"},
           {"{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}", "from 0"},
           {"{\"timestamp\": \"1\", \"input_length\": 1, \"output_length\": 1}", "timestamp"},
           {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1, 2]}",
            "at most 1 'hash_ids'"},
           {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [-1]}", "from 0"},
           {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 3}", "hash_ids"},
           {"{\"timestamp\": 2, \"input_length\": 1, \"output_length\": 1}\n{\"timestamp\": 1, \"input_length\": 1, "
            "\"output_length\": 1}",
            "trace:2"},
           {"{\"timestamp\": 2, \"input_length\": 1, \"output_length\": 1}\n[]", "trace:2"},
           {"{\"timestamp\": 2, \"input_length\": 1, \"output_length\": 1}\n{", "trace:2"},
           {"{\"a\": 1}", "'timestamp'"},
           {"{\"block_size\": 0, \"requests\": []}", "block_size"},
           {"{\"block_size\": 64, \"requests\": [3]}", "objects"},
           {"{\"block_size\": 64, \"requests\": [{\"t\": 2, \"in\": 1, \"out\": 1}, {\"t\": 1, \"in\": 1, \"out\": "
            "1}]}",
            "ascending"},
           {"{\"block_size\": 64, \"requests\": [{\"t\": 2, \"in\": 64, \"out\": 1, \"h\": [[1]]}]}", "pairs"},
       }) {
    const std::string message = message_of(c.text);
    EXPECT_NE(message.find(c.says), std::string::npos) << c.text << "\n" << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  const std::string fine = servegen + "0,5,5\n";
  EXPECT_NE(message_of(fine, {.rate = 0}).find("--replay-rate"), std::string::npos);
  EXPECT_NE(message_of(fine, {.repeat = 0}).find("repetition"), std::string::npos);
  EXPECT_EQ(message_of(fine), "(read)");
}

TEST(Trace, Timestamps) {
  int64_t us = 0;
  EXPECT_TRUE(parse_timestamp_us("1970-01-02 00:00:01.5", &us));
  EXPECT_EQ(us, 86'401'500'000);
  EXPECT_TRUE(parse_timestamp_us("2024-05-10T00:00:00.009930+00:00", &us));
  EXPECT_TRUE(parse_timestamp_us("2024-02-29 23:59:59", &us));
  for (const char* text : {"2023-02-29 00:00:00", "2023-01-01", "2023-01-01 24:00:00", "2023-01-01 00:00:00.",
                           "2023-01-01 00:00:00+02:00", "2023-01-01 00:00:00 x", ""})
    EXPECT_FALSE(parse_timestamp_us(text, &us)) << text;
}

// Cut and altered traces are read or refused, nothing else.
TEST(Trace, RandomDamageIsReadOrRefused) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE("CADRE_SEED=" + std::to_string(seed));
  const std::string wholes[] = {
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,5,5\n2023-11-16 18:17:04,7,9\n",
      "arrival_s,input_tokens,output_tokens\n0,5,5\n1.5,6,7\n",
      "{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1, 2]}\n",
      "{\"block_size\": 64, \"requests\": [{\"t\": 2, \"in\": 64, \"out\": 1, \"h\": [[1, 1]]}]}\n"};
  for (uint64_t round = 0; round < 4000; ++round) {
    std::string text = wholes[round % 4];
    for (uint64_t i = 0; i < 1 + random_u32(seed, round, 0) % 3; ++i) {
      const size_t at = random_u32(seed, round, 10 + 3 * i) % text.size();
      if (random_u32(seed, round, 11 + 3 * i) % 2 == 0)
        text[at] = static_cast<char>(random_u32(seed, round, 12 + 3 * i));
      else
        text.erase(at, 1 + random_u32(seed, round, 12 + 3 * i) % 4);
      if (text.empty()) text = "x";
    }
    try {
      const Trace trace = parse_trace(text, "t");
      EXPECT_FALSE(trace.requests.empty());
    } catch (const Error&) {
    }
  }
}

TEST(Trace, PublishedTracesAreRead) {
  CADRE_DATA_OR_SKIP(data);
  const struct {
    const char* file;
    size_t requests;
    int64_t block_tokens;
  } kTraces[] = {{"AzureLLMInferenceTrace_code.csv", 8819, 0}, {"AzureLLMInferenceTrace_conv.csv", 19366, 0},
                 {"mooncake_conversation.jsonl", 12031, 512},  {"deepseek_r1_2h_5rps.csv", 36001, 0},
                 {"m_small_1h_10rps.csv", 36001, 0},           {"m_large_1h_10rps_partial_clients.csv", 36000, 0},
                 {"agentic_coding_rle.jsonl", 24015, 64}};
  for (const auto& t : kTraces) {
    const Trace trace = read_trace(data / "traces" / t.file);
    EXPECT_EQ(trace.requests.size(), t.requests) << t.file;
    EXPECT_EQ(trace.block_tokens, t.block_tokens) << t.file;
  }
}

}  // namespace
}  // namespace cadre::replay
