#include "config/model_config.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "config/family.h"
#include "config/read_parts.h"

namespace cadre {

std::optional<int64_t> aliased_integer(const JsonObject& config, std::initializer_list<std::string_view> keys,
                                       int64_t min, int64_t max) {
  std::optional<int64_t> result;
  std::string_view first;
  for (const std::string_view key : keys) {
    const auto value = config.maybe_integer(key, min, max);
    if (!value) continue;
    if (result && *result != *value)
      throw invalid_input(
          "{}: expected '{}' and '{}', two names of one number, to agree, found {} and {}; keep the right one",
          config.name(), first, key, *result, *value);
    if (!result) first = key;
    result = value;
  }
  return result;
}

void expect_boolean(const JsonObject& config, std::string_view key, bool served, std::string_view reason) {
  if (config.maybe_boolean(key).value_or(served) != served)
    throw unsupported("{}: expected '{}' {}, found {}: {}; choose another checkpoint", config.name(), key, served,
                      !served, reason);
}

void expect_string(const JsonObject& config, std::string_view key, std::initializer_list<std::string_view> served,
                   std::string_view reason) {
  const auto value = config.maybe_string(key);
  if (!value || std::find(served.begin(), served.end(), *value) != served.end()) return;
  std::string list;
  for (const std::string_view s : served) list += (list.empty() ? "" : " or ") + std::string(s);
  throw unsupported("{}: expected '{}' {}, found {}: {}; choose another checkpoint", config.name(), key, list,
                    cadre::quoted(*value), reason);
}

namespace {

DType read_dtype(const JsonObject& config) {
  auto name = config.maybe_string("dtype");
  if (!name) name = config.maybe_string("torch_dtype");
  if (!name) return DType::kBF16;
  std::string_view text = *name;
  if (text.starts_with("torch.")) text.remove_prefix(6);
  if (text == "bfloat16") return DType::kBF16;
  if (text == "float16") return DType::kF16;
  if (text == "float32") return DType::kF32;
  throw unsupported("config.json: expected 'dtype' bfloat16, float16 or float32, found {}; choose another checkpoint",
                    cadre::quoted(*name));
}

void add_token_ids(const JsonObject& config, std::string_view key, std::vector<int32_t>& ids) {
  const json::value* value = config.find(key);
  if (!value) return;
  const auto add = [&](const json::value& id) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= kMaxVocab * 2)
      throw invalid_input("{}: expected '{}' to hold token ids, found {}; correct it", config.name(), key,
                          describe(id));
    const auto token = static_cast<int32_t>(id.get_int64());
    if (std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
  };
  if (!value->is_array()) return add(*value);
  if (value->get_array().size() > 4096)
    throw invalid_input("{}: expected at most 4096 token ids in '{}', found {}; correct it", config.name(), key,
                        value->get_array().size());
  for (const json::value& id : value->get_array()) add(id);
}

// MoE families need the dense width only where a layer is dense.
void read_dense_width(const JsonObject& config, ModelConfig& model) {
  const bool any_dense =
      std::any_of(model.layers.begin(), model.layers.end(), [](const LayerConfig& l) { return !l.is_sparse; });
  if (any_dense) model.dense_intermediate = config.integer("intermediate_size", 1, kMaxWidth);
}

// Bounds on products: what follows computes sizes in int64 and lists every tensor.
void check_totals(const ModelConfig& model) {
  if (model.num_layers * model.moe.router.num_experts > (int64_t{1} << 18))
    throw invalid_input("config.json: expected at most {} experts over all layers, found {} layers of {}; correct them",
                        int64_t{1} << 18, model.num_layers, model.moe.router.num_experts);
  const double hidden = static_cast<double>(model.hidden_size);
  const double experts =
      static_cast<double>(model.moe.router.num_experts) * static_cast<double>(model.moe.expert_intermediate);
  const double width =
      experts + static_cast<double>(model.moe.shared_intermediate + model.dense_intermediate) +
      4.0 * static_cast<double>(model.attention.num_heads) * static_cast<double>(model.attention.head_dim);
  const double parameters =
      hidden * (3.0 * width * static_cast<double>(model.num_layers) + 2.0 * static_cast<double>(model.vocab_size));
  if (parameters > 1e15)
    throw invalid_input(
        "config.json: expected at most 1e15 parameters, found sizes that make about {:.1e}; correct the sizes",
        parameters);
}

}  // namespace

