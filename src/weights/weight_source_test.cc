#include "weights/weight_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "config/test_configs.h"
#include "tests/testing.h"
#include "weights/test_files.h"

namespace cadre {
namespace {

using testing::safetensors_bytes;
using testing::TempDir;
using testing::write_file;

ModelConfig config_with(std::string_view model_type, std::string_view changes = "{}") {
  return parse_model_config(testing::small_config_with(model_type, changes));
}

template <typename Call>
void expect_error(Call call, std::string_view part) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected an Error that says '" << part << "'";
  } catch (const Error& e) {
    EXPECT_NE(std::string_view(e.what()).find(part), std::string_view::npos)
        << "'" << e.what() << "' does not say '" << part << "'";
  }
}

TEST(Checkpoint, OneFile) {
  TempDir dir;
  write_file(
      dir.path() / "model.safetensors",
      safetensors_bytes(
          R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[3,7]}})",
          7));
  const auto source = open_checkpoint(dir.path());
  EXPECT_EQ(source->total_bytes(), 7u);
  EXPECT_EQ(source->names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(source->has("a"));
  EXPECT_FALSE(source->has("c"));
  EXPECT_EQ(source->info("b").shape, Shape{2});
  EXPECT_EQ(source->tensor("a").bytes[2], std::byte{15});
  // Stored at an odd offset, handed out aligned, also a second time and after a release.
  for (int i = 0; i < 2; ++i) {
    const StoredTensor b = source->tensor("b");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.bytes.data()) % 2, 0u);
    EXPECT_EQ(source->tensor("b").bytes.data(), b.bytes.data());
    EXPECT_EQ(b.bytes[0], std::byte{22});
    source->release("b");
  }
  expect_error([&] { source->tensor("c"); }, "'c'");
  expect_error([&] { source->info("c"); }, "'c'");
  expect_error([&] { source->release("c"); }, "'c'");
}

constexpr const char* kTensorA = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
constexpr const char* kTensorB = R"({"b":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})";

TEST(Checkpoint, Shards) {
  TempDir dir;
  write_file(dir.path() / "m1.safetensors", safetensors_bytes(kTensorA, 3));
  write_file(dir.path() / "m2.safetensors", safetensors_bytes(kTensorB, 5));
  const auto index = [&](const char* map) {
    write_file(dir.path() / "model.safetensors.index.json", fmt::format(R"({{"weight_map": {}}})", map));
  };
  index(R"({"a": "m1.safetensors", "b": "m2.safetensors"})");
  const auto source = open_checkpoint(dir.path());
  EXPECT_EQ(source->total_bytes(), 8u);
  EXPECT_EQ(source->tensor("b").bytes.size(), 5u);

  index(R"({"a": "m1.safetensors", "b": "m3.safetensors"})");
  expect_error([&] { open_checkpoint(dir.path()); }, "m3.safetensors");
  index(R"({"a": "m1.safetensors", "b": "m2.safetensors", "c": "m2.safetensors"})");
  expect_error([&] { open_checkpoint(dir.path()); }, "'c'");
  index(R"({"a": "m2.safetensors", "b": "m1.safetensors"})");
  expect_error([&] { open_checkpoint(dir.path()); }, "found it in");
  index(R"({"a": "../m1.safetensors"})");
  expect_error([&] { open_checkpoint(dir.path()); }, "../m1.safetensors");
  index(R"({"a": "m1.safetensors", "b": "m2.safetensors"})");
  write_file(dir.path() / "m2.safetensors", safetensors_bytes(kTensorA, 3));
  expect_error([&] { open_checkpoint(dir.path()); }, "in one file");
  write_file(dir.path() / "m2.safetensors", safetensors_bytes(kTensorB, 4));
  expect_error([&] { open_checkpoint(dir.path()); }, "m2.safetensors");
}

TEST(Checkpoint, MissingFilesAreNamed) {
  TempDir dir;
  expect_error([&] { open_checkpoint(dir.path()); }, "model.safetensors.index.json");
  expect_error([&] { open_checkpoint(dir.path() / "nowhere"); }, "nowhere");
  std::filesystem::create_directory(dir.path() / "model.safetensors");
  expect_error([&] { open_checkpoint(dir.path()); }, "regular file");
}

