#include "base/error.h"
#include "config/read_parts.h"

namespace cadre {
namespace {

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";

void read_first_dense(const JsonObject& config, const FamilyTraits& traits, ModelConfig& model) {
  const int64_t absent = traits.family == Family::kDeepseekV2 ? 0 : traits.family == Family::kDeepseekV3 ? 3 : 1;
  const int64_t first_dense = config.maybe_integer("first_k_dense_replace", 0, kMaxLayers).value_or(absent);
  if (first_dense > model.num_layers)
    throw invalid_input("config.json: expected 'first_k_dense_replace' at most the {} layers, found {}; correct it",
                        model.num_layers, first_dense);
  if (const json::value* frequency = config.find("moe_layer_freq"); frequency && *frequency != json::value(1))
    throw unsupported("config.json: expected 'moe_layer_freq' 1, found {}; choose another checkpoint",
                      describe(*frequency));
  for (int64_t i = first_dense; i < model.num_layers; ++i) model.layers[static_cast<size_t>(i)].is_sparse = true;
}

void read_sparse_step(const JsonObject& config, ModelConfig& model) {
  const int64_t step = config.maybe_integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  for (int64_t i = 0; i < model.num_layers; ++i) model.layers[static_cast<size_t>(i)].is_sparse = (i + 1) % step == 0;
  const json::array* dense = config.maybe_array("mlp_only_layers");
  if (!dense) return;
  for (const json::value& value : *dense) {
    if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() >= model.num_layers)
      throw invalid_input("config.json: expected 'mlp_only_layers' to hold layers from 0 to {}, found {}; correct it",
                          model.num_layers - 1, describe(value));
    model.layers[static_cast<size_t>(value.get_int64())].is_sparse = false;
  }
}

// The entries of a per-layer list, or none when the key is absent.
std::vector<std::string> layer_list(const JsonObject& config, std::string_view key, int64_t num_layers,
                                    std::string_view a, std::string_view b) {
  std::vector<std::string> result;
  const json::array* array = config.maybe_array(key);
  if (!array) return result;
  if (static_cast<int64_t>(array->size()) != num_layers)
    throw invalid_input("config.json: expected '{}' to have one entry for each of the {} layers, found {}; correct it",
                        key, num_layers, array->size());
  for (const json::value& value : *array) {
    const std::string_view text = value.is_string() ? std::string_view(value.get_string()) : std::string_view();
    if (text != a && text != b)
      throw unsupported("config.json: expected '{}' of {} and {}, found {}; choose another checkpoint", key, a, b,
                        describe(value));
    result.emplace_back(text);
  }
  return result;
}

// The window of sliding layers; 0 when the configuration switches windows off.
int64_t window(const JsonObject& config, const FamilyTraits& traits) {
  const bool has_switch =
      traits.family == Family::kQwen3 || traits.family == Family::kQwen3Moe || traits.family == Family::kQwen2Moe;
  if (has_switch && !config.maybe_boolean("use_sliding_window").value_or(false)) return 0;
  int64_t absent = 0;
  if (!config.raw().contains("sliding_window")) absent = traits.family == Family::kGptOss ? 128 : has_switch ? 4096 : 0;
  return config.maybe_integer("sliding_window", 1, kMaxPositions).value_or(absent);
}

// Which layers slide when layer_types does not say.
bool slides_by_default(const JsonObject& config, const FamilyTraits& traits, int64_t layer_idx) {
  switch (traits.family) {
    case Family::kMixtral: return true;
    case Family::kGptOss: return layer_idx % 2 == 0;
    case Family::kQwen3: return layer_idx >= config.maybe_integer("max_window_layers", 0, kMaxLayers).value_or(28);
    case Family::kQwen3Moe:
      if (config.maybe_integer("max_window_layers", 0, kMaxLayers).value_or(0) != 0)
        throw unsupported(
            "config.json: expected qwen3_moe with sliding windows to leave 'max_window_layers' out, which "
            "implementations read differently, found {}; remove it if all layers slide",
            *config.maybe_integer("max_window_layers", 0, kMaxLayers));
      return true;
    case Family::kQwen2Moe:
      throw unsupported(
          "config.json: expected qwen2_moe with sliding windows to name its layers in 'layer_types', found none, and "
          "implementations choose them differently; add 'layer_types'");
    default: return false;
  }
}

void read_windows(const JsonObject& config, const FamilyTraits& traits, ModelConfig& model) {
  const bool has_windows = traits.keys.find("sliding_window") != std::string_view::npos;
  const int64_t keys = has_windows ? window(config, traits) : 0;
  const auto types = layer_list(config, "layer_types", model.num_layers, kFull, kSliding);
  // These read layer_types; for the others the list may only repeat what the other keys say.
  const bool reads_types =
      traits.family == Family::kGptOss || traits.family == Family::kQwen3 || traits.family == Family::kQwen2Moe;
  for (int64_t i = 0; i < model.num_layers; ++i) {
    const auto idx = static_cast<size_t>(i);
    bool slides =
        !types.empty() && reads_types ? types[idx] == kSliding : keys != 0 && slides_by_default(config, traits, i);
    if (slides && keys == 0)
      throw invalid_input(
          "config.json: expected a 'sliding_window' for sliding layer {}, found none; add it or correct 'layer_types'",
          i);
    if (!types.empty() && slides != (types[idx] == kSliding))
      throw unsupported(
          "config.json: expected 'layer_types' to agree with the other keys of {}, found layer {} as {}; choose "
          "another checkpoint",
          traits.architecture, i, types[idx]);
    model.layers[idx].sliding_window = slides ? keys : 0;
  }
}

}  // namespace

void read_layers(const JsonObject& config, const FamilyTraits& traits, ModelConfig& model) {
  model.layers.assign(static_cast<size_t>(model.num_layers), LayerConfig{});
  switch (traits.family) {
    case Family::kDeepseekV2:
    case Family::kDeepseekV3:
    case Family::kGlm4Moe: read_first_dense(config, traits, model); break;
    case Family::kQwen3Moe:
    case Family::kQwen2Moe: read_sparse_step(config, model); break;
    case Family::kMixtral:
    case Family::kOlmoe:
    case Family::kGptOss:
      for (LayerConfig& layer : model.layers) layer.is_sparse = true;
      break;
    case Family::kQwen3:
    case Family::kLlama: break;
  }
  const auto mlp_types = layer_list(config, "mlp_layer_types", model.num_layers, "dense", "sparse");
  for (size_t i = 0; i < mlp_types.size(); ++i)
    if ((mlp_types[i] == "sparse") != model.layers[i].is_sparse)
      throw unsupported(
          "config.json: expected 'mlp_layer_types' to agree with the other keys, found layer {} as {}; correct one of "
          "them",
          i, mlp_types[i]);
  read_windows(config, traits, model);
}

}  // namespace cadre
