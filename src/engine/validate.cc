#include "engine/validate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "config/bytes.h"

namespace cadre {
namespace {

constexpr int32_t kMaxChoices = 128;
constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;

void expect_number(std::string_view name, double value, double min, double max) {
  if (value >= min && value <= max) return;
  const std::string range = std::isfinite(max) ? fmt::format("a number from {} to {}", min, max)
                                               : fmt::format("a finite number, {} or more", min);
  throw Error(ErrorKind::kInvalidInput, fmt::format("{}: expected {}, found {}; change it or leave it out", name, range, value),
              std::string(name));
}

void expect_integer(std::string_view name, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return;
  const std::string range = max == std::numeric_limits<int64_t>::max() ? fmt::format("an integer, {} or more", min)
                                                                       : fmt::format("an integer from {} to {}", min, max);
  throw Error(ErrorKind::kInvalidInput, fmt::format("{}: expected {}, found {}; change it or leave it out", name, range, value),
              std::string(name));
}

void expect_token_id(std::string_view name, int64_t id, int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return;
  throw Error(ErrorKind::kInvalidInput,
              fmt::format("{}: expected token ids from 0 to {}, found {}; use ids of this model's vocabulary", name,
                          vocab_size - 1, id),
              std::string(name));
}

void validate_sampling(const SamplingParams& p, const ServingLimits& limits) {
  const double max_double = std::numeric_limits<double>::max();
  const double tiny = std::numeric_limits<float>::min();
  expect_number("temperature", p.temperature, 0, max_double);
  expect_integer("top_k", p.top_k, 0, std::numeric_limits<int64_t>::max());
  expect_number("top_p", p.top_p, 0, 1);
  expect_number("min_p", p.min_p, 0, 1);
  expect_number("repetition_penalty", p.repetition_penalty, tiny, 1 / tiny);
  expect_number("frequency_penalty", p.frequency_penalty, -2, 2);
  expect_number("presence_penalty", p.presence_penalty, -2, 2);
  for (const auto& [id, bias] : p.logit_bias) {
    expect_token_id("logit_bias", id, limits.vocab_size);
    expect_number("logit_bias", double{bias}, -100, 100);
  }
  if (p.max_tokens) expect_integer("max_tokens", *p.max_tokens, 0, std::numeric_limits<int64_t>::max());
  expect_integer("min_tokens", p.min_tokens, 0, p.max_tokens.value_or(std::numeric_limits<int64_t>::max()));
  if (p.stop.size() > kMaxStops)
    throw Error(ErrorKind::kInvalidInput,
                fmt::format("stop: expected at most {} strings, found {}; leave some out", kMaxStops, p.stop.size()), "stop");
  for (const std::string& stop : p.stop) {
    if (!utf8::is_valid(stop))
      throw Error(ErrorKind::kInvalidInput, fmt::format("stop: expected text in UTF-8, found {}; encode it as UTF-8", cadre::quoted(stop)), "stop");
    if (stop.empty() || stop.size() > kMaxStopBytes)
      throw Error(ErrorKind::kInvalidInput,
                  fmt::format("stop: expected strings of 1 to {} bytes, found one of {}; change it or leave it out",
                              kMaxStopBytes, stop.size()),
                  "stop");
  }
  for (const int32_t id : p.stop_token_ids) expect_token_id("stop_token_ids", id, limits.vocab_size);
  expect_integer("logprobs", p.num_logprobs, -1, limits.vocab_size);
  expect_integer("prompt_logprobs", p.num_prompt_logprobs, -1, limits.vocab_size);
}

void validate_length(const GenerationRequest& request, const ServingLimits& limits) {
  const auto num_prompt = static_cast<int64_t>(request.prompt.size());
  const std::optional<int64_t> asked = request.sampling.max_tokens;
  const int64_t wanted = asked.value_or(1);  // an absent maximum adapts to what is left, but one token has to fit
  const std::string answer = asked ? fmt::format("{} tokens of answer asked for (max_tokens)", wanted) : "at least 1 token of answer";
  if (num_prompt > limits.max_model_len || wanted > limits.max_model_len - num_prompt)
    throw Error(ErrorKind::kContextLength,
                fmt::format("This model's context is {} tokens, but the prompt has {} tokens and {}; shorten the prompt or "
                            "ask for fewer tokens",
                            limits.max_model_len, num_prompt, answer),
                asked && num_prompt <= limits.max_model_len ? "max_tokens" : "prompt");
  if (num_prompt > limits.kv_tokens() || wanted > limits.kv_tokens() + 1 - num_prompt)
    throw Error(ErrorKind::kContextLength,
                fmt::format("The KV cache of this server holds {} tokens ({} blocks of {}), but the prompt has {} tokens and {}; "
                            "shorten the prompt, ask for fewer tokens, or start the server with more KV blocks",
                            limits.kv_tokens(), limits.num_kv_blocks, kKvBlockTokens, num_prompt, answer),
                asked && num_prompt <= limits.kv_tokens() ? "max_tokens" : "prompt");
  const int64_t room = limits.max_sequence_len() - num_prompt;
  if (request.sampling.min_tokens > room)
    throw Error(ErrorKind::kContextLength,
                fmt::format("min_tokens: expected at most the {} tokens that the context of {} leaves after a prompt of {}, found "
                            "{}; ask for fewer",
                            room, limits.max_model_len, num_prompt, request.sampling.min_tokens),
                "min_tokens");
}

}  // namespace

int64_t ServingLimits::kv_tokens() const { return num_kv_blocks * kKvBlockTokens; }

int64_t ServingLimits::max_sequence_len() const { return std::min(max_model_len, kv_tokens() + 1); }

void validate_request(const GenerationRequest& request, const ServingLimits& limits) {
  if (request.prompt.empty())
    throw Error(ErrorKind::kInvalidInput, "prompt: expected at least one token, found none; send some text", "prompt");
  for (const int32_t id : request.prompt) expect_token_id("prompt", id, limits.vocab_size);
  expect_integer("n", request.n, 1, kMaxChoices);
  validate_sampling(request.sampling, limits);
  validate_length(request, limits);
}

int64_t max_new_tokens(const GenerationRequest& request, const ServingLimits& limits) {
  const auto num_prompt = static_cast<int64_t>(request.prompt.size());
  return std::min(request.sampling.max_tokens.value_or(std::numeric_limits<int64_t>::max()),
                  limits.max_sequence_len() - num_prompt);
}

}  // namespace cadre
