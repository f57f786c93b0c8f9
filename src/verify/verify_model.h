// A checkpoint held against what another implementation answered for it: logits at every position, router choices,
// greedy tokens; and against itself: no bit may depend on how a prompt was cut or what shared its batch.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "verify/model_runner.h"
#include "verify/reference_set.h"

namespace cadre {

struct VerifyBounds {
  double logit = 2e-4;         // absolute, at every position
  // Root mean square error over that of the reference's logits about their mean at each position.
  double relative_logit = std::numeric_limits<double>::infinity();
  bool judges_choices = true;  // greedy tokens and routes; else they are reported only
  double greedy_margin = 1e-3; // a greedy choice closer than this to the runner-up is not decided
  double route_weight = 1e-4;  // absolute, of each chosen expert
  double route_tie = 1e-6;     // scores closer than this may be chosen either way
};

// For a model that computes with rounded activations (DecoderOptions::activation_dtype): references are made with activations
// at full width, so its errors are no mistakes. Logits must be near the reference's, and the forms must still be equal.
VerifyBounds rounded_activation_bounds();

struct PromptReport {
  std::string name;
  int64_t num_tokens = 0;
  double max_logit_error = 0;  // infinity when a logit is not finite
  int64_t max_logit_error_position = 0;
  double relative_logit_error = 0;
  // First greedy token that differs though it was decided; nullopt: none.
  std::optional<int64_t> first_greedy_difference;
  int64_t num_greedy = 0;           // tokens of the reference's continuation
  int64_t num_greedy_compared = 0;  // up to a choice that was not decided
  int64_t num_routes = 0;           // rows x sparse layers compared
  int64_t num_route_differences = 0;
  // Ways to give the prompt (chunk sizes, "batch") whose logits are not those of the whole prompt to the bit.
  std::vector<std::string> unequal_forms;

  bool passed(const VerifyBounds& bounds) const;
};

struct ModelReport {
  VerifyBounds bounds;
  std::vector<PromptReport> prompts;
  bool passed() const;
};

// Runs every prompt of the set whole, in chunks of 1, 3 and 16, and in one batch with the others (in an order drawn
// from seed), then its greedy continuation. progress(done, total prompts) is called after each prompt when given.
ModelReport verify_model(ModelRunner& runner, const ReferenceSet& reference, const VerifyBounds& bounds, uint64_t seed,
                         const std::function<void(int64_t, int64_t)>& progress = {});

// Blocks of 16 tokens that verify_model() needs at one time.
int64_t verify_blocks(const ReferenceSet& reference);

std::string report_text(const ModelReport& report);
json::object report_json(const ModelReport& report);

}  // namespace cadre
