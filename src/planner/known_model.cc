#include "planner/known_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "planner/report.h"

namespace cadre::planner {
namespace {

struct SizeKey {
  const char* what;
  std::vector<std::string_view> keys;  // older and newer names
};

const std::vector<SizeKey>& size_keys() {
  static const std::vector<SizeKey> kKeys = {
      {"layers", {"num_hidden_layers", "n_layer", "num_layers"}},
      {"hidden size", {"hidden_size", "d_model", "n_embd"}},
      {"query heads", {"num_attention_heads", "n_head"}},
      {"KV heads", {"num_key_value_heads"}},
      {"head dimension", {"head_dim"}},
      {"latent rank", {"kv_lora_rank"}},
      {"rotary part of the latent", {"qk_rope_head_dim"}},
      {"experts", {"n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_routed_experts"}},
      {"experts of a token", {"num_experts_per_tok", "moe_topk", "moe_router_topk", "num_experts_per_token", "experts_per_token", "top_k"}},
      {"expert width", {"moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size"}},
      {"dense width", {"intermediate_size", "ffn_hidden_size", "d_ff"}},
      {"vocabulary", {"vocab_size"}},
      {"context", {"max_position_embeddings", "n_positions"}}};
  return kKeys;
}

int64_t size_of(const KnownModel& known, std::string_view what) {
  for (const auto& [name, value] : known.sizes)
    if (name == what) return value;
  return 0;
}

void read_sizes(const JsonObject& config, KnownModel* out) {
  for (const SizeKey& key : size_keys()) {
    if (size_of(*out, key.what) > 0) continue;
    for (const std::string_view name : key.keys) {
      const json::value* value = config.find(name);
      if (!value || !value->is_number()) continue;
      const double number = value->to_number<double>();
      // What nobody's model has is refused here too: no plan is made of it.
      if (!(number >= 1 && number <= 1e9) || number != std::floor(number))
        throw invalid_input("{}: expected '{}' to be a whole number from 1 to 10^9, found {}; correct it", config.name(), name,
                            describe(*value));
      out->sizes.emplace_back(key.what, static_cast<int64_t>(number));
      break;
    }
  }
}

void derive(const JsonObject& config, KnownModel* out) {
  const int64_t hidden = size_of(*out, "hidden size"), heads = size_of(*out, "query heads"), latent = size_of(*out, "latent rank");
  const int64_t head_dim = size_of(*out, "head dimension") > 0 ? size_of(*out, "head dimension") : heads > 0 ? hidden / heads : 0;
  const int64_t kv_heads = size_of(*out, "KV heads") > 0 ? size_of(*out, "KV heads") : heads;
  if (latent > 0)
    out->kv_values_per_token_layer = latent + size_of(*out, "rotary part of the latent");
  else if (head_dim > 0 && kv_heads > 0)
    out->kv_values_per_token_layer = 2 * kv_heads * head_dim;
  const int64_t width = size_of(*out, "expert width") > 0 ? size_of(*out, "expert width") : size_of(*out, "dense width");
  if (size_of(*out, "experts") > 0 && hidden > 0 && width > 0) out->expert_parameters = 3 * hidden * width;
  out->unknown.push_back(
      "parameters of attention, of shared experts and of what else its layers hold: the names and shapes of its tensors are not known "
      "here");
  for (const std::string_view key : {"layer_types", "hybrid_override_pattern", "layers_block_type", "full_attention_interval",
                                     "attn_layer_period", "linear_num_key_heads", "block_configs"})
    if (config.has(key)) {
      out->unknown.push_back(fmt::format(
          "which layers cache keys and values: '{}' makes them differ, so the cache of a token may be less than the figure for all layers",
          key));
      break;
    }
  if (config.has("index_topk") || config.has("index_n_heads"))
    out->unknown.push_back("its attention picks positions with an index of its own, whose cache comes on top");
  if (config.has("vision_config")) out->unknown.push_back("its vision tower");
}

// Published files write Infinity and NaN, which JSON does not have, in keys that no plan reads: null here.
std::string without_infinities(std::string text) {
  bool is_in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && is_in_string)
      ++i;
    else if (text[i] == '"')
      is_in_string = !is_in_string;
    else if (!is_in_string)
      for (const std::string_view word : {"-Infinity", "Infinity", "NaN"})
        if (text.compare(i, word.size(), word) == 0) text.replace(i, word.size(), "null");
  }
  return text;
}

constexpr uint64_t kMostBytes = uint64_t{16} << 20;

std::string read_text(const std::filesystem::path& path) {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in)
    throw Error(ErrorKind::kNotFound, fmt::format("expected a readable config.json, found none at {}; check the path", path.string()));
  if (bytes > kMostBytes)
    throw invalid_input("{}: expected a config.json of at most {} bytes, found {}; name the right file", path.string(), kMostBytes, bytes);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The form among ours that a published quantisation comes to: its bits, and whether they are floats.