// Kilobytes of the mapping of `path` that are in memory.
int64_t resident_kb(const std::filesystem::path& path) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  int64_t sum = 0;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') != std::string::npos && line.find(" r") != std::string::npos)
      inside = line.find(path.string()) != std::string::npos;
    if (inside && line.starts_with("Rss:")) sum += std::stoll(line.substr(4));
  }
  return sum;
}

TEST(Checkpoint, ReleasedTensorsLeaveMemoryEvenWhenSmall) {
  TempDir dir;
  constexpr int kTensors = 12000, kBytes = 2500;  // less than a page each, at no page boundary
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i)
    header += fmt::format("{}\"t{}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", i ? "," : "", i,
                          kBytes, i * kBytes, (i + 1) * kBytes);
  const auto path = dir.path() / "model.safetensors";
  write_file(path, safetensors_bytes(header + "}", size_t{kTensors} * kBytes));
  const auto source = open_checkpoint(dir.path());
  int64_t sum = 0, peak_kb = 0;
  for (int i = 0; i < kTensors; ++i) {
    for (const std::byte b : source->tensor(fmt::format("t{}", i)).bytes) sum += static_cast<int64_t>(b);
    source->release(fmt::format("t{}", i));
    if (i % 400 == 399) peak_kb = std::max(peak_kb, resident_kb(path));
  }
  EXPECT_GT(sum, 0);
  EXPECT_LT(peak_kb, 5000);  // of 29300; a fault may map up to 2 MB ahead
  EXPECT_LE(resident_kb(path), 64);
  EXPECT_EQ(source->tensor("t7").bytes[1],
            static_cast<std::byte>((7 * kBytes + 1) * 7 + 1));  // comes back when asked for
}

TEST(CheckTensors, AcceptsTheReferenceCheckpointsAndTheDemo) {
  int count = 0;
  std::vector<std::filesystem::path> dirs = {testing::source_dir() / "models/demo"};
  for (const auto& entry : std::filesystem::directory_iterator(testing::source_dir() / "tests/reference"))
    if (entry.is_directory()) dirs.push_back(entry.path());
  for (const auto& dir : dirs) {
    SCOPED_TRACE(dir.string());
    const auto source = open_checkpoint(dir);
    EXPECT_NO_THROW(check_tensors(*source, load_model_config(dir)));
    ++count;
  }
  EXPECT_EQ(count, 14);
}

// What a header might say, without bytes.
class StatedTensors final : public WeightSource {
 public:
  explicit StatedTensors(const ModelConfig& config) {
    for (const TensorSpec& spec : checkpoint_tensors(config))
      if (spec.required) tensors[spec.name] = {spec.dtype, spec.shape};
  }
  bool has(std::string_view name) const override { return tensors.count(std::string(name)) != 0; }
  TensorInfo info(std::string_view name) const override { return tensors.at(std::string(name)); }
  StoredTensor tensor(std::string_view) override { return {}; }
  void release(std::string_view) override {}
  std::vector<std::string> names() const override {
    std::vector<std::string> result;
    for (const auto& [name, info] : tensors) result.push_back(name);
    return result;
  }
  uint64_t total_bytes() const override { return 0; }
  std::map<std::string, TensorInfo> tensors;
};

constexpr const char* kFp8 = R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})";

TEST(CheckTensors, MissingUnexpectedAndMisshapenAreNamed) {
  const ModelConfig config = config_with("deepseek_v3", kFp8);
  const StatedTensors good(config);
  EXPECT_NO_THROW(check_tensors(good, config));
  const std::string down = "model.layers.1.mlp.experts.3.down_proj.weight";

  StatedTensors source = good;
  source.tensors.erase(down);
  expect_error([&] { check_tensors(source, config); }, down);
  source = good;
  source.tensors.erase(down + "_scale_inv");
  expect_error([&] { check_tensors(source, config); }, "1 of ");
  source = good;
  source.tensors["model.layers.1.mlp.experts.16.down_proj.weight"] = {DType::kF8E4M3, {64, 32}};
  expect_error([&] { check_tensors(source, config); }, "experts.16.");
  source = good;
  source.tensors["model.layers.0.self_attn.k_proj.k_scale"] = {DType::kF32, {1}};
  expect_error([&] { check_tensors(source, config); }, "k_scale");
  source = good;
  source.tensors[down].shape = {32, 64};
  expect_error([&] { check_tensors(source, config); }, "[64, 32]");
  source = good;
  source.tensors[down].shape = {64, 32, 1};
  expect_error([&] { check_tensors(source, config); }, down);
  source = good;
  source.tensors[down].dtype = DType::kBF16;
  expect_error([&] { check_tensors(source, config); }, "F8_E4M3");
  source = good;
  source.tensors["model.norm.weight"].dtype = DType::kI32;
  expect_error([&] { check_tensors(source, config); }, "I32");
}

