// Choosing experts for a token: softmax or sigmoid scores, group limits, correction bias, renormalisation and scaling, as
// RouterConfig says (Mixtral 2024; DeepSeek-V2 section 2.2; DeepSeek-V3 section 2.1.2; gpt-oss model card).
#pragma once

#include <cstdint>
#include <span>

#include "config/model_config.h"

namespace cadre {

// From the logits of one token [E] to its top_k experts and weights, best first; ties go to the lower expert id.
// correction_bias: [E] or empty; it takes part in choosing, never in weighing. scratch: 3 * E floats.
// Returns false, with ids 0 .. top_k - 1 and zero weights, when a score is NaN.
bool route_token(const RouterConfig& config, std::span<const float> logits, std::span<const float> correction_bias,
                 std::span<float> scratch, std::span<int32_t> ids, std::span<float> weights);

}  // namespace cadre
