// An HTTP/1.1 server on Boost.Beast and Asio: a few threads, one strand per connection, every wait bounded. It reads on
// while an answer is in the making, so that a peer that goes is noticed in any state. It does not know what it serves.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/http_types.h"

namespace cadre {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: the system chooses; port() tells
  int num_io_threads = 2;
  int num_background_threads = 2;
  int64_t max_connections = 1024;        // past it a connection gets 503 and is closed
  uint64_t max_header_bytes = 32 << 10;  // request line included
  uint64_t max_body_bytes = 16 << 20;
  uint64_t max_unsent_bytes = 4 << 20;  // of one stream; a reader slower than that is dropped
  int64_t idle_timeout_ms = 75'000;     // between requests
  int64_t header_timeout_ms = 20'000;   // from a request's first byte to the end of its head
  int64_t body_timeout_ms = 120'000;    // from there to the end of its body
  int64_t write_timeout_ms = 60'000;    // without the peer taking a byte
};

class HttpServer {
 public:
  // Binds and listens; throws Error (kUnavailable) with the reason when the address is taken or not ours.
  // The handler must outlive the server.
  HttpServer(HttpServerOptions options, HttpHandler& handler);
  ~HttpServer();  // stop()

  uint16_t port() const;
  void start();  // connections are accepted from here on

  // Requests whose answers are not complete.
  int64_t num_active_exchanges() const;
  // From now on every answer closes its connection, and idle connections are closed.
  void begin_close();
  // True once no exchange is active, false at the deadline.
  bool wait_until_quiet(int64_t timeout_ms);
  // Closes every connection and joins the threads. Idempotent.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre
