#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

bool is_float(DType t) { return t == DType::kBF16 || t == DType::kF16 || t == DType::kF32; }

// Unquantised values and FP8 scales are read through conversions to float; packed bytes mean one thing only.
bool may_be_stored_as(const TensorSpec& spec, DType found) {
  return found == spec.dtype || (is_float(spec.dtype) && is_float(found));
}

bool is_tolerated(const std::string& name, const ModelConfig& config) {
  if (name.ends_with("rotary_emb.inv_freq")) return true;  // a buffer that old exporters saved
  if (name == "lm_head.weight" && config.tie_word_embeddings) return true;
  constexpr std::string_view kLayer = "model.layers.";
  const bool has_next_token_layers = config.family == Family::kDeepseekV3 || config.family == Family::kGlm4Moe;
  if (!has_next_token_layers || !name.starts_with(kLayer)) return false;
  int64_t layer = 0;
  size_t at = kLayer.size();
  for (; at < name.size() && at < kLayer.size() + 6 && name[at] >= '0' && name[at] <= '9'; ++at)
    layer = layer * 10 + (name[at] - '0');
  const int64_t num_extra = std::max<int64_t>(config.num_nextn_layers, 1);
  return at < name.size() && name[at] == '.' && layer >= config.num_layers && layer < config.num_layers + num_extra;
}

// "a, b and 7 more"
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(names.size(), 3); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > 3) text += fmt::format(" and {} more", names.size() - 3);
  return text;
}

}  // namespace

void check_tensors(const WeightSource& source, const ModelConfig& config) {
  const std::vector<TensorSpec> specs = checkpoint_tensors(config);
  std::unordered_map<std::string_view, const TensorSpec*> by_name;
  std::vector<std::string> missing, unexpected;
  for (const TensorSpec& spec : specs) {
    by_name.emplace(spec.name, &spec);
    if (spec.required && !source.has(spec.name)) missing.push_back(spec.name);
  }
  for (const std::string& name : source.names()) {
    const auto it = by_name.find(name);
    if (it == by_name.end()) {
      if (!is_tolerated(name, config)) unexpected.push_back(cadre::quoted(name));
      continue;
    }
    const TensorSpec& spec = *it->second;
    const TensorInfo found = source.info(name);
    if (!spec.required) continue;
    if (found.shape != spec.shape)
      throw invalid_input("tensor {}: expected shape {} by config.json, found {}; the weights are of another model",
                          name, shape_text(spec.shape), shape_text(found.shape));
    if (!may_be_stored_as(spec, found.dtype))
      throw invalid_input(
          "tensor {}: expected elements of type {} by config.json, found {}; check quantization_config against the "
          "weights",
          name, dtype_name(spec.dtype), dtype_name(found.dtype));
  }
  if (!missing.empty())
    throw invalid_input(
        "expected every tensor of {} in the checkpoint, found {} of {} missing ({}){}; download the checkpoint again, "
        "or check config.json",
        config.architecture, missing.size(), specs.size(), listed(missing),
        unexpected.empty() ? "" : fmt::format(" and {} unexpected ({})", unexpected.size(), listed(unexpected)));
  if (!unexpected.empty())
    throw invalid_input(
        "expected only the tensors of {} in the checkpoint, found {} that nothing would read ({}); the weights are of "
        "another model than config.json says",
        config.architecture, unexpected.size(), listed(unexpected));
}

}  // namespace cadre