std::optional<WeightType> weight_type_of(const JsonObject& quantization) {
  std::string text = quantization.maybe_string("quant_algo").value_or("") + " " + quantization.maybe_string("quant_method").value_or("") +
                     " " + quantization.maybe_string("format").value_or("");
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto says = [&](std::string_view word) { return text.find(word) != std::string::npos; };
  if (says("nvfp4") || says("mixed_precision")) return WeightType::kNvfp4;
  if (says("mxfp4")) return WeightType::kMxfp4;
  if (says("fp8") || says("float-quantized")) return WeightType::kFp8;
  int64_t bits = quantization.maybe_integer("bits", 1, 64).value_or(0);
  if (const auto groups = quantization.maybe_object("config_groups"))
    for (const auto& [name, group] : groups->raw())
      if (group.is_object())
        if (const auto weights = JsonObject(group.get_object(), "config_groups").maybe_object("weights"))
          bits = weights->maybe_integer("num_bits", 1, 64).value_or(bits);
  if (bits == 8 || says("int8") || says("w8a8")) return WeightType::kInt8;
  if (bits == 4 || says("awq") || says("gptq") || says("w4")) return WeightType::kInt4;
  return std::nullopt;
}

}  // namespace

KnownModel parse_known_model(std::string text, const std::string& file_name) {
  KnownModel out;
  const json::value file = parse_json(without_infinities(std::move(text)), file_name);
  if (!file.is_object())
    throw invalid_input("{}: expected a JSON object, found {}; use the config.json of a checkpoint", file_name, describe(file));
  const json::object& object = file.get_object();
  try {
    out.config = parse_model_config(object);
    out.tells_quantization = object.contains("quantization_config");
    return out;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kUnsupported) throw;
    out.why = e.what();
  }
  const JsonObject config(object, "config.json");
  // Served but for how its weights are stored?
  if (const auto quantization = config.maybe_object("quantization_config")) {
    json::object plain = object;
    plain.erase("quantization_config");
    try {
      out.config = parse_model_config(plain);
      out.tells_quantization = true;
      out.weight_type = weight_type_of(*quantization);
      out.notes.push_back(fmt::format("{}; planned with weights in {}", out.why,
                                      out.weight_type ? weight_type_name(*out.weight_type) : dtype_name(out.config->dtype)));
      return out;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kUnsupported) throw;
    }
  }
  if (const json::array* names = config.maybe_array("architectures"); names && !names->empty() && names->front().is_string())
    out.architecture = std::string_view(names->front().get_string());
  if (out.architecture.empty()) out.architecture = config.maybe_string("model_type").value_or("an unnamed architecture");
  read_sizes(config, &out);
  for (const std::string_view nested : {"text_config", "llm_config", "language_config"})
    if (const auto inner = config.maybe_object(nested)) read_sizes(*inner, &out);
  derive(config, &out);
  return out;
}

KnownModel read_known_model(const std::filesystem::path& path) {
  const bool is_folder = std::filesystem::is_directory(path);
  const auto file_path = is_folder ? path / "config.json" : path;
  KnownModel out = parse_known_model(read_text(file_path), file_path.filename().string());
  out.name = path.string();
  // Some checkpoints say how they are quantised in a file of its own.
  const auto beside = file_path.parent_path() / "hf_quant_config.json";
  if (!out.config || out.tells_quantization || !std::filesystem::exists(beside)) return out;
  const json::value file = parse_json_file(beside, kMostBytes);
  if (!file.is_object()) return out;
  if (const auto quantization = JsonObject(file.get_object(), "hf_quant_config.json").maybe_object("quantization"))
    out.weight_type = weight_type_of(*quantization);
  if (out.weight_type)
    out.notes.push_back(fmt::format("hf_quant_config.json: weights are counted in {}", weight_type_name(*out.weight_type)));
  return out;
}

std::string known_text(const KnownModel& known, const PlanRequest& request) {
  std::string out = fmt::format("{} is not served: {}\n\nWhat its configuration says:\n", known.architecture, known.why);
  for (const auto& [what, value] : known.sizes) out += fmt::format("  {:<26} {}\n", what, thousands(value));
  if (known.sizes.empty()) out += "  no size under a name that is known here\n";
  const int64_t layers = size_of(known, "layers"), experts = size_of(known, "experts");
  if (known.kv_values_per_token_layer > 0 && layers > 0) {
    const double bytes = static_cast<double>(known.kv_values_per_token_layer) * static_cast<double>(layers) * request.kv_value_bytes;
    out += fmt::format("  {:<26} {} bytes, if every layer caches\n", "KV cache of a token",
                       thousands(static_cast<int64_t>(std::min(bytes, 0x1p62))));
    out += fmt::format("  {:<26} {} in {}\n", "tokens in all memory",
                       thousands(tokens_in(static_cast<int64_t>(request.hardware.memory_bytes - request.hardware.reserve_bytes),
                                           static_cast<int64_t>(std::min(bytes, 0x1p62)))),
                       request.hardware.name);
  }
  if (known.expert_parameters > 0 && layers > 0)
    out += fmt::format("  {:<26} {} parameters, {} of all in a layer, if it is a gated one\n", "an expert",
                       thousands(known.expert_parameters), thousands(multiply_counts(known.expert_parameters, experts)));
  out += "\nWhat is not known:\n";
  for (const std::string& u : known.unknown) out += fmt::format("  {}\n", u);
  return out;
}

json::object known_json(const KnownModel& known) {
  json::object sizes;
  for (const auto& [what, value] : known.sizes) sizes[what] = value;
  json::array unknown;
  for (const std::string& u : known.unknown) unknown.push_back(json::string(u));
  return {{"model", known.name},
          {"is_served", false},
          {"architecture", known.architecture},
          {"why", known.why},
          {"sizes", std::move(sizes)},
          {"kv_values_per_token_layer", known.kv_values_per_token_layer},
          {"expert_parameters", known.expert_parameters},
          {"unknown", std::move(unknown)}};
}

}  // namespace cadre::planner
