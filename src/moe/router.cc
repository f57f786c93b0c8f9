#include "moe/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace cadre {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// The count largest of values, best first, ties to the lower index; insertion into a short sorted list.
void top_indices(std::span<const float> values, std::span<int32_t> out) {
  const size_t count = out.size();
  size_t filled = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (filled == count && !(values[i] > values[static_cast<size_t>(out[count - 1])])) continue;
    size_t at = filled < count ? filled++ : count - 1;
    for (; at > 0 && values[i] > values[static_cast<size_t>(out[at - 1])]; --at) out[at] = out[at - 1];
    out[at] = static_cast<int32_t>(i);
  }
}

void softmax(std::span<const float> in, std::span<float> out) {
  const float top = *std::max_element(in.begin(), in.end());
  float sum = 0;
  for (size_t i = 0; i < in.size(); ++i) sum += out[i] = std::exp(in[i] - top);
  for (float& v : out) v /= sum;
}

// -inf for every expert outside the best topk_groups groups.
void mask_groups(const RouterConfig& c, std::span<float> choice, std::span<float> group_scores) {
  const size_t groups = static_cast<size_t>(c.num_groups), size = choice.size() / groups;
  for (size_t g = 0; g < groups; ++g) {
    float best = kNegInf, second = kNegInf;
    for (size_t i = g * size; i < (g + 1) * size; ++i) {
      if (choice[i] > best) second = best, best = choice[i];
      else second = std::max(second, choice[i]);
    }
    group_scores[g] = c.group_score == GroupScore::kMax || size == 1 ? best : best + second;
  }
  for (size_t g = 0; g < groups; ++g) {
    // Kept when fewer than topk_groups groups are better, or equal with a lower index.
    int64_t better = 0;
    for (size_t other = 0; other < groups; ++other)
      better += group_scores[other] > group_scores[g] || (group_scores[other] == group_scores[g] && other < g);
    if (better >= c.topk_groups) std::fill_n(choice.begin() + static_cast<std::ptrdiff_t>(g * size), size, kNegInf);
  }
}

}  // namespace

bool route_token(const RouterConfig& c, std::span<const float> logits, std::span<const float> correction_bias,
                 std::span<float> scratch, std::span<int32_t> ids, std::span<float> weights) {
  const size_t num_experts = logits.size();
  CADRE_CHECK(scratch.size() >= 3 * num_experts && ids.size() == weights.size() && ids.size() <= num_experts, "{} experts", num_experts);
  const auto scores = scratch.first(num_experts), choice = scratch.subspan(num_experts, num_experts);
  switch (c.score) {
    case RouterScore::kSoftmax: softmax(logits, scores); break;
    case RouterScore::kSigmoid:
      for (size_t i = 0; i < num_experts; ++i) scores[i] = 1.0f / (1.0f + std::exp(-logits[i]));
      break;
    case RouterScore::kSoftmaxOfTopK: std::copy(logits.begin(), logits.end(), scores.begin()); break;
  }
  std::copy(scores.begin(), scores.end(), choice.begin());
  for (size_t i = 0; i < correction_bias.size(); ++i) choice[i] += correction_bias[i];
  if (std::any_of(choice.begin(), choice.end(), [](float v) { return std::isnan(v); })) {
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i), weights[i] = 0;
    return false;
  }
  if (c.group_score != GroupScore::kNone && c.num_groups > 1) mask_groups(c, choice, scratch.subspan(2 * num_experts));
  top_indices(choice, ids);
  for (size_t i = 0; i < ids.size(); ++i) weights[i] = scores[static_cast<size_t>(ids[i])];
  if (c.score == RouterScore::kSoftmaxOfTopK) softmax(weights, weights);
  float factor = static_cast<float>(c.scaling_factor);
  if (c.renormalize) {
    float sum = 0;
    for (const float w : weights) sum += w;
    factor /= c.score == RouterScore::kSigmoid ? sum + 1e-20f : sum;
  }
  for (float& w : weights) w *= factor;
  return true;
}

}  // namespace cadre
