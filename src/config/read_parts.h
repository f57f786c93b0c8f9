// The parts of parse_model_config that have files of their own. Internal to config/.
#pragma once

#include "base/json.h"
#include "config/family.h"
#include "config/model_config.h"

namespace cadre {

// What the keys on rotary embedding say for a head of which head_dim values may rotate (MLA: the rope part).
struct RopeReading {
  RopeConfig rope;
  double softmax_factor = 1.0;  // multiplies the softmax scale: the YaRN mscale_all_dim term squared (DeepSeek)
};
RopeReading read_rope(const JsonObject& config, const FamilyTraits& traits, int64_t head_dim, int64_t max_position);

// Fills attention except its rope.
void read_attention(const JsonObject& config, const FamilyTraits& traits, ModelConfig& model);

void read_moe(const JsonObject& config, const FamilyTraits& traits, ModelConfig& model);

// Which layers are sparse and which slide; needs num_layers and, for MoE families, moe.
void read_layers(const JsonObject& config, const FamilyTraits& traits, ModelConfig& model);

// Fills quant and unquantized_modules.
void read_quantization(const JsonObject& config, ModelConfig& model);

// An integer that may go by several names; all that are present must agree. nullopt when none is.
std::optional<int64_t> aliased_integer(const JsonObject& config, std::initializer_list<std::string_view> keys,
                                       int64_t min, int64_t max);

// Throws Error unless key is absent or holds the only value that is served.
void expect_boolean(const JsonObject& config, std::string_view key, bool served, std::string_view reason);
void expect_string(const JsonObject& config, std::string_view key, std::initializer_list<std::string_view> served,
                   std::string_view reason);

// Bounds on single sizes: wide enough for any model, narrow enough that products of a few of them fit 63 bits.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxHeads = int64_t{1} << 14;
inline constexpr int64_t kMaxExperts = int64_t{1} << 14;
inline constexpr int64_t kMaxLayers = int64_t{1} << 12;
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxPositions = int64_t{1} << 28;

}  // namespace cadre
