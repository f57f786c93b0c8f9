#include "weights/inspect.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "config/bytes.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

struct Amount {
  int64_t tensors = 0, parameters = 0, bytes = 0;
  void add(int64_t p, int64_t b) { ++tensors, parameters += p, bytes += b; }
};

struct Inspection {
  ModelConfig config;
  bool has_weights = false;
  std::optional<std::string> misfit;  // why check_tensors refuses the weights
  std::map<TensorKind, Amount> by_kind;
  Amount other;  // tensors the configuration does not know
  std::map<DType, int64_t> bytes_by_dtype;
  Amount total;                  // without layers that predict further tokens
  double active_parameters = 0;  // that one token meets
};

bool has_files(const std::filesystem::path& dir) {
  return std::filesystem::exists(dir / "model.safetensors") ||
         std::filesystem::exists(dir / "model.safetensors.index.json");
}

void count(Inspection& result, const TensorSpec& spec) {
  const int64_t parameters = spec.parameters(), bytes = spec.bytes();
  result.by_kind[spec.kind].add(parameters, bytes);
  result.bytes_by_dtype[spec.dtype] += bytes;
  if (spec.kind == TensorKind::kNextN) return;
  result.total.add(parameters, bytes);
  const RouterConfig& router = result.config.moe.router;
  const double share = spec.kind == TensorKind::kRoutedExpert
                           ? static_cast<double>(router.top_k) / static_cast<double>(router.num_experts)
                           : 1.0;
  result.active_parameters += share * static_cast<double>(parameters);
}

void count_unknown(Inspection& result, const TensorInfo& info) {
  const int64_t elements = num_elements(info.shape), bytes = elements * static_cast<int64_t>(dtype_bytes(info.dtype));
  result.other.add(elements, bytes);
  result.bytes_by_dtype[info.dtype] += bytes;
}

Inspection inspect(const std::filesystem::path& model_dir) {
  Inspection result{.config = load_model_config(model_dir)};
  std::vector<TensorSpec> specs = checkpoint_tensors(result.config);
  result.has_weights = has_files(model_dir);
  if (!result.has_weights) {
    for (const TensorSpec& spec : specs) count(result, spec);
    return result;
  }
  const auto source = open_checkpoint(model_dir);
  try {
    check_tensors(*source, result.config);
  } catch (const Error& e) {
    result.misfit = e.what();
  }
  std::unordered_map<std::string_view, TensorSpec*> by_name;
  for (TensorSpec& spec : specs) by_name.emplace(spec.name, &spec);
  for (const std::string& name : source->names()) {
    const TensorInfo info = source->info(name);
    const auto it = by_name.find(name);
    if (it == by_name.end()) {
      count_unknown(result, info);
      continue;
    }
    it->second->dtype = info.dtype;  // as it is stored, not as the configuration would have it
    it->second->shape = info.shape;
    count(result, *it->second);
  }
  return result;
}

// "671.03 B", "12.40 M", "320"; with a unit "44.05 MB", where G stands for 10^9 instead.
std::string amount_text(double n, std::string_view unit) {
  constexpr std::string_view kPrefixes[] = {"", "k", "M", "G", "T"};
  size_t prefix = 0;
  while (std::abs(n) >= 999.995 && prefix + 1 < std::size(kPrefixes)) n /= 1000, ++prefix;
  const std::string_view name = unit.empty() && prefix == 3 ? "B" : kPrefixes[prefix];
  const std::string suffix = std::string(name) + std::string(unit);
  return fmt::format("{:.{}f}{}{}", n, prefix == 0 ? 0 : 2, suffix.empty() ? "" : " ", suffix);
}
std::string bytes_text(int64_t bytes) { return amount_text(static_cast<double>(bytes), "B"); }

std::string attention_text(const AttentionConfig& a) {
  if (a.kind == AttentionKind::kMla)
    return fmt::format("latent attention, {} heads, latent of {} + {} values", a.num_heads, a.kv_lora_rank,
                       a.qk_rope_head_dim);
  return fmt::format("attention with {} query and {} key-value heads of {}", a.num_heads, a.num_kv_heads, a.head_dim);
}

int64_t num_sparse_layers(const ModelConfig& config) {
  return std::count_if(config.layers.begin(), config.layers.end(), [](const LayerConfig& l) { return l.is_sparse; });
}

std::string layers_text(const ModelConfig& config) {
  const int64_t sparse = num_sparse_layers(config);
  const RouterConfig& router = config.moe.router;
  std::string text = fmt::format("{} layers of hidden size {}", config.num_layers, config.hidden_size);
  if (sparse > 0)
    text += fmt::format(
        ", {} of them sparse: {} experts of width {}, {} for each token{}", sparse, router.num_experts,
        config.moe.expert_intermediate, router.top_k,
        config.moe.shared_intermediate ? fmt::format(", shared width {}", config.moe.shared_intermediate) : "");
  return text;
}

