// What a generation is asked for and what comes back: the types between the server, the controller and the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cadre {

struct SamplingParams {
  double temperature = 1.0;          // 0: greedy
  int32_t top_k = 0;                 // 0: all
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;   // prompt and output tokens (Keskar et al. 2019, as transformers applies it)
  double frequency_penalty = 0.0;    // output tokens, per occurrence (OpenAI)
  double presence_penalty = 0.0;     // output tokens, once
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::optional<uint64_t> seed;      // absent: drawn per request
  std::optional<int64_t> max_tokens; // absent: up to the context limit; 0 with echo only scores the prompt
  int64_t min_tokens = 0;            // no end-of-sequence and no stop string or id before
  bool ignore_eos = false;
  std::vector<std::string> stop;     // matched text is not delivered, unless include_stop
  std::vector<int32_t> stop_token_ids;
  bool include_stop = false;         // include_stop_str_in_output
  bool skip_special_tokens = true;
  int32_t num_logprobs = -1;         // -1: none; n: of the chosen token and of the n best (log-softmax of the raw logits)
  int32_t num_prompt_logprobs = -1;  // same for the prompt's tokens (the first has none)
};

struct GenerationRequest {
  std::string request_id;             // for logs
  std::vector<int32_t> prompt;        // at least one id, all in [0, vocab_size)
  SamplingParams sampling;
  int32_t n = 1;                      // choices; they share prompt and parameters and differ by stream of the seed
  // Where it goes (dp/routing.h); the engine that has it does not ask.
  std::optional<int64_t> data_parallel_rank;  // to this rank and no other
  std::optional<int64_t> bootstrap_room;      // what follow_bootstrap_room follows
};

enum class FinishReason { kStop, kLength, kCancelled, kError };

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // finite; -9999.0 for an impossible token
};

struct OutputToken {
  int32_t token = 0;
  float logprob = 0;                   // when logprobs were asked for
  std::vector<TokenLogprob> top;       // best first, as many as asked
  // Some of its bytes are in the delivered text. False for the ending id, for tokens inside the stop text that is not
  // delivered, and for tokens without text (special tokens that are skipped). The pieces of the others, joined, are the
  // text, but for characters that never completed and for a last piece that the stop text cut.
  bool in_text = true;
};

// One piece of one choice. Concatenating text (and tokens) over the deltas of a choice gives the whole answer: a
// non-streaming answer is exactly that. text may lag behind tokens (held-back stop prefixes, cut characters) and never
// contains a broken character; a token comes in the delta in which it was sampled or later, in order, each once.
struct Delta {
  int32_t choice_idx = 0;
  std::string text;
  std::vector<OutputToken> tokens;
  // In the first delta of choice 0, when prompt logprobs were asked for: one entry per prompt token. The first entry has
  // no meaningful logprob (0, nothing in top): no token came before it.
  std::vector<OutputToken> prompt_tokens;
  std::optional<FinishReason> finish;          // set exactly once per choice, in its last delta
  std::optional<std::string> stop_reason;      // the stop string that matched
  std::optional<int32_t> stop_token;           // the end-of-sequence or stop id that ended it
  std::string error;                           // kError: one sentence for the client
  int64_t num_prompt_tokens = 0;
  int64_t num_completion_tokens = 0;           // of this choice so far, the ending id included
  int64_t num_cached_tokens = 0;               // prompt tokens whose KV was reused
};

// Receives the deltas of one request, on the engine's thread: must not block and must not throw.
using DeltaSink = std::function<void(Delta&&)>;

}  // namespace cadre
