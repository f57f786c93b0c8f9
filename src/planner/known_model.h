// What a config.json tells the planner: all of it for architectures that Cadre serves; for others what its keys say plainly, and
// what they leave open.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "config/model_config.h"
#include "planner/search.h"

namespace cadre::planner {

struct KnownModel {
  std::optional<ModelConfig> config;      // nullopt: not served
  std::vector<std::string> notes;         // what was set aside to read it
  std::optional<WeightType> weight_type;  // that a quantisation which is not served comes to
  bool tells_quantization = false;
  // Of models that are not served.
  std::string name, architecture, why;                 // why: what the parser says
  std::vector<std::pair<std::string, int64_t>> sizes;  // "layers", "hidden size", ...
  int64_t kv_values_per_token_layer = 0;               // 0: not known
  int64_t expert_parameters = 0;                       // of one gated expert; 0: not known
  std::vector<std::string> unknown;                    // sentences
};

// path: a config.json or its folder. Throws Error for a file that cannot be read or whose sizes are impossible. A quantisation that
// Cadre does not load does not stop a plan: it is noted, and weights count as
// the type it comes to.
KnownModel parse_known_model(std::string text, const std::string& file_name);
KnownModel read_known_model(const std::filesystem::path& path);

std::string known_text(const KnownModel& known, const PlanRequest& request);
json::object known_json(const KnownModel& known);

}  // namespace cadre::planner