TEST(CheckTensors, WhatPublishedCheckpointsVaryIsAccepted) {
  const ModelConfig config = config_with("deepseek_v3", kFp8);
  StatedTensors source(config);
  source.tensors["model.norm.weight"].dtype = DType::kF32;
  source.tensors["model.layers.1.mlp.gate.e_score_correction_bias"].dtype = DType::kBF16;
  source.tensors["model.layers.1.mlp.experts.3.down_proj.weight_scale_inv"].dtype = DType::kBF16;
  source.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {DType::kF32, {8}};
  source.tensors["model.layers.3.eh_proj.weight"] = {DType::kBF16, {64, 128}};  // a layer that predicts further tokens
  EXPECT_NO_THROW(check_tensors(source, config));
  source.tensors["model.layers.4.eh_proj.weight"] = {DType::kBF16, {64, 128}};
  expect_error([&] { check_tensors(source, config); }, "model.layers.4.");

  const ModelConfig tied = config_with("qwen3");
  StatedTensors with_head(tied);
  with_head.tensors["lm_head.weight"] = {DType::kBF16, {320, 64}};
  EXPECT_NO_THROW(check_tensors(with_head, tied));
  const ModelConfig untied = config_with("qwen3", R"({"tie_word_embeddings": false})");
  StatedTensors without_head(untied);
  without_head.tensors.erase("lm_head.weight");
  expect_error([&] { check_tensors(without_head, untied); }, "lm_head.weight");
}

std::vector<ModelConfig> dummy_configs() {
  std::vector<ModelConfig> configs;
  for (const std::string_view type : testing::kModelTypes) configs.push_back(config_with(type));
  configs.push_back(config_with("deepseek_v3", kFp8));
  configs.push_back(config_with("gpt_oss", R"({"quantization_config": {"quant_method": "mxfp4"}})"));
  configs.push_back(config_with("mixtral", R"({"torch_dtype": "float16"})"));
  configs.push_back(config_with("llama", R"({"torch_dtype": "float32"})"));
  configs.push_back(config_with("deepseek_v3", R"({"num_nextn_predict_layers": 1})"));
  return configs;
}

TEST(DummyWeights, FitEveryConfiguration) {
  for (const ModelConfig& config : dummy_configs()) {
    SCOPED_TRACE(config.architecture);
    const auto source = make_dummy_weights(config, 1);
    EXPECT_NO_THROW(check_tensors(*source, config));
    uint64_t bytes = 0;
    for (const std::string& name : source->names()) {
      const StoredTensor tensor = source->tensor(name);
      EXPECT_EQ(tensor.shape, source->info(name).shape);
      ASSERT_EQ(tensor.bytes.size(), static_cast<size_t>(num_elements(tensor.shape)) * dtype_bytes(tensor.dtype))
          << name;
      bytes += tensor.bytes.size();
      source->release(name);
    }
    EXPECT_EQ(bytes, source->total_bytes());
    expect_error([&] { source->tensor("x"); }, "'x'");
  }
}

std::vector<std::byte> bytes_of(WeightSource& source, const std::string& name) {
  const auto bytes = source.tensor(name).bytes;
  return {bytes.begin(), bytes.end()};
}

TEST(DummyWeights, TheSameSeedGivesTheSameBytes) {
  const ModelConfig config = config_with("deepseek_v3", kFp8);
  const auto a = make_dummy_weights(config, 7), b = make_dummy_weights(config, 7), c = make_dummy_weights(config, 8);
  auto names = a->names();
  for (const std::string& name : names) {
    const auto first = bytes_of(*a, name);
    a->release(name);
    EXPECT_EQ(first, bytes_of(*a, name)) << name;
    if (name.find("norm") == std::string::npos && first.size() >= 32) {
      EXPECT_NE(first, bytes_of(*c, name)) << name;
    }
  }
  std::reverse(names.begin(), names.end());  // whatever the order
  for (const std::string& name : names) EXPECT_EQ(bytes_of(*a, name), bytes_of(*b, name)) << name;
  EXPECT_NE(bytes_of(*a, "model.layers.1.mlp.experts.0.up_proj.weight"),
            bytes_of(*a, "model.layers.1.mlp.experts.1.up_proj.weight"));
}

