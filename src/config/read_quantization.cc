#include <algorithm>

#include "base/error.h"
#include "config/read_parts.h"

namespace cadre {
namespace {

std::vector<std::string> names(const JsonObject& object, std::string_view key) {
  std::vector<std::string> result;
  const json::array* array = object.maybe_array(key);
  if (!array) return result;
  for (const json::value& value : *array) {
    if (!value.is_string())
      throw invalid_input("{}: expected '{}' to hold module names, found {}; correct it", object.name(), key,
                          describe(value));
    result.emplace_back(std::string_view(value.get_string()));
  }
  return result;
}

void refuse_other_keys(const JsonObject& quant, std::initializer_list<std::string_view> served) {
  for (const auto& [key, value] : quant.raw()) {
    const std::string_view name(key);
    if (std::find(served.begin(), served.end(), name) != served.end() || value.is_null()) continue;
    if (value.is_bool() && !value.get_bool()) continue;
    if (value.is_array() && value.get_array().empty()) continue;
    throw unsupported(
        "{}: expected only keys of FP8 in 128x128 blocks or of MXFP4, found {} = {}; choose another checkpoint",
        quant.name(), cadre::quoted(name), describe(value));
  }
}

void read_fp8(const JsonObject& quant, ModelConfig& model) {
  refuse_other_keys(
      quant, {"quant_method", "fmt", "activation_scheme", "weight_block_size", "scale_fmt", "modules_to_not_convert",
              "ignored_layers", "dequantize", "expert_dtype", "weight_dtype", "is_checkpoint_fp8_serialized"});
  expect_string(quant, "fmt", {"e4m3", "float8_e4m3fn"}, "weights are served in this format");
  expect_string(quant, "activation_scheme", {"dynamic"},
                "scales of activations stored in the checkpoint are not served");
  expect_string(quant, "scale_fmt", {"float", "ue8m0"}, "other scales are not served");
  model.has_power_of_two_scales = quant.maybe_string("scale_fmt").value_or("") == "ue8m0";
  expect_string(quant, "expert_dtype", {"fp8"}, "experts are served in the format of the other weights");
  expect_string(quant, "weight_dtype", {"fp8", "float8_e4m3fn"}, "weights are served in this format");
  const json::array* block = quant.maybe_array("weight_block_size");
  if (!block || block->size() != 2 || (*block)[0] != json::value(128) || (*block)[1] != json::value(128))
    throw unsupported(
        "{}: expected 'weight_block_size' [128, 128], found {}; FP8 is served in blocks of that size only: choose "
        "another checkpoint",
        quant.name(), block ? json::serialize(*block).substr(0, 60) : "none");
  if (model.family == Family::kGptOss)
    throw unsupported("{}: expected gpt_oss in MXFP4 or unquantised, found fp8; choose another checkpoint",
                      quant.name());
  model.quant = WeightQuant::kFp8Block;
}

void read_mxfp4(const JsonObject& quant, ModelConfig& model) {
  refuse_other_keys(quant, {"quant_method", "modules_to_not_convert", "dequantize"});
  if (model.family != Family::kGptOss)
    throw unsupported("{}: expected MXFP4 with gpt_oss only, found it with {}; choose another checkpoint", quant.name(),
                      model.model_type);
  if (model.hidden_size % 32 != 0 || model.moe.expert_intermediate % 32 != 0)
    throw invalid_input(
        "{}: expected hidden and expert sizes of whole MXFP4 blocks of 32, found {} and {}; correct them", quant.name(),
        model.hidden_size, model.moe.expert_intermediate);
  model.quant = WeightQuant::kMxfp4;
}

}  // namespace

void read_quantization(const JsonObject& config, ModelConfig& model) {
  const auto quant = config.maybe_object("quantization_config");
  if (!quant || quant->raw().empty()) return;
  std::string method = quant->maybe_string("quant_method").value_or("");
  if (method.empty()) method = quant->maybe_string("quant_algo").value_or("an unnamed one");
  if (method == "fp8")
    read_fp8(*quant, model);
  else if (method == "mxfp4")
    read_mxfp4(*quant, model);
  else
    throw unsupported(
        "{}: expected no quantisation, fp8 in 128x128 blocks, or mxfp4, found method {}; choose another checkpoint of "
        "this model",
        quant->name(), cadre::quoted(method));
  model.unquantized_modules = names(*quant, "modules_to_not_convert");
  const auto ignored = names(*quant, "ignored_layers");  // the same under the name some exporters write
  model.unquantized_modules.insert(model.unquantized_modules.end(), ignored.begin(), ignored.end());
}

}  // namespace cadre
