// OpenAI request bodies read into what the engine is asked for. Everything is validated here or by Controller::submit,
// before any header of an answer leaves. null counts as absent; unknown fields are ignored; fields that are known and
// not served are refused, never ignored.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "dp/routing.h"
#include "engine/request.h"
#include "server/expert_admin.h"
#include "tokenizer/tokenizer.h"

namespace cadre {

enum class ApiKind { kChat, kCompletion };

// What a request's absent fields mean: the model's own generation_config.json, or OpenAI's defaults.
struct SamplingDefaults {
  double temperature = 1.0, top_p = 1.0, min_p = 0.0, repetition_penalty = 1.0;
  int32_t top_k = 0;
};

// The served model as the API needs it. Immutable while requests are read.
struct ServedModel {
  std::vector<std::string> names;  // the first is what the API calls the model, the others are accepted too
  std::shared_ptr<const Tokenizer> tokenizer;
  // Renders chat messages with the given variables; throws Error. Empty: the model has no chat template.
  std::function<std::string(const json::object& variables)> render_chat;
  std::string chat_template;  // its source, to see which variables it knows
  int64_t vocab_size = 0;     // of the model: ids in [0, vocab_size) have a row
  int64_t max_model_len = 0;
  int64_t created_unix_s = 0;
  SamplingDefaults defaults;
  json::object layout;  // of its ranks, as GET /server_info shows it
  std::shared_ptr<ExpertAdmin> experts;  // null: a dense model
};

struct ApiPrompt {
  std::string text;          // as echoed
  std::vector<int32_t> ids;  // at least one
};

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model;  // as the request named it
  std::vector<ApiPrompt> prompts;
  int32_t n = 1;  // choices per prompt
  SamplingParams sampling;
  bool stream = false;
  bool include_usage = false;     // stream_options
  bool continuous_usage = false;  // stream_options.continuous_usage_stats: usage in every chunk
  bool echo = false;
  bool return_logprobs = false;  // sampling.num_logprobs alternatives each
  RoutingWish routing;           // not of the parsers here: it takes headers too (routing_fields.h)

  int32_t num_choices() const { return static_cast<int32_t>(prompts.size()) * n; }
};

// Each throws Error (with the field in param()).
ApiRequest parse_chat_request(const json::value& body, const ServedModel& model);
ApiRequest parse_completion_request(const json::value& body, const ServedModel& model);

// /tokenize: {prompt} or {messages}, with model, add_special_tokens, return_token_strs optional.
struct TokenizeRequest {
  std::vector<int32_t> ids;
  bool return_token_strs = false;
};
TokenizeRequest parse_tokenize_request(const json::value& body, const ServedModel& model);

// /detokenize: {tokens}. Returns checked ids.
std::vector<int32_t> parse_detokenize_request(const json::value& body, const ServedModel& model);

}  // namespace cadre
