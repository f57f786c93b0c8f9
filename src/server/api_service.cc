#include "server/api_service.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "server/api_error.h"
#include "server/generation.h"
#include "server/json_text.h"
#include "server/random_id.h"
#include "server/routing_fields.h"
#include "server/server_info.h"

namespace cadre {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;

Error going_down() {
  return Error(ErrorKind::kUnavailable, "expected a server that takes requests, found it going down; ask another one");
}

// Compares without telling by its duration how much agreed.
bool equal_in_constant_time(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference = static_cast<unsigned char>(
        difference | (static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()])));
  return difference == 0;
}

// The client's x-request-id as far as it is harmless in headers and logs; a new one when nothing is left.
std::string request_id_of(const HttpRequest& request) {
  std::string id;
  for (const char c : request.header("x-request-id")) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                          c == '_' || c == '.' || c == ':';
    if (is_plain && id.size() < kMaxRequestIdBytes) id += c;
  }
  return id.empty() ? "req-" + random_id() : id;
}

void add_headers(const HttpHeaders& headers, HttpResponse* response) {
  response->headers.insert(response->headers.end(), headers.begin(), headers.end());
}

HttpResponse json_response(const json::value& value) {
  HttpResponse response;
  response.body = json_text(value);
  return response;
}

std::string starts_with_bearer(std::string_view value) {
  constexpr std::string_view kScheme = "bearer ";
  if (value.size() < kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i)
    if ((value[i] | 0x20) != (kScheme[i] | 0x20)) return {};
  value.remove_prefix(kScheme.size());
  while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  while (!value.empty() && value.back() == ' ') value.remove_suffix(1);
  return std::string(value);
}

}  // namespace

struct ApiService::Route {
  enum class Kind { kChat, kCompletion, kModels, kTokenize, kDetokenize, kHealth, kMetrics, kVersion, kServerInfo, kExpertPlacement, kExpertRecord };
  Kind kind;
  std::string_view path;
  std::string_view method;
  bool is_open;   // needs no key
  bool has_tail;  // path is a prefix
};

struct ApiService::Call {
  HttpRequest request;
  std::shared_ptr<HttpExchange> exchange;
  const Route* route;
  std::string request_id;
  int64_t arrival_us;
};

const ApiService::Route* ApiService::find_route(std::string_view path, std::string_view method) {
  using Kind = Route::Kind;
  static constexpr Route kRoutes[] = {
      {Kind::kChat, "/v1/chat/completions", "POST", false, false},
      {Kind::kCompletion, "/v1/completions", "POST", false, false},
      {Kind::kModels, "/v1/models", "GET", false, false},
      {Kind::kModels, "/v1/models/", "GET", false, true},
      {Kind::kTokenize, "/tokenize", "POST", false, false},
      {Kind::kDetokenize, "/detokenize", "POST", false, false},
      {Kind::kHealth, "/health", "GET", true, false},
      {Kind::kMetrics, "/metrics", "GET", true, false},
      {Kind::kVersion, "/version", "GET", false, false},
      {Kind::kServerInfo, "/server_info", "GET", false, false},
      {Kind::kExpertPlacement, "/expert_placement", "GET", false, false},
      {Kind::kExpertPlacement, "/expert_placement", "PUT", false, false},
      {Kind::kExpertRecord, "/expert_distribution", "GET", false, false},
      {Kind::kExpertRecord, "/expert_distribution/start", "POST", false, false},
      {Kind::kExpertRecord, "/expert_distribution/stop", "POST", false, false},
      {Kind::kExpertRecord, "/expert_distribution/dump", "POST", false, false},
      // SGLang's names for them.
      {Kind::kExpertRecord, "/start_expert_distribution_record", "POST", false, false},
      {Kind::kExpertRecord, "/stop_expert_distribution_record", "POST", false, false},
      {Kind::kExpertRecord, "/dump_expert_distribution_record", "POST", false, false},
  };
  const Route* first = nullptr;
  for (const Route& route : kRoutes) {
    if (!(route.has_tail ? path.starts_with(route.path) && path.size() > route.path.size() : path == route.path)) continue;
    if (route.method == method) return &route;
    if (!first) first = &route;
  }
  return first;
}

ApiService::ApiService(ApiServiceOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}
ApiService::~ApiService() = default;

void ApiService::set_ready(std::shared_ptr<const ServedModel> model, Controller& controller) {
  CADRE_CHECK(model && model->tokenizer && !model->names.empty(), "a model needs a tokenizer and a name");
  auto backend = std::make_shared<Backend>();
  backend->model = std::move(model);
  backend->controller = &controller;
  const std::lock_guard lock(mutex_);
  backend_ = std::move(backend);
}

