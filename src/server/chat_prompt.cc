#include "server/chat_prompt.h"

#include <algorithm>

#include "base/error.h"
#include "server/request_fields.h"

namespace cadre {
namespace {

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};

// Text of a message's content: a string, or an array of text parts.
std::string read_content(const json::value& content, const std::string& where) {
  if (content.is_string()) return std::string(std::string_view(content.get_string()));
  if (!content.is_array())
    refuse_field("messages",
                 fmt::format("request: expected {} to be a string or an array of text parts, found {}; correct it",
                             where, describe(content)));
  std::string text;
  for (size_t i = 0; i < content.get_array().size(); ++i) {
    const std::string part_where = fmt::format("{}[{}]", where, i);
    const json::value& item = content.get_array()[i];
    if (!item.is_object())
      refuse_field("messages", fmt::format("request: expected {} to be an object, found {}; correct it", part_where,
                                           describe(item)));
    const JsonObject part(item.get_object(), part_where);
    const std::string type = part.maybe_string("type").value_or("");
    const std::string_view key = type == "refusal" ? "refusal" : "text";
    if (type != "text" && type != "refusal")
      refuse_unsupported(
          "messages", fmt::format("expected {} to be of type 'text', the one supported here, found {}; send text only",
                                  part_where, cadre::quoted(type)));
    const auto part_text = part.maybe_string(key);
    if (!part_text)
      refuse_field("messages", fmt::format("request: expected {} to have '{}', found none; add it", part_where, key));
    text += *part_text;
  }
  return text;
}

json::object read_message(const json::value& value, const std::string& where, bool template_knows_developer) {
  if (!value.is_object())
    refuse_field("messages",
                 fmt::format("request: expected {} to be an object, found {}; correct it", where, describe(value)));
  const JsonObject message(value.get_object(), where);
  std::string role = message.maybe_string("role").value_or("");
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles))
    refuse_field("messages", fmt::format("request: expected {}.role to be one of {}, found {}; correct it", where,
                                         fmt::join(kRoles, ", "), cadre::quoted(role)));
  const bool is_assistant = role == "assistant";
  // OpenAI's newer word for the system role; templates written before it do not know it.
  if (role == "developer" && !template_knows_developer) role = "system";

  json::object out;
  for (const auto& [key, field] : message.raw())
    if (!field.is_null()) out[key] = field;
  out["role"] = role;
  const json::value* content = message.find("content");
  if (content) {
    out["content"] = read_content(*content, where + ".content");
  } else if (!is_assistant) {
    refuse_field(
        "messages",
        fmt::format("request: expected {}.content to be a string or an array of text parts, found nothing; add it",
                    where));
  } else if (message.has("tool_calls")) {
    out["content"] = nullptr;  // what templates test for before they write the calls
  } else {
    out["content"] = "";
  }
  return out;
}

json::array read_messages(const JsonObject& request, const ServedModel& model) {
  const json::array* messages = request.maybe_array("messages");
  if (!messages || messages->empty())
    refuse_field("messages", fmt::format("request: expected 'messages' to hold at least one message, found {}; add one",
                                         messages ? "none" : "nothing"));
  const bool knows_developer = model.chat_template.find("developer") != std::string::npos;
  json::array out;
  for (size_t i = 0; i < messages->size(); ++i)
    out.push_back(read_message((*messages)[i], fmt::format("messages[{}]", i), knows_developer));
  return out;
}

// Cuts what the template wrote after the last message's text, so that the model goes on with it.
void cut_after_final_message(const json::array& messages, std::string* text) {
  const json::object& last = messages.back().as_object();
  const json::value* content = last.if_contains("content");
  std::string_view wanted =
      content && content->is_string() ? std::string_view(content->get_string()) : std::string_view();
  while (!wanted.empty() && (wanted.back() == ' ' || wanted.back() == '\n' || wanted.back() == '\t'))
    wanted.remove_suffix(1);
  const size_t at = wanted.empty() ? std::string::npos : text->rfind(wanted);
  if (at == std::string::npos)
    refuse_field("continue_final_message",
                 "request: expected a final message whose text the chat template keeps, found none; send one or leave "
                 "'continue_final_message' out");
  // Trailing white space of the message stays when the template kept it.
  size_t end = at + wanted.size();
  const std::string_view full(content->get_string());
  if (text->compare(at, full.size(), full) == 0) end = at + full.size();
  text->resize(end);
}

}  // namespace

ApiPrompt read_chat_prompt(const JsonObject& request, const ServedModel& model) {
  if (!model.render_chat)
    throw Error(ErrorKind::kUnsupported,
                "expected a model with a chat template, found one without; use /v1/completions");
  json::object variables;
  if (const auto kwargs = request.maybe_object("chat_template_kwargs")) variables = kwargs->raw();
  if (const auto effort = request.maybe_string("reasoning_effort")) {
    if (model.chat_template.find("reasoning_effort") == std::string::npos)
      refuse_unsupported("reasoning_effort",
                         "expected 'reasoning_effort' to be absent as this model's chat template does not know it, "
                         "found it; leave it out");
    variables["reasoning_effort"] = *effort;
  }
  const bool continues = request.maybe_boolean("continue_final_message").value_or(false);
  const bool adds_prompt = request.maybe_boolean("add_generation_prompt").value_or(!continues);
  if (continues && adds_prompt)
    refuse_field(
        "continue_final_message",
        "request: expected one of 'continue_final_message' and 'add_generation_prompt', found both; leave one out");

  const json::array messages = read_messages(request, model);
  const Tokenizer& tokenizer = *model.tokenizer;
  const auto token_text = [&](std::optional<TokenId> id) {
    return id ? std::string(tokenizer.piece(*id)) : std::string();
  };
  variables["messages"] = messages;
  variables["add_generation_prompt"] = adds_prompt;
  variables["bos_token"] = token_text(tokenizer.bos_id());
  variables["eos_token"] = token_text(tokenizer.eos_id());

  ApiPrompt prompt;
  prompt.text = model.render_chat(variables);
  if (continues) cut_after_final_message(messages, &prompt.text);
  prompt.ids = tokenizer.encode(prompt.text, request.maybe_boolean("add_special_tokens").value_or(false));
  if (prompt.ids.empty())
    refuse_field("messages", "request: expected messages that render to at least one token, found none; add text");
  return prompt;
}

}  // namespace cadre
