#include "verify/reference_set.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace cadre {
namespace {

constexpr std::string_view kPrompt = "prompt.";

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The N of "model.layers.N.mlp.gate".
int64_t layer_of(const std::string& module, const std::string& what) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = module.find(kLayers);
  const std::string number = at == std::string::npos ? "" : module.substr(at + kLayers.size(), module.find('.', at + kLayers.size()) - at - kLayers.size());
  if (!is_number(number)) throw invalid_input("{}: expected the name of a module of a layer, such as model.layers.3.mlp.gate, found {}; make the reference again", what, cadre::quoted(module));
  return std::stoll(number);
}

int64_t element_count(const SafetensorsEntry& e) {
  int64_t n = 1;
  for (const int64_t dim : e.shape) n *= dim;
  return n;
}

}  // namespace

ReferenceSet::ReferenceSet(const std::filesystem::path& dir) : file_(dir / "reference.safetensors") {
  for (SafetensorsEntry& e : read_safetensors_header(file_.bytes(), file_.path().string())) {
    if (e.name.starts_with(kPrompt) && is_number(e.name.substr(kPrompt.size()))) prompts_.push_back(e.name.substr(kPrompt.size()));
    entries_.emplace(e.name, std::move(e));
  }
  if (prompts_.empty()) throw invalid_input("{}: expected tensors prompt.0, logits.0, ..., found no prompt; see tests/reference/README.md for the form", file_.path().string());
  std::sort(prompts_.begin(), prompts_.end(), [](const std::string& a, const std::string& b) { return std::stoi(a) < std::stoi(b); });
}

const SafetensorsEntry& ReferenceSet::entry(const std::string& name, DType dtype) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw invalid_input("{}: expected a tensor {}, found none; make the reference again", file_.path().string(), name);
  if (found->second.dtype != dtype)
    throw invalid_input("{}: expected {} of type {}, found {}; make the reference again", file_.path().string(), name, dtype_name(dtype), dtype_name(found->second.dtype));
  return found->second;
}

template <typename T>
std::vector<T> ReferenceSet::values(const SafetensorsEntry& e) const {
  std::vector<T> out((e.end - e.begin) / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), file_.bytes().data() + e.begin, e.end - e.begin);
  return out;
}

int64_t ReferenceSet::num_tokens(const std::string& prompt) const {
  const auto greedy = entries_.find("greedy." + prompt);
  return element_count(entry("prompt." + prompt, DType::kI32)) + (greedy == entries_.end() ? 0 : element_count(greedy->second));
}

ReferencePrompt ReferenceSet::read(const std::string& prompt, int64_t vocab_size) const {
  ReferencePrompt out;
  const auto refuse = [&](const std::string& tensor, const std::string& expected, int64_t found) {
    return invalid_input("{}: expected {} of {}, found {}; the reference and the model do not belong together", file_.path().string(), tensor, expected, found);
  };
  out.name = prompt;
  out.tokens = values<int32_t>(entry("prompt." + prompt, DType::kI32));
  const int64_t rows = static_cast<int64_t>(out.tokens.size());
  if (rows == 0) throw refuse("prompt." + prompt, "one token or more", rows);
  out.logits = values<float>(entry("logits." + prompt, DType::kF32));
  if (static_cast<int64_t>(out.logits.size()) != rows * vocab_size)
    throw refuse("logits." + prompt, fmt::format("{} x {} values", rows, vocab_size), static_cast<int64_t>(out.logits.size()));
  if (entries_.count("greedy." + prompt)) out.greedy = values<int32_t>(entry("greedy." + prompt, DType::kI32));
  for (const auto* tokens : {&out.tokens, &out.greedy})
    for (const int32_t token : *tokens)
      if (token < 0 || token >= vocab_size) throw refuse("tokens", fmt::format("0 to {}", vocab_size - 1), token);
  const std::string start = "router." + prompt + ".";
  for (const auto& [name, e] : entries_) {
    if (!name.starts_with(start) || !name.ends_with(".2")) continue;
    const std::string stem = name.substr(0, name.size() - 1);
    ReferenceRoutes routes;
    routes.layer = layer_of(name.substr(start.size()), file_.path().string());
    routes.ids = values<int32_t>(entry(name, DType::kI32));
    routes.weights = values<float>(entry(stem + "1", DType::kF32));
    if (entries_.count(stem + "0")) routes.scores = values<float>(entry(stem + "0", DType::kF32));
    routes.top_k = static_cast<int64_t>(routes.ids.size()) / rows;
    routes.num_experts = static_cast<int64_t>(routes.scores.size()) / rows;
    if (routes.top_k < 1 || routes.top_k * rows != static_cast<int64_t>(routes.ids.size())) throw refuse(name, fmt::format("{} rows", rows), static_cast<int64_t>(routes.ids.size()));
    if (routes.weights.size() != routes.ids.size()) throw refuse(stem + "1", fmt::format("{} weights", routes.ids.size()), static_cast<int64_t>(routes.weights.size()));
    out.routes.push_back(std::move(routes));
  }
  std::sort(out.routes.begin(), out.routes.end(), [](const auto& a, const auto& b) { return a.layer < b.layer; });
  return out;
}

}  // namespace cadre
