// What another implementation answered for a checkpoint: the reference.safetensors beside it. tests/reference/README.md
// tells the form; tools/make_reference.py writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "weights/safetensors.h"

namespace cadre {

// A sparse layer's choices for every position of a prompt.
struct ReferenceRoutes {
  int64_t layer = 0;
  int64_t num_experts = 0, top_k = 0;
  std::vector<float> scores;   // [T, num_experts] as the router module returned them
  std::vector<float> weights;  // [T, top_k]
  std::vector<int32_t> ids;    // [T, top_k]
};

struct ReferencePrompt {
  std::string name;               // "0", "1", ...
  std::vector<int32_t> tokens;    // [T], at least one
  std::vector<float> logits;      // [T, vocab_size]
  std::vector<int32_t> greedy;    // continuation; may be empty
  std::vector<ReferenceRoutes> routes;
};

class ReferenceSet {
 public:
  // Opens dir/reference.safetensors. Throws Error when it is missing or not in the form.
  explicit ReferenceSet(const std::filesystem::path& dir);

  // Names of the prompts, in numeric order.
  const std::vector<std::string>& prompts() const { return prompts_; }
  // Reads one prompt. Throws Error unless its tensors agree with each other and with a vocabulary of this size.
  ReferencePrompt read(const std::string& prompt, int64_t vocab_size) const;
  // Tokens of the prompt and its greedy continuation.
  int64_t num_tokens(const std::string& prompt) const;

 private:
  const SafetensorsEntry& entry(const std::string& name, DType dtype) const;
  template <typename T>
  std::vector<T> values(const SafetensorsEntry& entry) const;

  MappedFile file_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::vector<std::string> prompts_;
};

}  // namespace cadre