std::shared_ptr<const ApiService::Backend> ApiService::backend() const {
  const std::lock_guard lock(mutex_);
  return backend_;
}

std::shared_ptr<const ApiService::Backend> ApiService::ready_backend() const {
  if (is_draining_) throw going_down();
  auto ready = backend();
  if (!ready)
    throw Error(ErrorKind::kUnavailable, "expected a loaded model, found it still loading; try again in a while");
  return ready;
}

HttpHeaders ApiService::common_headers(const HttpRequest& request) const {
  HttpHeaders headers{{"x-request-id", request_id_of(request)}};
  if (!options_.cors_origin.empty()) {
    headers.emplace_back("Access-Control-Allow-Origin", options_.cors_origin);
    headers.emplace_back("Access-Control-Expose-Headers", fmt::format("x-request-id, {}", kRankHeader));
  }
  return headers;
}

bool ApiService::is_authorized(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return true;
  const std::string key = starts_with_bearer(request.header("authorization"));
  bool matches = false;
  for (const std::string& known : options_.api_keys) matches |= equal_in_constant_time(key, known);
  return matches && !key.empty();
}

HttpResponse ApiService::finish_response(HttpResponse response, const HttpRequest& request,
                                         std::string_view route) const {
  add_headers(common_headers(request), &response);
  metrics_.count_http(route, response.status);
  return response;
}

std::optional<HttpResponse> ApiService::check_head(const HttpRequest& head) {
  const Route* route = find_route(head.path, head.method);
  const auto refuse = [&](ApiError error) {
    return finish_response(error_response(error), head, route ? route->path : "other");
  };
  if (head.method == "OPTIONS") {
    HttpResponse response;
    response.status = 204;
    response.content_type.clear();
    response.headers.emplace_back(
        "Allow", route ? fmt::format("{}, OPTIONS{}", route->method, route->method == "GET" ? ", HEAD" : "")
                       : "GET, HEAD, POST, OPTIONS");
    if (!options_.cors_origin.empty()) {
      response.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, PUT, OPTIONS");
      response.headers.emplace_back("Access-Control-Allow-Headers",
                                    fmt::format("Authorization, Content-Type, x-request-id, {}", kRankHeader));
      response.headers.emplace_back("Access-Control-Max-Age", "600");
    }
    return finish_response(std::move(response), head, route ? route->path : "other");
  }
  if (!route)
    return refuse({404, "invalid_request_error", "not_found", "",
                   fmt::format("expected a path of this API, found {}; try /v1/models", cadre::quoted(head.path))});
  if (head.method != route->method && !(head.method == "HEAD" && route->method == "GET")) {
    HttpResponse response =
        error_response(ApiError{405, "invalid_request_error", "method_not_allowed", "",
                                fmt::format("expected {} {}, found {}; change the method", route->method, route->path,
                                            cadre::quoted(head.method))});
    response.headers.emplace_back("Allow", std::string(route->method));
    return finish_response(std::move(response), head, route->path);
  }
  if (!route->is_open && !is_authorized(head)) {
    HttpResponse response =
        error_response(ApiError{401, "invalid_request_error", "invalid_api_key", "",
                                "expected a valid API key in 'Authorization: Bearer KEY', found none; send one"});
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return finish_response(std::move(response), head, route->path);
  }
  const std::string_view encoding = head.header("content-encoding");
  if (!encoding.empty() && encoding != "identity")
    return refuse(
        {415, "invalid_request_error", "unsupported_encoding", "",
         fmt::format("expected a body without Content-Encoding, found {}; send it plain", cadre::quoted(encoding))});
  return std::nullopt;
}

