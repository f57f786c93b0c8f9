// The configuration parser on arbitrary JSON, and on valid configurations whose values are written over by a program
// of bytes: mutation alone would hardly ever make JSON of the right keys.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "config/bytes.h"
#include "config/model_config.h"
#include "config/tensor_spec.h"
#include "config/test_configs.h"

namespace {

using namespace cadre;

constexpr std::string_view kMoreKeys[] = {"rope_scaling",
                                          "rope_parameters",
                                          "quantization_config",
                                          "layer_types",
                                          "mlp_layer_types",
                                          "sliding_window",
                                          "use_sliding_window",
                                          "max_window_layers",
                                          "mlp_only_layers",
                                          "decoder_sparse_step",
                                          "num_nextn_predict_layers",
                                          "head_dim",
                                          "partial_rotary_factor",
                                          "rope_interleave",
                                          "num_local_experts",
                                          "swiglu_alpha",
                                          "clip_qkv",
                                          "qkv_bias",
                                          "use_qk_norm",
                                          "mlp_bias",
                                          "original_max_position_embeddings",
                                          "index_topk",
                                          "dtype"};

constexpr std::string_view kValues[] = {
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "2",
    "3",
    "0.5",
    "1e300",
    "9223372036854775807",
    "18446744073709551615",
    "\"silu\"",
    "\"yarn\"",
    "\"\"",
    "[]",
    "[0]",
    "[-1]",
    "{}",
    "[\"full_attention\"]",
    R"(["sliding_attention","full_attention","full_attention"])",
    R"(["dense","sparse","sparse"])",
    R"({"type":"yarn","factor":40,"mscale":1,"mscale_all_dim":0.7})",
    R"({"rope_type":"llama3","factor":2,"low_freq_factor":1,"high_freq_factor":4})",
    R"({"rope_type":"linear","factor":8})",
    R"({"rope_type":"default","rope_theta":10})",
    R"({"full_attention":{"rope_theta":5},"sliding_attention":{"rope_theta":5}})",
    R"({"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["lm_head","model.layers.*.self_attn","*"]})",
    R"({"quant_method":"mxfp4","modules_to_not_convert":["*.*","experts"]})",
    R"({"quant_algo":"NVFP4"})"};

json::value take_value(std::span<const uint8_t>& bytes) {
  const uint8_t kind = bytes.front();
  bytes = bytes.subspan(1);
  if (kind < std::size(kValues)) return json::parse(kValues[kind]);
  uint64_t number = 0;
  const size_t width = std::min<size_t>(bytes.size(), kind % 9);
  std::memcpy(&number, bytes.data(), width);
  bytes = bytes.subspan(width);
  if (kind % 2 == 0) return static_cast<int64_t>(number);
  return std::bit_cast<double>(number);
}

json::object from_program(std::span<const uint8_t> bytes) {
  const std::string_view family = testing::kModelTypes[bytes.front() % std::size(testing::kModelTypes)];
  json::object config = testing::small_config_with(family, "{}");
  bytes = bytes.subspan(1);
  while (bytes.size() >= 2) {
    const size_t key = bytes.front() % (config.size() + std::size(kMoreKeys));
    bytes = bytes.subspan(1);
    json::value value = take_value(bytes);
    if (key < config.size())
      std::next(config.begin(), static_cast<std::ptrdiff_t>(key))->value() = std::move(value);
    else
      config[kMoreKeys[key - config.size()]] = std::move(value);
  }
  return config;
}

void check(const json::object& config) {
  const ModelConfig model = parse_model_config(config);
  CADRE_CHECK(static_cast<int64_t>(model.layers.size()) == model.num_layers);
  CADRE_CHECK(kv_bytes_per_token(model, DType::kF32) > 0);
  CADRE_CHECK(model.attention.softmax_scale > 0 && model.attention.rope.cos_sin_scale > 0);
  if (model.num_layers * (model.moe.router.num_experts + 1) > 2000) return;  // valid, but slow to list
  for (const TensorSpec& spec : checkpoint_tensors(model)) CADRE_CHECK(spec.bytes() > 0, "{}", spec.name);
  CADRE_CHECK(expert_bytes(model) >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  try {
    if (data[0] < 128) {
      check(from_program({data + 1, size - 1}));
    } else {
      const json::value value = parse_json({reinterpret_cast<const char*>(data) + 1, size - 1}, "config.json");
      if (value.is_object()) check(value.get_object());
    }
  } catch (const Error&) {
  }
  return 0;
}