std::string_view quant_name(WeightQuant quant) {
  switch (quant) {
    case WeightQuant::kFp8Block: return "fp8 in 128x128 blocks";
    case WeightQuant::kMxfp4: return "mxfp4";
    case WeightQuant::kNone: break;
  }
  return "none";
}

}  // namespace

std::string inspect_text(const std::filesystem::path& model_dir) {
  const Inspection in = inspect(model_dir);
  const ModelConfig& config = in.config;
  std::string text = fmt::format("{} ({}): {} parameters", config.architecture, config.model_type,
                                 amount_text(static_cast<double>(in.total.parameters), ""));
  if (config.moe.router.num_experts > 0)
    text += fmt::format(", {} of them for each token", amount_text(in.active_parameters, ""));
  text +=
      fmt::format("\n{}\n{}\ncontext {} tokens, vocabulary {}, quantisation: {}\n", layers_text(config),
                  attention_text(config.attention), config.max_position, config.vocab_size, quant_name(config.quant));
  text +=
      in.has_weights ? "\nweights as stored\n" : "\nno weights in this folder: sizes as the configuration has them\n";
  const auto row = [&](std::string_view name, const Amount& a) {
    text += fmt::format("  {:<18} {:>7} tensors  {:>12} parameters  {:>12}\n", name, a.tensors,
                        amount_text(static_cast<double>(a.parameters), ""), bytes_text(a.bytes));
  };
  for (const auto& [kind, amount] : in.by_kind) row(tensor_kind_name(kind), amount);
  if (in.other.tensors > 0) row("not of this model", in.other);
  row("total", in.total);
  if (in.by_kind.count(TensorKind::kNextN))
    text += "  (the total leaves the next-token layers out: they are not executed)\n";
  text += "\nbytes by element type\n";
  for (const auto& [dtype, bytes] : in.bytes_by_dtype)
    text += fmt::format("  {:<18} {:>12}\n", dtype_name(dtype), bytes_text(bytes));
  text += fmt::format("\nKV cache of one token: {} values in each layer, {} bytes in bf16, {} in f32\n",
                      kv_values_per_token_layer(config), kv_bytes_per_token(config, DType::kBF16),
                      kv_bytes_per_token(config, DType::kF32));
  if (config.moe.router.num_experts > 0)
    text += fmt::format("one routed expert: {} bytes ({})\n", expert_bytes(config), bytes_text(expert_bytes(config)));
  if (in.misfit) text += fmt::format("\nthe weights do not fit config.json: {}\n", *in.misfit);
  return text;
}

std::string inspect_json(const std::filesystem::path& model_dir) {
  const Inspection in = inspect(model_dir);
  const ModelConfig& config = in.config;
  const auto amount = [](const Amount& a) {
    return json::object{{"tensors", a.tensors}, {"parameters", a.parameters}, {"bytes", a.bytes}};
  };
  json::object by_kind, by_dtype;
  for (const auto& [kind, a] : in.by_kind) by_kind[tensor_kind_name(kind)] = amount(a);
  for (const auto& [dtype, bytes] : in.bytes_by_dtype) by_dtype[dtype_name(dtype)] = bytes;
  json::object root{
      {"architecture", config.architecture},
      {"model_type", config.model_type},
      {"num_layers", config.num_layers},
      {"num_sparse_layers", num_sparse_layers(config)},
      {"hidden_size", config.hidden_size},
      {"vocab_size", config.vocab_size},
      {"max_position", config.max_position},
      {"num_experts", config.moe.router.num_experts},
      {"experts_per_token", config.moe.router.top_k},
      {"quantization", quant_name(config.quant)},
      {"has_weights", in.has_weights},
      {"total", amount(in.total)},
      {"active_parameters", static_cast<int64_t>(in.active_parameters)},
      {"by_kind", by_kind},
      {"not_of_this_model", amount(in.other)},
      {"bytes_by_dtype", by_dtype},
      {"kv_values_per_token_layer", kv_values_per_token_layer(config)},
      {"kv_bytes_per_token", json::object{{"bf16", kv_bytes_per_token(config, DType::kBF16)},
                                          {"f32", kv_bytes_per_token(config, DType::kF32)}}},
      {"expert_bytes", expert_bytes(config)},
  };
  root["misfit"] = in.misfit ? json::value(*in.misfit) : json::value();
  return json::serialize(root);
}

}  // namespace cadre