void ApiService::handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const Route* route = find_route(request.path, request.method);
  CADRE_CHECK(route, "check_head lets no unknown path pass");
  const auto answer = [this, route](const Call& call, auto make) {
    HttpResponse response;
    try {
      response = make(call.request);
    } catch (const Error& error) {
      response = error_response(error);
    } catch (const std::exception& error) {
      response = error_response(
          Error(ErrorKind::kInternal, fmt::format("the server failed on this request: {}", error.what())));
    }
    call.exchange->send(finish_response(std::move(response), call.request, route->path));
  };
  Call call{std::move(request), std::move(exchange), route, {}, clock_.now_us()};
  const auto in_background = [&](auto task) {
    auto shared = std::make_shared<Call>(std::move(call));
    shared->exchange->run_in_background([shared, task] { task(std::move(*shared)); });
  };
  switch (route->kind) {
    case Route::Kind::kChat:
      return in_background([this](Call c) { generate(std::move(c), ApiKind::kChat); });
    case Route::Kind::kCompletion:
      return in_background([this](Call c) { generate(std::move(c), ApiKind::kCompletion); });
    case Route::Kind::kTokenize:
      return in_background([this, answer](Call c) { answer(c, [this](const HttpRequest& r) { return tokenize(r); }); });
    case Route::Kind::kDetokenize:
      return in_background(
          [this, answer](Call c) { answer(c, [this](const HttpRequest& r) { return detokenize(r); }); });
    case Route::Kind::kModels:
      return answer(call, [this](const HttpRequest& r) { return models(r); });
    case Route::Kind::kHealth:
      return answer(call, [this](const HttpRequest&) { return health(); });
    case Route::Kind::kMetrics:
      return answer(call, [this](const HttpRequest&) { return metrics_text(); });
    case Route::Kind::kVersion:
      return answer(call, [this](const HttpRequest&) { return version(); });
    case Route::Kind::kServerInfo:
      return answer(call, [this](const HttpRequest&) { return info(); });
    case Route::Kind::kExpertPlacement:
      return in_background([this, answer](Call c) { answer(c, [this](const HttpRequest& r) { return expert_placement(r); }); });
    case Route::Kind::kExpertRecord:
      return in_background([this, answer](Call c) { answer(c, [this](const HttpRequest& r) { return expert_record(r); }); });
  }
}

HttpResponse ApiService::protocol_error(int status, const std::string& message) {
  ApiError error{status, "invalid_request_error", "bad_request", "", message};
  if (status == 408) error.code = "request_timeout";
  if (status == 413) error.code = "body_too_large";
  if (status == 431) error.code = "header_too_large";
  if (status == 500) error.type = "server_error", error.code = "internal_error";
  if (status == 503) error.type = "service_unavailable_error", error.code = "unavailable";
  return finish_response(error_response(error), HttpRequest{}, "other");
}

void ApiService::generate(Call call, ApiKind kind) {
  HttpHeaders headers = common_headers(call.request);
  HttpResponse refusal;
  try {
    const auto ready = ready_backend();
    const json::value body = parse_json(call.request.body, "request");
    ApiRequest request = kind == ApiKind::kChat ? parse_chat_request(body, *ready->model)
                                                : parse_completion_request(body, *ready->model);
    request.routing =
        read_routing_wish(JsonObject(body.get_object(), "request"), call.request.headers, ready->controller->num_ranks());
    const GenerationContext context{*ready->controller, ready->model, metrics_, clock_, options_.keep_alive_ms};
    auto generation = std::make_shared<Generation>(context, std::move(request), call.exchange, headers,
                                                   headers[0].second, call.arrival_us);
    remember(generation);
    generation->start();
    metrics_.count_http(call.route->path, 200);
    return;
  } catch (const Error& error) {
    ApiError told = api_error(error);
    if (kind == ApiKind::kChat && told.param == "prompt") told.param = "messages";  // what the prompt was made of
    refusal = error_response(told);
  } catch (const std::exception& error) {
    refusal =
        error_response(Error(ErrorKind::kInternal, fmt::format("the server failed on this request: {}", error.what())));
  }
  add_headers(headers, &refusal);
  metrics_.count_http(call.route->path, refusal.status);
  call.exchange->send(std::move(refusal));
}

void ApiService::remember(const std::shared_ptr<Generation>& generation) {
  const std::lock_guard lock(mutex_);
  // One that passed the check of ready_backend() before the drain began, and gets here only after cancel_all().
  if (is_cancelled_) throw going_down();
  // Every doubling pays for one sweep.
  if (generations_.size() == generations_.capacity())
    std::erase_if(generations_, [](const auto& weak) { return weak.expired(); });
  generations_.push_back(generation);
}

void ApiService::cancel_all() {
  std::vector<std::weak_ptr<Generation>> generations;
  {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    generations = generations_;
  }
  for (const auto& weak : generations)
    if (const auto generation = weak.lock()) generation->cancel();
}

