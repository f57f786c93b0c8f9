// The normalizer of a tokenizer.json: rewrites text before it is split. Immutable.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/pattern.h"

namespace cadre {

class Normalizer {
 public:
  // Leaves text as it is.
  Normalizer() = default;
  // Reads the "normalizer" object. Throws Error for types that are not served.
  explicit Normalizer(const JsonObject& normalizer);

  bool is_identity() const { return steps_.empty(); }
  std::string apply(std::string_view text, MatchScratch& scratch) const;

 private:
  using Step = std::function<void(std::string& text, MatchScratch& scratch)>;
  void read(const JsonObject& normalizer);
  static Step replace_step(const JsonObject& normalizer);

  std::vector<Step> steps_;
};

}  // namespace cadre
