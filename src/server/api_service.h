// The OpenAI-compatible API over HTTP: routes, keys, model list, tokenising, health, metrics, and the generations. It
// knows neither sockets nor engines. Until set_ready() every route that needs the model answers 503.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "dp/controller.h"
#include "server/api_request.h"
#include "server/http_types.h"
#include "server/metrics.h"

namespace cadre {

class Generation;

struct ApiServiceOptions {
  std::vector<std::string> api_keys;  // any of them opens; none: open to all
  std::string cors_origin;            // value of Access-Control-Allow-Origin; empty: no CORS headers
  int64_t keep_alive_ms = 0;          // SSE comments while a stream is silent; 0: none
  std::string version;                // what GET /version says
};

class ApiService final : public HttpHandler {
 public:
  explicit ApiService(ApiServiceOptions options, const Clock& clock);
  ~ApiService() override;

  // From here on requests are served. The controller must outlive the HTTP server that calls this service.
  void set_ready(std::shared_ptr<const ServedModel> model, Controller& controller);
  // From here on new work gets 503; /health says so too.
  void begin_drain() { is_draining_ = true; }
  // Ends what still runs; its clients get an error. Requests on their way to the engines are refused from here on.
  void cancel_all();

  std::optional<HttpResponse> check_head(const HttpRequest& head) override;
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  HttpResponse protocol_error(int status, const std::string& message) override;

 private:
  struct Route;
  struct Backend {
    std::shared_ptr<const ServedModel> model;
    Controller* controller = nullptr;
  };
  struct Call;

  // The one of this method where the path has several; null: an unknown path.
  static const Route* find_route(std::string_view path, std::string_view method);
  std::shared_ptr<const Backend> backend() const;
  std::shared_ptr<const Backend> ready_backend() const;  // throws kUnavailable while loading or draining
  HttpHeaders common_headers(const HttpRequest& request) const;
  bool is_authorized(const HttpRequest& request) const;
  HttpResponse finish_response(HttpResponse response, const HttpRequest& request, std::string_view route) const;

  void generate(Call call, ApiKind kind);
  void remember(const std::shared_ptr<Generation>& generation);
  HttpResponse models(const HttpRequest& request) const;
  HttpResponse tokenize(const HttpRequest& request) const;
  HttpResponse detokenize(const HttpRequest& request) const;
  HttpResponse health() const;
  HttpResponse metrics_text() const;
  HttpResponse version() const;
  HttpResponse info() const;
  ExpertAdmin& experts() const;
  HttpResponse expert_placement(const HttpRequest& request) const;
  HttpResponse expert_record(const HttpRequest& request) const;

  const ApiServiceOptions options_;
  const Clock& clock_;
  mutable Metrics metrics_;
  std::atomic<bool> is_draining_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<const Backend> backend_;              // guarded by mutex_
  bool is_cancelled_ = false;                           // guarded by mutex_
  std::vector<std::weak_ptr<Generation>> generations_;  // guarded by mutex_; gone ones are dropped now and then
};

}  // namespace cadre
