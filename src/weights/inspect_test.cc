#include "weights/inspect.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "config/test_configs.h"
#include "tests/testing.h"

namespace cadre {
namespace {

TEST(Inspect, TheDemoModelAsItIsStored) {
  const auto dir = testing::source_dir() / "models/demo";
  const json::value value = parse_json(inspect_json(dir), "inspect");
  const json::object& root = value.as_object();
  EXPECT_EQ(root.at("architecture"), "DeepseekV3ForCausalLM");
  EXPECT_TRUE(root.at("misfit").is_null()) << root.at("misfit");
  EXPECT_EQ(root.at("has_weights"), true);
  EXPECT_EQ(root.at("kv_bytes_per_token").at("bf16"), (64 + 16) * 6 * 2);
  EXPECT_EQ(root.at("expert_bytes"), 3 * 256 * 64 + 3 * 2 * 4);
  // Element types fill the file but for its header.
  int64_t bytes = 0;
  for (const auto& [dtype, n] : root.at("bytes_by_dtype").as_object()) bytes += n.as_int64();
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(dir / "model.safetensors"));
  EXPECT_EQ(bytes, root.at("total").at("bytes").as_int64());
  EXPECT_LT(bytes, file_bytes);
  EXPECT_GT(bytes, file_bytes * 9 / 10);
  const int64_t routed = root.at("by_kind").at("routed experts").at("parameters").as_int64();
  EXPECT_EQ(routed, int64_t{5} * 64 * 3 * 256 * 64);
  EXPECT_EQ(root.at("active_parameters").as_int64(),
            root.at("total").at("parameters").as_int64() - routed + routed * 6 / 64);
  const std::string text = inspect_text(dir);
  for (const char* part : {"DeepseekV3ForCausalLM", "routed experts", "F8_E4M3", "960 bytes in bf16", "49176 bytes"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
}

TEST(Inspect, AConfigurationAlone) {
  testing::TempDir dir;
  std::ofstream(dir.path() / "config.json") << testing::small_config("gpt_oss");
  const json::value root = parse_json(inspect_json(dir.path()), "inspect");
  EXPECT_EQ(root.at("has_weights"), false);
  EXPECT_GT(root.at("total").at("parameters").as_int64(), 0);
  EXPECT_NE(inspect_text(dir.path()).find("no weights"), std::string::npos);
}

TEST(Inspect, WeightsOfAnotherModelAreNamed) {
  testing::TempDir dir;
  std::ofstream(dir.path() / "config.json") << testing::small_config("llama");
  std::filesystem::copy_file(testing::source_dir() / "tests/reference/qwen3/model.safetensors",
                             dir.path() / "model.safetensors");
  const json::value root = parse_json(inspect_json(dir.path()), "inspect");
  EXPECT_TRUE(root.at("misfit").is_string());
  EXPECT_GT(root.at("not_of_this_model").at("tensors").as_int64(), 0);
  EXPECT_NE(inspect_text(dir.path()).find("do not fit"), std::string::npos);
  EXPECT_THROW(inspect_text(dir.path() / "nowhere"), Error);
}

}  // namespace
}  // namespace cadre
