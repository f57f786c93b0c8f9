#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "server/http_client.h"
#include "server/json_text.h"

namespace cadre::cli {
namespace {

struct AskFlags {
  std::string url, text, model, api_key, system;
  int max_tokens = 256;
  double temperature = -1;
  int64_t seed = -1;
};

struct Address {
  std::string host;
  uint16_t port = 80;
};

// "http://host:port[/...]", or "host:port".
Address parse_url(const std::string& url) {
  std::string_view rest = url;
  constexpr std::string_view kScheme = "http://";
  if (rest.starts_with(kScheme)) rest.remove_prefix(kScheme.size());
  rest = rest.substr(0, rest.find('/'));
  Address address;
  const size_t colon = rest.rfind(':');
  address.host = std::string(rest.substr(0, colon));
  if (colon != std::string_view::npos) {
    const std::string port(rest.substr(colon + 1));
    char* end = nullptr;
    const long number = std::strtol(port.c_str(), &end, 10);
    if (port.empty() || *end || number < 1 || number > 65535) address.host.clear();
    else address.port = static_cast<uint16_t>(number);
  }
  if (address.host.empty() || url.starts_with("https://"))
    throw invalid_input("expected a URL such as http://127.0.0.1:8000, found {}; correct it", cadre::quoted(url));
  return address;
}

// What went wrong, in the server's words when it sent some.
Error server_error(int status, const std::string& body) {
  std::string message = body;
  try {
    message = JsonObject(parse_json(body, "answer").as_object(), "answer").maybe_object("error")->string("message");
  } catch (const std::exception&) {  // not one of ours: show it as it is
  }
  const ErrorKind kind = status == 429 || status == 503 ? ErrorKind::kUnavailable
                         : status >= 500                ? ErrorKind::kInternal
                                                        : ErrorKind::kInvalidInput;
  return Error(kind, fmt::format("the server refused ({}): {}", status, message));
}

std::string first_model(HttpClient& client, const HttpHeaders& headers) {
  const HttpReply reply = client.request("GET", "/v1/models", {}, headers);
  if (reply.status != 200) throw server_error(reply.status, reply.body);
  const json::value body = parse_json(reply.body, "the model list");
  const json::array* data =
      body.is_object() ? JsonObject(body.get_object(), "the model list").maybe_array("data") : nullptr;
  if (!data || data->empty() || !(*data)[0].is_object())
    throw Error(ErrorKind::kUnavailable, "expected a list of models, found none; ask a Cadre server");
  return JsonObject((*data)[0].get_object(), "model").string("id");
}

// Prints the text of one event. Throws when it is an error.
void print_event(const std::string& text) {
  const json::value event = parse_json(text, "event");
  if (!event.is_object()) return;
  const JsonObject chunk(event.get_object(), "event");
  if (chunk.has("error")) throw server_error(500, text);
  const json::array* choices = chunk.maybe_array("choices");
  if (!choices || choices->empty() || !(*choices)[0].is_object()) return;
  const auto delta = JsonObject((*choices)[0].get_object(), "choice").maybe_object("delta");
  const std::string content = delta ? delta->maybe_string("content").value_or("") : "";
  std::fwrite(content.data(), 1, content.size(), stdout);
  std::fflush(stdout);
}

int ask(const AskFlags& flags) {
  const Address address = parse_url(flags.url);
  HttpHeaders headers;
  if (!flags.api_key.empty()) headers.emplace_back("Authorization", "Bearer " + flags.api_key);
  HttpClient client(address.host, address.port);
  json::object body;
  body["model"] = flags.model.empty() ? first_model(client, headers) : flags.model;
  json::array messages;
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  messages.push_back({{"role", "user"}, {"content", flags.text}});
  body["messages"] = std::move(messages);
  body["stream"] = true;
  body["max_tokens"] = flags.max_tokens;
  if (flags.temperature >= 0) body["temperature"] = flags.temperature;
  if (flags.seed >= 0) body["seed"] = flags.seed;

  client.send_request("POST", "/v1/chat/completions", json_text(body), headers);
  const HttpReply head = client.read_head();
  std::string piece, refusal;
  std::vector<std::string> events;
  EventReader reader;
  bool is_done = false;
  while (client.read_piece(&piece)) {
    if (head.status != 200) {
      refusal += piece;
      continue;
    }
    events.clear();
    reader.push(piece, &events);
    for (const std::string& event : events) {
      if (event == "[DONE]") is_done = true;
      else print_event(event);
    }
  }
  if (head.status != 200) throw server_error(head.status, refusal);
  std::printf("\n");
  if (!is_done) throw Error(ErrorKind::kUnavailable, "expected a whole answer, found the stream cut short; ask again");
  return kExitOk;
}

}  // namespace

void add_ask(CLI::App& app, Run* run) {
  CLI::App* command = app.add_subcommand("ask", "Ask a running server one question and print the answer as it comes");
  auto flags = std::make_shared<AskFlags>();
  command->add_option("URL", flags->url, "The server, such as http://127.0.0.1:8000")->required();
  command->add_option("TEXT", flags->text, "The question")->required();
  command->add_option("--system", flags->system, "A system message before it");
  command->add_option("--model", flags->model, "Model name; the first one the server lists unless told");
  command->add_option("--api-key", flags->api_key, "Key for a server that wants one")->envname("CADRE_API_KEY");
  command->add_option("--max-tokens", flags->max_tokens, "Tokens at most")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command
      ->add_option("--temperature", flags->temperature,
                   "0: always the likeliest token; the model's own value unless told")
      ->check(CLI::Range(0.0, 2.0));
  command->add_option("--seed", flags->seed, "Makes a sampled answer repeatable")->check(CLI::NonNegativeNumber);
  command->callback([run, flags] { *run = [flags] { return ask(*flags); }; });
}

}  // namespace cadre::cli
