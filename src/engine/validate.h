// Whether an engine can ever serve a request: every check that comes before admission.
#pragma once

#include <cstdint>

#include "engine/request.h"

namespace cadre {

// What an engine can do at most.
struct ServingLimits {
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;    // tokens of prompt and answer together
  int64_t num_kv_blocks = 0;

  int64_t kv_tokens() const;
  // Tokens a sequence may grow to: the last one is never computed, so it needs no place in the cache.
  int64_t max_sequence_len() const;
};

// Throws Error, naming the request field at fault: kContextLength when prompt and asked tokens do not fit the context or
// the whole KV cache, else kInvalidInput.
void validate_request(const GenerationRequest& request, const ServingLimits& limits);

// Tokens the request may generate per choice: max_tokens, or what the limits leave. Of a valid request.
int64_t max_new_tokens(const GenerationRequest& request, const ServingLimits& limits);

}  // namespace cadre
