// What sets the served families apart before their keys are read: names, and the defaults of their published
// configuration classes. Internal to config/.
#pragma once

#include <span>
#include <string_view>

#include "base/json.h"
#include "config/model_config.h"

namespace cadre {

struct FamilyTraits {
  Family family;
  std::string_view model_type, architecture;
  double rms_norm_eps;
  int64_t max_position;
  double rope_theta;
  int64_t num_kv_heads;  // 0: as many as query heads
  int64_t head_dim;      // 0: hidden_size / num_attention_heads
  bool norm_topk_prob;
  // Keys, besides those of every family, that the parser reads and answers for; separated by spaces.
  std::string_view keys;
};

std::span<const FamilyTraits> all_families();
const FamilyTraits& family_traits(Family family);

// By model_type and architectures, which must agree. Throws Error with the list of served architectures.
const FamilyTraits& identify_family(const JsonObject& config);

// Throws Error for a key that is neither read, nor off, nor harmless (model_config.h states the rule).
void refuse_unserved_keys(const JsonObject& config, const FamilyTraits& traits);

}  // namespace cadre
