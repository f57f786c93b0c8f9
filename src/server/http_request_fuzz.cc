// What a client can send, past Beast's parser: request targets, heads, and bodies of every endpoint. Only Error may come
// out, and an accepted request must be one the engine may be given.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "base/utf8.h"
#include "server/api_request.h"
#include "server/api_service.h"
#include "server/url.h"
#include "tokenizer/byte_tokenizer.h"

namespace {

using namespace cadre;

ServedModel make_model() {
  ServedModel model;
  auto tokenizer = std::make_shared<ByteTokenizer>();
  model.names = {"m", "alias"};
  model.tokenizer = tokenizer;
  model.render_chat = [](const json::object& variables) {
    std::string text;
    for (const json::value& message : variables.at("messages").as_array()) {
      const json::value* content = message.as_object().if_contains("content");
      if (content && content->is_string()) text += std::string_view(content->get_string());
    }
    return text;
  };
  model.vocab_size = tokenizer->vocab_size() + 8;
  model.max_model_len = 512;
  return model;
}

void check_request(const ApiRequest& request, const ServedModel& model) {
  CADRE_CHECK(!request.prompts.empty() && request.n >= 1);
  for (const ApiPrompt& prompt : request.prompts) {
    CADRE_CHECK(!prompt.ids.empty() && utf8::is_valid(prompt.text));
    for (const int32_t id : prompt.ids) CADRE_CHECK(id >= 0 && id < model.vocab_size, "id {}", id);
  }
  const SamplingParams& s = request.sampling;
  CADRE_CHECK(std::isfinite(s.temperature) && s.temperature >= 0 && s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1);
  for (const auto& [id, bias] : s.logit_bias) CADRE_CHECK(id >= 0 && id < model.vocab_size && std::isfinite(bias));
  for (const std::string& stop : s.stop) CADRE_CHECK(!stop.empty());
  CADRE_CHECK(!s.max_tokens || *s.max_tokens >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ServedModel model = make_model();
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 6 == 4) {
      std::string path, query;
      if (split_target(text, &path, &query)) CADRE_CHECK(path.find('\0') == std::string::npos);
      return 0;
    }
    if (data[0] % 6 == 5) {
      static const SteadyClock clock;
      static ApiService service({.api_keys = {"key"}}, clock);
      HttpRequest head{.method = "POST", .path = "/v1/completions", .headers = {{"authorization", std::string(text)}, {"x-request-id", std::string(text)}}};
      const auto refusal = service.check_head(head);
      CADRE_CHECK(text == "Bearer key" || !refusal || refusal->status >= 400);
      return 0;
    }
    const json::value body = parse_json(text, "request");
    switch (data[0] % 6) {
      case 0: check_request(parse_chat_request(body, model), model); break;
      case 1: check_request(parse_completion_request(body, model), model); break;
      case 2: parse_tokenize_request(body, model); break;
      case 3:
        for (const int32_t id : parse_detokenize_request(body, model)) CADRE_CHECK(id >= 0 && id < model.vocab_size);
        break;
    }
  } catch (const Error&) {
  }
  return 0;
}