ModelConfig parse_model_config(const json::object& object) {
  const JsonObject config(object, "config.json");
  const FamilyTraits& traits = identify_family(config);
  refuse_unserved_keys(config, traits);

  ModelConfig model;
  model.family = traits.family;
  model.model_type = config.maybe_string("model_type").value_or(std::string(traits.model_type));
  model.architecture = std::string(traits.architecture);
  model.vocab_size = config.integer("vocab_size", 1, kMaxVocab);
  model.hidden_size = config.integer("hidden_size", 1, kMaxWidth);
  model.num_layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  model.max_position = config.maybe_integer("max_position_embeddings", 1, kMaxPositions).value_or(traits.max_position);
  model.rms_norm_eps = config.maybe_number("rms_norm_eps").value_or(traits.rms_norm_eps);
  if (!(model.rms_norm_eps > 0 && model.rms_norm_eps < 1))
    throw invalid_input("config.json: expected 'rms_norm_eps' between 0 and 1, found {}; correct it",
                        model.rms_norm_eps);
  expect_string(config, "hidden_act", {"silu", "swish"}, "other activations are not served");
  model.tie_word_embeddings = config.maybe_boolean("tie_word_embeddings").value_or(false);
  model.dtype = read_dtype(config);

  read_attention(config, traits, model);
  const AttentionConfig& attention = model.attention;
  const int64_t rotating = attention.kind == AttentionKind::kMla ? attention.qk_rope_head_dim : attention.head_dim;
  const RopeReading rope = read_rope(config, traits, rotating, model.max_position);
  model.attention.rope = rope.rope;
  model.attention.softmax_scale *= rope.softmax_factor;
  read_moe(config, traits, model);
  read_layers(config, traits, model);
  read_dense_width(config, model);
  check_totals(model);
  read_quantization(config, model);
  model.num_nextn_layers = aliased_integer(config, {"num_nextn_predict_layers", "num_mtp_layers"}, 0, 64).value_or(0);
  add_token_ids(config, "eos_token_id", model.eos_ids);
  std::vector<int32_t> bos;
  add_token_ids(config, "bos_token_id", bos);
  if (!bos.empty()) model.bos_id = bos.front();
  return model;
}

namespace {

// Exporters of NVFP4 and of FP8 with scales per tensor describe the quantisation in a file of its own.
void refuse_sidecar_quantization(const std::filesystem::path& dir) {
  const auto path = dir / "hf_quant_config.json";
  if (!std::filesystem::exists(path)) return;
  const json::value value = parse_json_file(path, uint64_t{64} << 20);
  std::string algorithm = "of an unknown kind";
  if (const json::object* top = value.if_object())
    if (const auto quant = JsonObject(*top, "hf_quant_config.json").maybe_object("quantization")) {
      if (!quant->has("quant_algo")) return;
      algorithm = cadre::quoted(quant->maybe_string("quant_algo").value_or(""));
    }
  throw unsupported(
      "hf_quant_config.json: expected no quantisation described there, found {}; choose a checkpoint in BF16, fp8 "
      "128x128 blocks or MXFP4",
      algorithm);
}

}  // namespace

ModelConfig load_model_config(const std::filesystem::path& path) {
  const bool is_dir = std::filesystem::is_directory(path);
  const auto file = is_dir ? path / "config.json" : path;
  const json::value value = parse_json_file(file, uint64_t{64} << 20);
  if (!value.is_object())
    throw invalid_input("{}: expected a JSON object, found {}; this is not a config.json", file.string(),
                        describe(value));
  ModelConfig model = parse_model_config(value.get_object());
  if (!is_dir && file.filename() != "config.json") return model;
  const auto dir = file.parent_path();
  refuse_sidecar_quantization(dir);
  const auto generation = dir / "generation_config.json";
  if (std::filesystem::exists(generation)) {
    const json::value extra = parse_json_file(generation, uint64_t{16} << 20);
    if (!extra.is_object())
      throw invalid_input("{}: expected a JSON object, found {}; correct or remove the file", generation.string(),
                          describe(extra));
    add_token_ids(JsonObject(extra.get_object(), "generation_config.json"), "eos_token_id", model.eos_ids);
  }
  return model;
}

}  // namespace cadre
