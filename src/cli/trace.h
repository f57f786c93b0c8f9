// generate --trace-token: one token followed through one sparse layer (verify/token_trace.h), as text or JSON.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/engine_flags.h"

namespace cadre::cli {

struct TraceFlags {
  int64_t new_token = 1, layer = -1;  // -1: the first sparse one
  bool as_json = false;
  std::vector<std::vector<int32_t>> prompts;
};

// Prints the trace. Returns the exit code; throws Error.
int trace_one_token(const EngineFlags& flags, const ModelConfig& config, const Tokenizer& tokenizer, TraceFlags trace);

}  // namespace cadre::cli
