#include "server/request_fields.h"

#include <charconv>
#include <limits>

#include "base/error.h"

namespace cadre {
namespace {

constexpr int64_t kMaxChoicesPerPrompt = 128;
constexpr size_t kMaxStops = 4;
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

// True when a value asks for nothing: null, false, 0, "", [], {}.
bool is_empty_value(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return true;
    case json::kind::bool_:
      return !value.get_bool();
    case json::kind::int64:
      return value.get_int64() == 0;
    case json::kind::uint64:
      return value.get_uint64() == 0;
    case json::kind::double_:
      return value.get_double() == 0;
    case json::kind::string:
      return value.get_string().empty();
    case json::kind::array:
      return value.get_array().empty();
    case json::kind::object:
      return value.get_object().empty();
  }
  return false;
}

[[noreturn]] void refuse_unserved(std::string_view key, const json::value& found) {
  refuse_unsupported(key, fmt::format("expected '{}' to be absent as it is not supported here, found {}; leave it out",
                                      key, describe(found)));
}

// Fields that would change the answer and that nothing here implements.
constexpr std::string_view kUnservedFields[] = {
    "tools", "functions", "audio", "prediction", "web_search_options", "suffix", "moderation",
    // extensions of other servers
    "use_beam_search", "early_stopping", "bad_words", "allowed_token_ids", "truncate_prompt_tokens",
    "logits_processors", "prompt_logprobs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "structured_outputs", "json_schema", "regex", "ebnf", "grammar", "chat_template", "documents", "priority",
    "return_token_ids", "prompt_embeds", "lora_path", "best_of_sequences", "return_tokens_as_token_ids"};

void refuse_unserved_choices(const JsonObject& request) {
  if (const json::value* choice = request.find("tool_choice")) {
    const bool asks_nothing = choice->is_string() && (choice->get_string() == "none" || choice->get_string() == "auto");
    if (!asks_nothing) refuse_unserved("tool_choice", *choice);
  }
  if (const json::value* call = request.find("function_call")) {
    const bool asks_nothing = call->is_string() && (call->get_string() == "none" || call->get_string() == "auto");
    if (!asks_nothing) refuse_unserved("function_call", *call);
  }
  if (const auto format = request.maybe_object("response_format")) {
    const std::string type = format->maybe_string("type").value_or("");
    if (type != "text")
      refuse_unsupported("response_format",
                         fmt::format("expected response_format.type to be 'text', the one supported here, found {}; "
                                     "ask for text",
                                     cadre::quoted(type)));
  }
  if (const json::array* modalities = request.maybe_array("modalities")) {
    for (const json::value& value : *modalities)
      if (!value.is_string() || value.get_string() != "text") refuse_unserved("modalities", value);
  }
  if (const json::value* penalty = request.find("length_penalty")) {
    if (request.maybe_number("length_penalty").value_or(1.0) != 1.0) refuse_unserved("length_penalty", *penalty);
  }
}

double read_number(const JsonObject& request, std::string_view key, double absent, double min, double max) {
  const auto value = request.maybe_number(key);
  if (!value) return absent;
  if (*value < min || *value > max)
    refuse_field(key, fmt::format("{}: expected '{}' to be a number from {} to {}, found {}; correct it",
                                  request.name(), key, min, max, *value));
  return *value;
}

std::vector<std::string> read_stops(const JsonObject& request) {
  std::vector<std::string> stops;
  const json::value* value = request.find("stop");
  if (!value) return stops;
  const auto add = [&](const json::value& item) {
    if (!item.is_string())
      refuse_field("stop",
                   fmt::format("request: expected 'stop' to be a string or an array of strings, found {}; correct it",
                               describe(item)));
    // An empty string would match everywhere; clients send it for "none".
    if (!item.get_string().empty()) stops.emplace_back(std::string_view(item.get_string()));
  };
  if (value->is_array()) {
    if (value->get_array().size() > kMaxStops)
      refuse_field("stop", fmt::format("request: expected 'stop' to hold at most {} strings, found {}; drop some",
                                       kMaxStops, value->get_array().size()));
    for (const json::value& item : value->get_array()) add(item);
  } else {
    add(*value);
  }
  return stops;
}

std::vector<std::pair<int32_t, float>> read_logit_bias(const JsonObject& request, int64_t vocab_size) {
  std::vector<std::pair<int32_t, float>> biases;
  const auto object = request.maybe_object("logit_bias");
  if (!object) return biases;
  for (const auto& [key, value] : object->raw()) {
    int64_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || id < 0 || id >= vocab_size)
      refuse_field(
          "logit_bias",
          fmt::format("request: expected the keys of 'logit_bias' to be token ids from 0 to {}, found {}; correct it",
                      vocab_size - 1, cadre::quoted(key)));
    if (value.is_null()) continue;
    biases.emplace_back(static_cast<int32_t>(id), static_cast<float>(read_number(*object, key, 0.0, -100.0, 100.0)));
  }
  return biases;
}

void read_stream_options(const JsonObject& request, ApiRequest* out) {
  out->stream = request.maybe_boolean("stream").value_or(false);
  const auto options = request.maybe_object("stream_options");
  if (!options) return;
  if (!out->stream)
    refuse_field("stream_options",
                 "request: expected 'stream_options' only with 'stream': true, found it without; leave it out");
  out->include_usage = options->maybe_boolean("include_usage").value_or(false);
  out->continuous_usage = options->maybe_boolean("continuous_usage_stats").value_or(false);
}