HttpResponse ApiService::models(const HttpRequest& request) const {
  const auto ready = backend();
  if (!ready)
    return error_response(
        Error(ErrorKind::kUnavailable, "expected a loaded model, found it still loading; try again in a while"));
  const ServedModel& model = *ready->model;
  const auto entry = [&](const std::string& name) {
    return json::object{{"id", name},
                        {"object", "model"},
                        {"created", model.created_unix_s},
                        {"owned_by", "cadre"},
                        {"root", model.names[0]},
                        {"parent", nullptr},
                        {"max_model_len", model.max_model_len}};
  };
  constexpr std::string_view kPrefix = "/v1/models/";
  if (request.path.starts_with(kPrefix)) {
    const std::string wanted = request.path.substr(kPrefix.size());
    for (const std::string& name : model.names)
      if (name == wanted) return json_response(entry(name));
    return error_response(Error(
        ErrorKind::kNotFound,
        fmt::format("expected the name of a served model, found {}; GET /v1/models lists them", cadre::quoted(wanted)),
        "model"));
  }
  json::array data;
  for (const std::string& name : model.names) data.push_back(entry(name));
  return json_response(json::object{{"object", "list"}, {"data", std::move(data)}});
}

HttpResponse ApiService::tokenize(const HttpRequest& request) const {
  const auto ready = ready_backend();
  const TokenizeRequest asked = parse_tokenize_request(parse_json(request.body, "request"), *ready->model);
  json::object out{{"count", asked.ids.size()},
                   {"max_model_len", ready->model->max_model_len},
                   {"tokens", json::array(asked.ids.begin(), asked.ids.end())}};
  if (asked.return_token_strs) {
    json::array texts;
    for (const int32_t id : asked.ids) texts.push_back(json::value(std::string(ready->model->tokenizer->piece(id))));
    out["token_strs"] = std::move(texts);
  }
  return json_response(out);
}

HttpResponse ApiService::detokenize(const HttpRequest& request) const {
  const auto ready = ready_backend();
  const auto ids = parse_detokenize_request(parse_json(request.body, "request"), *ready->model);
  return json_response(json::object{{"prompt", ready->model->tokenizer->decode(ids, false)}});
}

HttpResponse ApiService::health() const {
  const auto ready = ready_backend();
  std::vector<int> stuck;
  for (int rank = 0; rank < ready->controller->num_ranks(); ++rank)
    if (!ready->controller->status(rank).is_healthy) stuck.push_back(rank);
  if (!stuck.empty())
    throw Error(ErrorKind::kUnavailable,
                fmt::format("expected every data-parallel rank to make steps, found {} of {} that make none ({} {}); restart the server",
                            stuck.size(), ready->controller->num_ranks(), stuck.size() == 1 ? "rank" : "ranks",
                            fmt::join(stuck, ", ")));
  return json_response(json::object{{"status", "ok"}, {"ranks", ready->controller->num_ranks()}});
}

HttpResponse ApiService::metrics_text() const {
  std::vector<RankStatus> ranks;
  const auto ready = backend();
  for (int rank = 0; ready && rank < ready->controller->num_ranks(); ++rank)
    ranks.push_back(ready->controller->status(rank));
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  std::optional<ExpertMetrics> experts;
  if (ready && ready->model->experts) experts = ready->model->experts->metrics();
  response.body = metrics_.text(ready ? ready->model->names[0] : "", ranks, experts);
  return response;
}

HttpResponse ApiService::info() const {
  const auto ready = backend();
  if (!ready)
    throw Error(ErrorKind::kUnavailable, "expected a loaded model, found it still loading; try again in a while");
  return json_response(server_info(options_.version, *ready->model, *ready->controller, is_draining_));
}

ExpertAdmin& ApiService::experts() const {
  const auto ready = ready_backend();
  if (!ready->model->experts) throw invalid_input("expected a model with routed experts, found a dense one; ask a server of a mixture-of-experts model");
  return *ready->model->experts;
}

HttpResponse ApiService::expert_placement(const HttpRequest& request) const {
  if (request.method == "PUT") return json_response(experts().place(request.body));
  return json_response(experts().placement());
}

HttpResponse ApiService::expert_record(const HttpRequest& request) const {
  const std::string_view path = request.path;
  if (path.find("start") != std::string_view::npos) return json_response(experts().start_recording(request.body));
  if (path.find("stop") != std::string_view::npos) return json_response(experts().stop_recording());
  if (path.find("dump") == std::string_view::npos) return json_response(experts().distribution());
  HttpResponse response;
  response.content_type = "application/x-ndjson";
  response.body = experts().dump();
  return response;
}

HttpResponse ApiService::version() const { return json_response(json::object{{"version", options_.version}}); }

}  // namespace cadre
