// HTTP as the handlers see it: a request, a whole response, and the exchange that carries an answer in the making.
// Nothing here knows sockets (http_server.h) or what is asked for (api_service.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cadre {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // percent-decoded, without the query
  std::string query;
  HttpHeaders headers;  // names in lower case, in order of arrival
  std::string body;     // empty while only the head has been read
  bool has_body = false;

  // Value of the first header of this lower-case name; empty when absent.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers)
      if (key == name) return value;
    return {};
  }
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  HttpHeaders headers;
};

// One request being answered. All calls are safe from any thread and none blocks; after the peer has gone they do
// nothing. Exactly one of send() or begin_stream() ... end_stream() answers the request.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual void send(HttpResponse response) = 0;

  // Sends status and headers now; the body follows in pieces.
  virtual void begin_stream(HttpResponse head) = 0;
  virtual void write(std::string bytes) = 0;
  // keep_connection false: the connection closes after the last piece.
  virtual void end_stream(bool keep_connection) = 0;
  // While a stream is open and nothing was written for interval_ms, `bytes` goes out. 0 turns it off.
  virtual void set_keep_alive(int64_t interval_ms, std::string bytes) = 0;
  // Drops the connection without finishing the answer.
  virtual void abort() = 0;

  // Runs the task on the exchange's own thread, one at a time and in order.
  virtual void post(std::function<void()> task) = 0;
  // Runs the task on a thread for work that takes a while (tokenising, rendering).
  virtual void run_in_background(std::function<void()> task) = 0;
  // Called once, on the exchange's own thread, if the peer goes (or is dropped) before the answer is complete.
  virtual void on_closed(std::function<void()> callback) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Looks at a request's head before its body is read; a response refuses it there and then.
  virtual std::optional<HttpResponse> check_head(const HttpRequest& head) = 0;
  // Answers a whole request, now or later. Must not throw and must not block.
  virtual void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  // The answer to what is not HTTP or passes a limit (400, 408, 413, 431, 503).
  virtual HttpResponse protocol_error(int status, const std::string& message) = 0;
};

}  // namespace cadre
