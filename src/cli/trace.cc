#include "cli/trace.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "verify/token_trace.h"
#include "weights/weight_source.h"

namespace cadre::cli {
namespace {

void check_prompts(const TraceFlags& trace, const ModelConfig& config) {
  for (size_t i = 0; i < trace.prompts.size(); ++i) {
    const int64_t tokens = static_cast<int64_t>(trace.prompts[i].size());
    if (tokens == 0)
      throw invalid_input(
          "--trace-token: expected prompts of at least one token, found prompt {} empty; write something", i + 1);
    if (tokens + trace.new_token + 1 > config.max_position)
      throw invalid_input(
          "--trace-token: expected prompt {} and its new tokens within the context of {}, found {} and {}; shorten it",
          i + 1, config.max_position, tokens, trace.new_token + 1);
  }
}

}  // namespace

int trace_one_token(const EngineFlags& flags, const ModelConfig& config, const Tokenizer& tokenizer, TraceFlags trace) {
  check_prompts(trace, config);
  const int64_t layer =
      traced_layer(config, trace.layer >= 0 ? std::optional(trace.layer) : std::nullopt);  // before any weight is read
  const DType kv_dtype = decoder_options(flags, {}).kv_dtype;
  const ResolvedLayout resolved = layout_to_run(flags.layout, config, kv_dtype);
  TraceRequest request{.prompts = std::move(trace.prompts),
                       .new_token = trace.new_token,
                       .layer = layer,
                       .is_fp8_dispatch = resolved.is_fp8_dispatch};
  ModelRunner runner({.config = config,
                      .open_weights = [&] { return open_weights(flags); },
                      .decoder = decoder_options(flags, resolved),
                      .layout = resolved.layout,
                      .num_blocks = trace_blocks(request),
                      .seed = 0,
                      .timeout_us = flags.step_timeout_s * 1'000'000});
  const SteadyClock clock;
  TokenTrace t = trace_token(runner, request, clock);
  t.token_text = cadre::quoted(utf8::replace_invalid(tokenizer.piece(t.token)));
  t.next_text = cadre::quoted(utf8::replace_invalid(tokenizer.piece(t.next_token)));
  if (trace.as_json)
    std::printf("%s\n", json::serialize(trace_json(t)).c_str());
  else
    std::fputs(trace_text(t).c_str(), stdout);
  return t.counts_are_as_predicted() ? kExitOk : kExitFailed;
}

}  // namespace cadre::cli
