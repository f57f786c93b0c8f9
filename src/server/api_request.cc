#include "server/api_request.h"

#include "base/error.h"
#include "server/chat_prompt.h"
#include "server/request_fields.h"

namespace cadre {
namespace {

constexpr int64_t kMaxLogprobs = 20;
constexpr size_t kMaxPrompts = 2048;
constexpr int32_t kMaxChoices = 4096;

ApiPrompt prompt_from_text(std::string_view text, const Tokenizer& tokenizer, bool add_special_tokens,
                           const std::string& where) {
  ApiPrompt prompt;
  prompt.text = text;
  prompt.ids = tokenizer.encode(text, add_special_tokens);
  if (prompt.ids.empty())
    refuse_field(
        "prompt",
        fmt::format("request: expected {} to be at least one token long, found an empty one; add text", where));
  return prompt;
}

ApiPrompt prompt_from_ids(const json::array& ids, const ServedModel& model, bool skip_special_tokens,
                          const std::string& where) {
  ApiPrompt prompt;
  prompt.ids = read_token_ids(ids, where, "prompt", model.vocab_size);
  if (prompt.ids.empty())
    refuse_field("prompt",
                 fmt::format("request: expected {} to be at least one token long, found an empty one; add ids", where));
  prompt.text = model.tokenizer->decode(prompt.ids, skip_special_tokens);
  return prompt;
}

// The four forms: a string, an array of strings, an array of ids, an array of arrays of ids.
std::vector<ApiPrompt> read_prompts(const JsonObject& request, const ServedModel& model, bool skip_special_tokens) {
  const json::value* value = request.find("prompt");
  const char* forms = "a string, an array of strings, an array of token ids or an array of arrays of token ids";
  if (!value) refuse_field("prompt", fmt::format("request: expected 'prompt' to be {}, found nothing; add it", forms));
  const bool add_special = request.maybe_boolean("add_special_tokens").value_or(true);
  std::vector<ApiPrompt> prompts;
  if (value->is_string()) {
    prompts.push_back(
        prompt_from_text(std::string_view(value->get_string()), *model.tokenizer, add_special, "'prompt'"));
    return prompts;
  }
  if (!value->is_array() || value->get_array().empty())
    refuse_field("prompt",
                 fmt::format("request: expected 'prompt' to be {}, found {}; correct it", forms, describe(*value)));
  const json::array& array = value->get_array();
  if (array[0].is_int64() || array[0].is_uint64() || array[0].is_double()) {
    prompts.push_back(prompt_from_ids(array, model, skip_special_tokens, "'prompt'"));
    return prompts;
  }
  if (array.size() > kMaxPrompts)
    refuse_field("prompt", fmt::format("request: expected at most {} prompts at once, found {}; send several requests",
                                       kMaxPrompts, array.size()));
  for (size_t i = 0; i < array.size(); ++i) {
    const std::string where = fmt::format("prompt[{}]", i);
    if (array[i].kind() != array[0].kind() || !(array[i].is_string() || array[i].is_array()))
      refuse_field("prompt", fmt::format("request: expected 'prompt' to be {}, found {} at [{}]; correct it", forms,
                                         describe(array[i]), i));
    prompts.push_back(array[i].is_string() ? prompt_from_text(std::string_view(array[i].get_string()), *model.tokenizer,
                                                              add_special, where)
                                           : prompt_from_ids(array[i].get_array(), model, skip_special_tokens, where));
  }
  return prompts;
}

void read_chat_logprobs(const JsonObject& request, ApiRequest* out) {
  const json::value* logprobs = request.find("logprobs");
  if (logprobs && !logprobs->is_bool())
    refuse_field(
        "logprobs",
        fmt::format(
            "request: expected 'logprobs' to be true or false in a chat request, found {}; the number goes into "
            "'top_logprobs'",
            describe(*logprobs)));
  const auto top = request.maybe_integer("top_logprobs", 0, kMaxLogprobs);
  out->return_logprobs = logprobs && logprobs->get_bool();
  if (top && *top > 0 && !out->return_logprobs)
    refuse_field("top_logprobs",
                 "request: expected 'top_logprobs' only with 'logprobs': true, found it without; add that");
  if (out->return_logprobs) out->sampling.num_logprobs = static_cast<int32_t>(top.value_or(0));
}

void read_completion_logprobs(const JsonObject& request, ApiRequest* out) {
  if (const json::value* top = request.find("top_logprobs"); top && !(top->is_int64() && top->get_int64() == 0))
    refuse_field("top_logprobs",
                 "request: expected 'logprobs' to be the number of alternatives in a completion request, found "
                 "'top_logprobs'; use 'logprobs'");
  const json::value* logprobs = request.find("logprobs");
  if (logprobs && logprobs->is_bool())
    refuse_field("logprobs", fmt::format("request: expected 'logprobs' to be an integer from 0 to {} in a completion "
                                         "request, found {}; send a number",
                                         kMaxLogprobs, describe(*logprobs)));
  const auto count = request.maybe_integer("logprobs", 0, kMaxLogprobs);
  if (!count) return;
  out->return_logprobs = true;
  out->sampling.num_logprobs = static_cast<int32_t>(*count);
  if (out->echo) out->sampling.num_prompt_logprobs = static_cast<int32_t>(*count);
}

}  // namespace

ApiRequest parse_chat_request(const json::value& body, const ServedModel& model) {
  const JsonObject request = request_object(body);
  ApiRequest out;
  out.kind = ApiKind::kChat;
  out.model = read_model_name(request, model, true);
  refuse_unserved_fields(request, out.kind);
  read_common_fields(request, model, &out);
  read_chat_logprobs(request, &out);
  out.prompts.push_back(read_chat_prompt(request, model));
  return out;
}

ApiRequest parse_completion_request(const json::value& body, const ServedModel& model) {
  const JsonObject request = request_object(body);
  ApiRequest out;
  out.kind = ApiKind::kCompletion;
  out.model = read_model_name(request, model, true);
  refuse_unserved_fields(request, out.kind);
  read_common_fields(request, model, &out);
  out.echo = request.maybe_boolean("echo").value_or(false);
  read_completion_logprobs(request, &out);
  out.prompts = read_prompts(request, model, out.sampling.skip_special_tokens);
  if (out.num_choices() > kMaxChoices)
    refuse_field(
        "n",
        fmt::format("request: expected at most {} choices in all, found {} prompts with {} each; send several requests",
                    kMaxChoices, out.prompts.size(), out.n));
  return out;
}

TokenizeRequest parse_tokenize_request(const json::value& body, const ServedModel& model) {
  const JsonObject request = request_object(body);
  read_model_name(request, model, false);
  if (request.has("prompt") == request.has("messages"))
    refuse_field("prompt", "request: expected one of 'prompt' and 'messages', found both or neither; send one");
  TokenizeRequest out;
  out.return_token_strs = request.maybe_boolean("return_token_strs").value_or(false);
  if (request.has("messages")) {
    out.ids = read_chat_prompt(request, model).ids;
  } else {
    out.ids =
        model.tokenizer->encode(request.string("prompt"), request.maybe_boolean("add_special_tokens").value_or(true));
  }
  return out;
}

std::vector<int32_t> parse_detokenize_request(const json::value& body, const ServedModel& model) {
  const JsonObject request = request_object(body);
  read_model_name(request, model, false);
  const json::array* tokens = request.maybe_array("tokens");
  if (!tokens) refuse_field("tokens", "request: expected 'tokens' to be an array of token ids, found nothing; add it");
  return read_token_ids(*tokens, "'tokens'", "tokens", model.vocab_size);
}

}  // namespace cadre
