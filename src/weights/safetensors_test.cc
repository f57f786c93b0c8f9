#include "weights/safetensors.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "tests/testing.h"
#include "weights/shard_index.h"
#include "weights/test_files.h"

namespace cadre {
namespace {

using testing::safetensors_bytes;

std::vector<SafetensorsEntry> read(std::string_view bytes) {
  return read_safetensors_header(std::as_bytes(std::span(bytes)), "x.safetensors");
}

void expect_refused(std::string_view bytes, std::string_view part) {
  try {
    read(bytes);
    ADD_FAILURE() << "accepted; expected a refusal that says '" << part << "'";
  } catch (const Error& e) {
    const std::string_view message = e.what();
    EXPECT_NE(message.find(part), std::string_view::npos) << "'" << message << "' does not say '" << part << "'";
    EXPECT_NE(message.find("x.safetensors"), std::string_view::npos) << message;
    EXPECT_NE(message.find("expected"), std::string_view::npos) << message;
    EXPECT_NE(message.find("found"), std::string_view::npos) << message;
    EXPECT_LT(message.size(), 500u);
  }
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirBytes) {
  const auto entries =
      read(safetensors_bytes(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[12,16]},
      "a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"empty":{"shape":[0,7],"dtype":"U8","data_offsets":[12,12]}}  )",
                             16));
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].dtype, DType::kBF16);
  EXPECT_EQ(entries[0].shape, (Shape{2, 3}));
  EXPECT_EQ(entries[0].end - entries[0].begin, 12u);
  EXPECT_EQ(entries[1].name, "empty");
  EXPECT_EQ(entries[2].name, "b");
  EXPECT_EQ(entries[2].shape, Shape{});
}

TEST(Safetensors, AFileWithoutTensorsIsAFile) { EXPECT_TRUE(read(safetensors_bytes("{}", 0)).empty()); }

TEST(Safetensors, LyingLengthsAreRefused) {
  expect_refused("", "0 bytes");
  expect_refused("1234567", "7 bytes");
  expect_refused(safetensors_bytes("{}", 0, 3), "cut");
  expect_refused(safetensors_bytes("{}", 0, 100'000'000), "cut");
  expect_refused(safetensors_bytes("{}", 0, 100'000'001), "at most 100000000");
  expect_refused(safetensors_bytes("{}", 0, std::numeric_limits<int64_t>::max()), "at most 100000000");
  expect_refused(safetensors_bytes("", 0), "begins with");
  expect_refused(safetensors_bytes(" {}", 0), "begins with");
  expect_refused(safetensors_bytes("PK\x03\x04zip", 0), "begins with");
  expect_refused(safetensors_bytes("{\"a\":", 0), "valid JSON");
  expect_refused(safetensors_bytes("{}x", 0), "valid JSON");
  expect_refused(safetensors_bytes("{\"a\xff\":{}}", 0), "valid JSON");
  expect_refused(safetensors_bytes("{\"a\":" + std::string(1000, '['), 0), "found");
}

TEST(Safetensors, LyingEntriesAreRefused) {
  const struct {
    const char* entry;
    size_t data;
    const char* part;
  } cases[] = {
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 4, "within"},
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8, "within"},
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775807]})", 8, "within"},
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]})", 8, "data_offsets"},
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[-4,4]})", 8, "negative"},
      {R"("a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8, "negative"},
      {R"("a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8, "expected 12 bytes"},
      {R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,8]})", 8, "expected 4 bytes"},
      {R"("a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})", 8, "expected fewer bytes"},
      {R"("a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0, "expected fewer bytes"},
      {R"("a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})", 8, "no integer"},
      {R"("a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})", 8, "array"},
      {R"("a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})", 8, "at most 16"},
      {R"("a":{"dtype":"F32","shape":"2","data_offsets":[0,8]})", 8, "a string"},
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0]})", 8, "two data_offsets"},
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,4,8]})", 8, "two data_offsets"},
      {R"("a":{"dtype":"F32","shape":[2]})", 8, "only some"},
      {R"("a":{"dtype":"F32","data_offsets":[0,8]})", 8, "only some"},
      {R"("a":{"shape":[2],"data_offsets":[0,8]})", 8, "only some"},
      {R"("a":{"dtype":"F4_E9","shape":[2],"data_offsets":[0,8]})", 8, "F4_E9"},
      {R"("a":{"dtype":7,"shape":[2],"data_offsets":[0,8]})", 8, "a number"},
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})", 8, "'x'"},
      {R"("a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8, "twice"},
      {R"("a":[1])", 0, "array"},
      {R"("a":1)", 0, "a number"},
      {R"("a":null)", 0, "null"},
      {R"("__metadata__":{"a":{"b":"c"}})", 0, "an object"},
      {R"("__metadata__":{"a":1})", 0, "a number"},
      {R"("__metadata__":"x")", 0, "a string"},
      {R"("__metadata__":{},"__metadata__":{})", 0, "twice"},
      {R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})", 8,
       "twice"},
      {R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"\u0061":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})",
       8, "twice"},
      {R"("a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})", 8,
       "overlap"},
      {R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})", 4,
       "overlap"},
      {R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]})", 8,
       "hole"},
      {R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})", 8, "hole"},
      {R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})", 8, "8 bytes of data"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.entry);
    expect_refused(safetensors_bytes("{" + std::string(c.entry) + "}", c.data), c.part);
  }
}