double value(const StoredTensor& t, size_t i) {
  const auto u16 = [&] { return reinterpret_cast<const uint16_t*>(t.bytes.data())[i]; };
  switch (t.dtype) {
    case DType::kBF16: return bf16_to_float(u16());
    case DType::kF16: return f16_to_float(u16());
    case DType::kF8E4M3: return f8e4m3_to_float(static_cast<uint8_t>(t.bytes[i]));
    default: return reinterpret_cast<const float*>(t.bytes.data())[i];
  }
}

// Root mean square of a matrix [rows, columns], its scales applied.
double rms(WeightSource& source, const std::string& name) {
  const StoredTensor w = source.tensor(name);
  double sum = 0;
  const auto n = static_cast<size_t>(num_elements(w.shape));
  const bool fp8 = w.dtype == DType::kF8E4M3;
  const StoredTensor s = fp8 ? source.tensor(name + "_scale_inv") : StoredTensor{};
  for (size_t i = 0; i < n; ++i) {
    double v = value(w, i);
    if (fp8)
      v *= value(s, i / static_cast<size_t>(w.shape[1]) / 128 * static_cast<size_t>(s.shape[1]) +
                        i % static_cast<size_t>(w.shape[1]) / 128);
    sum += v * v;
  }
  return std::sqrt(sum / static_cast<double>(n));
}

TEST(DummyWeights, ProjectionsKeepTheVariance) {
  for (const char* dtype : {"bfloat16", "float16", "float32"}) {
    const auto source = make_dummy_weights(
        config_with("llama", fmt::format(R"({{"torch_dtype": "{}", "hidden_size": 512}})", dtype)), 3);
    EXPECT_NEAR(rms(*source, "model.layers.0.mlp.up_proj.weight") * std::sqrt(512.0), 1.0, 0.03) << dtype;
    EXPECT_NEAR(rms(*source, "model.layers.0.mlp.down_proj.weight") * std::sqrt(96.0), 1.0, 0.03) << dtype;
    EXPECT_EQ(rms(*source, "model.norm.weight"), 1.0);
    EXPECT_NEAR(rms(*source, "model.embed_tokens.weight"), 1.0, 0.03);
  }
  json::object config = testing::small_config_with("deepseek_v3", kFp8);
  config["hidden_size"] = 512;
  const auto fp8 = make_dummy_weights(parse_model_config(config), 3);
  EXPECT_NEAR(rms(*fp8, "model.layers.0.mlp.up_proj.weight") * std::sqrt(512.0), 1.0, 0.25);
  EXPECT_NEAR(rms(*fp8, "model.layers.1.mlp.gate.weight") * std::sqrt(512.0), 1.0, 0.05);
}

TEST(DummyWeights, Mxfp4KeepsTheVarianceWithinAFactorOfTwo) {
  const auto source = make_dummy_weights(
      config_with("gpt_oss", R"({"hidden_size": 512, "quantization_config": {"quant_method": "mxfp4"}})"), 3);
  const StoredTensor blocks = source->tensor("model.layers.0.mlp.experts.gate_up_proj_blocks");
  const StoredTensor scales = source->tensor("model.layers.0.mlp.experts.gate_up_proj_scales");
  double sum = 0;
  for (size_t i = 0; i < blocks.bytes.size(); ++i) {
    const auto byte = static_cast<uint8_t>(blocks.bytes[i]);
    const double scale = e8m0_to_float(static_cast<uint8_t>(scales.bytes[i / 16]));
    sum += std::pow(fp4_to_float(byte & 15) * scale, 2) + std::pow(fp4_to_float(byte >> 4) * scale, 2);
  }
  const double rms_512 = std::sqrt(sum / (2.0 * static_cast<double>(blocks.bytes.size())) * 512);
  EXPECT_GT(rms_512, 0.5);
  EXPECT_LT(rms_512, 2.0);
}

}  // namespace
}  // namespace cadre
