// Any bytes are a trace that can be replayed, or an Error.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "replay/cluster.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cadre;
  try {
    const replay::Trace trace =
        replay::parse_trace({reinterpret_cast<const char*>(data), size}, "trace", {.limit = 50});
    for (const replay::TraceRequest& request : trace.requests)
      if (request.arrival_us < 0 || request.prompt_tokens < 1 || request.output_tokens < 1) __builtin_trap();
    const auto cost = [](std::span<const replay::StepShape>, double) { return 1000.0; };
    const replay::ClusterResult result =
        replay::replay_trace(trace, {.ranks = 2,
                                     .scheduler = {.max_num_seqs = 4, .max_num_batched_tokens = 64},
                                     .num_kv_blocks = 16,
                                     .max_model_len = 200,
                                     .has_prefix_cache = true,
                                     .queue = {},
                                     .cost = cost,
                                     .balance = {}});
    if (result.outcomes.size() != trace.requests.size()) __builtin_trap();
  } catch (const Error&) {
  }
  return 0;
}