void read_lengths(const JsonObject& request, ApiKind kind, SamplingParams* out) {
  const int64_t min = kind == ApiKind::kCompletion ? 0 : 1;
  const auto newer = request.maybe_integer("max_completion_tokens", min, kMaxTokens);
  const auto older = request.maybe_integer("max_tokens", min, kMaxTokens);
  if (newer && older && *newer != *older)
    refuse_field("max_completion_tokens",
                 fmt::format("request: expected one of 'max_completion_tokens' and 'max_tokens', found {} and {}; "
                             "leave one out",
                             *newer, *older));
  out->max_tokens = newer ? newer : older;
  out->min_tokens = request.maybe_integer("min_tokens", 0, kMaxTokens).value_or(0);
  if (out->max_tokens && out->min_tokens > *out->max_tokens)
    refuse_field("min_tokens",
                 fmt::format("request: expected 'min_tokens' to be at most max_tokens, found {} and {}; lower it",
                             out->min_tokens, *out->max_tokens));
}

}  // namespace

void refuse_field(std::string_view param, std::string message) {
  throw Error(ErrorKind::kInvalidInput, std::move(message), std::string(param));
}

void refuse_unsupported(std::string_view param, std::string message) {
  throw Error(ErrorKind::kUnsupported, std::move(message), std::string(param));
}

JsonObject request_object(const json::value& body) {
  if (!body.is_object()) throw invalid_input("request: expected a JSON object, found {}; send one", describe(body));
  return JsonObject(body.get_object(), "request");
}

std::string read_model_name(const JsonObject& request, const ServedModel& model, bool is_required) {
  const auto name = request.maybe_string("model");
  if (!name && is_required)
    refuse_field("model",
                 fmt::format("request: expected 'model' to name a model, found nothing; send \"model\": \"{}\"",
                             model.names[0]));
  if (!name) return model.names[0];
  for (const std::string& served : model.names)
    if (served == *name) return *name;
  throw Error(ErrorKind::kNotFound,
              fmt::format("expected the name of a served model, found {}; use '{}' (GET /v1/models lists them)",
                          cadre::quoted(*name), model.names[0]),
              "model");
}

void refuse_unserved_fields(const JsonObject& request, ApiKind kind) {
  for (const std::string_view key : kUnservedFields) {
    const json::value* value = request.find(key);
    if (value && !is_empty_value(*value)) refuse_unserved(key, *value);
  }
  refuse_unserved_choices(request);
  const int64_t n = request.maybe_integer("n", 1, kMaxChoicesPerPrompt).value_or(1);
  if (const auto best_of = request.maybe_integer("best_of", 1, kMaxChoicesPerPrompt); best_of && *best_of != n)
    refuse_unsupported(
        "best_of",
        fmt::format("expected 'best_of' to equal 'n' as choosing the best is not supported here, found {} and {}; "
                    "leave it out",
                    *best_of, n));
  if (kind == ApiKind::kChat && request.maybe_boolean("echo").value_or(false)) refuse_unserved("echo", true);
}

void read_common_fields(const JsonObject& request, const ServedModel& model, ApiRequest* out) {
  SamplingParams& sampling = out->sampling;
  const SamplingDefaults& defaults = model.defaults;
  out->n = static_cast<int32_t>(request.maybe_integer("n", 1, kMaxChoicesPerPrompt).value_or(1));
  read_stream_options(request, out);
  read_lengths(request, out->kind, &sampling);

  sampling.temperature = read_number(request, "temperature", defaults.temperature, 0.0, 2.0);
  sampling.top_p = read_number(request, "top_p", defaults.top_p, 0.0, 1.0);
  if (sampling.top_p == 0.0)
    refuse_field("top_p",
                 "request: expected 'top_p' to be above 0 and at most 1, found 0; use temperature 0 for greedy");
  // -1 is another server's word for "all".
  sampling.top_k = static_cast<int32_t>(
      std::max<int64_t>(request.maybe_integer("top_k", -1, kMaxTokens).value_or(defaults.top_k), 0));
  sampling.min_p = read_number(request, "min_p", defaults.min_p, 0.0, 1.0);
  sampling.repetition_penalty = read_number(request, "repetition_penalty", defaults.repetition_penalty, 0.01, 100.0);
  sampling.frequency_penalty = read_number(request, "frequency_penalty", 0.0, -2.0, 2.0);
  sampling.presence_penalty = read_number(request, "presence_penalty", 0.0, -2.0, 2.0);
  sampling.logit_bias = read_logit_bias(request, model.vocab_size);
  if (const auto seed =
          request.maybe_integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()))
    sampling.seed = static_cast<uint64_t>(*seed);

  sampling.stop = read_stops(request);
  if (const json::array* ids = request.maybe_array("stop_token_ids"))
    sampling.stop_token_ids = read_token_ids(*ids, "'stop_token_ids'", "stop_token_ids", model.vocab_size);
  sampling.include_stop = request.maybe_boolean("include_stop_str_in_output").value_or(false);
  sampling.ignore_eos = request.maybe_boolean("ignore_eos").value_or(false);
  sampling.skip_special_tokens = request.maybe_boolean("skip_special_tokens").value_or(true);
}

std::vector<int32_t> read_token_ids(const json::array& array, std::string_view where, std::string_view param,
                                    int64_t vocab_size) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const json::value& item : array) {
    const bool is_id = item.is_int64() && item.get_int64() >= 0 && item.get_int64() < vocab_size;
    if (!is_id)
      refuse_field(param, fmt::format("request: expected {} to hold token ids from 0 to {}, found {}; correct it",
                                      where, vocab_size - 1, describe(item)));
    ids.push_back(static_cast<int32_t>(item.get_int64()));
  }
  return ids;
}

}  // namespace cadre