TEST(Safetensors, ALongNameIsShortenedInTheMessage) {
  expect_refused(safetensors_bytes("{\"" + std::string(100000, 'a') + "\":{\"dtype\":1}}", 0), "aaa");
}

// Any change of a byte of a good file leaves a good file or an Error, and what is accepted lies inside the file.
TEST(Safetensors, RandomDamageNeverDoesMore) {
  Rng rng(testing::seed());
  SCOPED_TRACE(testing::seed());
  const std::string good = safetensors_bytes(
      R"({"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
      16);
  ASSERT_EQ(read(good).size(), 2u);
  const std::string_view alphabet = "0123456789{}[],:\"-ab\\";
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (uint32_t n = 1 + rng.below(3); n > 0; --n) {
      const size_t at = rng.below(static_cast<uint32_t>(bytes.size()));
      switch (rng.below(3)) {
        case 0: bytes[at] = static_cast<char>(rng.below(256)); break;
        case 1: bytes[at] = alphabet[rng.below(static_cast<uint32_t>(alphabet.size()))]; break;
        default: bytes.resize(at + 1); break;
      }
    }
    try {
      for (const SafetensorsEntry& e : read(bytes)) ASSERT_TRUE(e.begin <= e.end && e.end <= bytes.size());
    } catch (const Error&) {
    }
  }
}

TEST(ShardIndex, NamesAFileForEachTensor) {
  const ShardIndex index = read_shard_index(R"({"metadata": {"total_size": 12, "x": [1, {"weight_map": 2}]},
      "weight_map": {"b": "m-2.safetensors", "a": "m-1.safetensors", "c": "m-1.safetensors"}})",
                                            "i.json");
  EXPECT_EQ(index.file_of.at("c"), "m-1.safetensors");
  EXPECT_EQ(index.files(), (std::vector<std::string>{"m-1.safetensors", "m-2.safetensors"}));
}

TEST(ShardIndex, LyingIndexesAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "weight_map"},
      {R"([])", "an array"},
      {R"(3)", "a number"},
      {R"({"weight_map": {}})", "none"},
      {R"({"weight_map": []})", "an array"},
      {R"({"weight_map": "x"})", "a string"},
      {R"({"weight_map": {"a": 1}})", "a number"},
      {R"({"weight_map": {"a": null}})", "null"},
      {R"({"weight_map": {"a": ["x"]}})", "an array"},
      {R"({"weight_map": {"a": {"b": "x"}}})", "an object"},
      {R"({"weight_map": {"a": "x", "a": "y"}})", "twice"},
      {R"({"weight_map": {"a": "x"}, "weight_map": {"b": "y"}})", "twice"},
      {R"({"weight_map": {"a": "../x.safetensors"}})", "beside"},
      {R"({"weight_map": {"a": "/etc/passwd"}})", "beside"},
      {R"({"weight_map": {"a": "d/x.safetensors"}})", "beside"},
      {R"({"weight_map": {"a": "d\\x.safetensors"}})", "beside"},
      {R"({"weight_map": {"a": ""}})", "beside"},
      {R"({"weight_map": {"a": "x\u0000y"}})", "beside"},
      {R"({"weight_map": {"a": ".."}})", "beside"},
      {R"({"weight_map": )", "valid JSON"},
  };
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text);
    try {
      read_shard_index(text, "i.json");
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string_view(e.what()).find(part), std::string_view::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace cadre
