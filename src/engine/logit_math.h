// Passes over one row of logits, 8 lanes at a time with AVX2 where the machine has it. Every lane does the same IEEE
// operations on every machine, and sums are taken in one fixed order, so results are equal to the bit everywhere.
#pragma once

#include <cstdint>
#include <span>

namespace cadre {

struct RowSummary {
  float best = 0;        // largest logit
  int32_t best_id = 0;   // its lowest id
  bool is_finite = true;  // no NaN and no +infinity; -infinity is a legal logit (an impossible token)
};

// Of a non-empty row.
RowSummary summarize(std::span<const float> logits);

// exp(x) for x <= 0, within 2 units in the last place; 0 below -87.3 (and for -infinity).
float exp_nonpositive(float x);

// out[i] = exp_nonpositive((logits[i] - best) * scale); out has the row's size.
void fill_weights(std::span<const float> logits, float best, float scale, float* out);

// Sum of exp_nonpositive((logit - best) * scale) over the row; scale > 0.
double sum_weights(std::span<const float> logits, float best, float scale);

// True when some logit is above the limit: lets scans skip whole blocks.
bool any_above(std::span<const float> logits, float limit);

}  // namespace cadre
