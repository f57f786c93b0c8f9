// The HTTP layer alone, over real loopback sockets, with a handler that echoes.
#include "server/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "server/http_client.h"
#include "server/url.h"
#include "tests/testing.h"

namespace cadre {
namespace {

constexpr int64_t kLongMs = 20'000;

// A flag that another thread waits for.
class Event {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    is_set_ = true;
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(kLongMs), [&] { return is_set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
};

// POST /echo gives the body back, /stream streams it in pieces of three bytes, /hold waits for release() or the peer's
// going, /flood writes until the peer is dropped, /forget answers nothing.
class EchoHandler final : public HttpHandler {
 public:
  std::optional<HttpResponse> check_head(const HttpRequest& head) override {
    if (head.path == "/forbidden") return text(403, "no");
    return std::nullopt;
  }
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    if (request.path == "/stream") {
      exchange->begin_stream(text(200, ""));
      for (size_t at = 0; at < request.body.size(); at += 3) exchange->write(request.body.substr(at, 3));
      exchange->end_stream(true);
    } else if (request.path == "/hold") {
      exchange->on_closed([this] { closed.set(); });
      const std::lock_guard lock(mutex_);
      held_ = exchange;
      held.set();
    } else if (request.path == "/quiet") {
      exchange->begin_stream(text(200, ""));
      exchange->set_keep_alive(5, ":\n\n");
      const std::lock_guard lock(mutex_);
      held_ = exchange;
    } else if (request.path == "/flood") {
      exchange->on_closed([this] { closed.set(); });
      exchange->begin_stream(text(200, ""));
      flood(exchange);
    } else if (request.path == "/background") {
      exchange->run_in_background([exchange, body = request.body] { exchange->send(text(200, body)); });
    } else if (request.path != "/forget") {
      exchange->send(text(200, request.body));
    }
  }
  HttpResponse protocol_error(int status, const std::string& message) override { return text(status, message); }

  void release(const std::string& body) {
    const std::lock_guard lock(mutex_);
    held_->send(text(200, body));
    held_.reset();
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    held_.reset();
  }

  Event held, closed;

 private:
  static HttpResponse text(int status, std::string body) {
    HttpResponse response;
    response.status = status;
    response.body = std::move(body);
    response.content_type = "text/plain";
    return response;
  }
  void flood(std::shared_ptr<HttpExchange> exchange) {
    for (int i = 0; i < 100; ++i) exchange->write(std::string(64 << 10, 'x'));
  }
  std::mutex mutex_;
  std::shared_ptr<HttpExchange> held_;
};

struct Service {
  explicit Service(HttpServerOptions options = {}) : server(options, handler) { server.start(); }
  HttpClient connect() { return HttpClient("127.0.0.1", server.port(), kLongMs); }
  void expect_works() {
    HttpClient client("127.0.0.1", server.port(), kLongMs);
    EXPECT_EQ(client.request("POST", "/echo", "still here").body, "still here");
  }
  EchoHandler handler;
  HttpServer server;
};

TEST(HttpServer, EchoesOnOneConnection) {
  Service service;
  HttpClient client("127.0.0.1", service.server.port());
  for (int i = 0; i < 3; ++i) {
    const HttpReply reply = client.request("POST", "/echo", "hello " + std::to_string(i));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "hello " + std::to_string(i));
    EXPECT_NE(reply.header("date"), "");
  }
  EXPECT_EQ(client.request("POST", "/background", "later").body, "later");
  EXPECT_EQ(client.request("POST", "/stream", "in pieces of three").body, "in pieces of three");
  EXPECT_EQ(client.request("GET", "/echo").body, "");
  EXPECT_EQ(client.request("HEAD", "/echo").header("content-length"), "0");
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  Service service;
  HttpClient client("127.0.0.1", service.server.port());
  std::string all;
  for (int i = 0; i < 20; ++i) {
    const std::string body = "number " + std::to_string(i);
    const char* path = i % 3 == 0 ? "/background" : i % 3 == 1 ? "/stream" : "/echo";
    all += fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}", path, body.size(), body);
  }
  client.send_raw(all);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.read_reply().body, "number " + std::to_string(i));
}

// Any split of the bytes into packets reads the same.
TEST(HttpServer, AnySplitOfTheBytes) {
  SCOPED_TRACE(testing::seed());
  Service service;
  Rng rng(testing::seed());
  const std::string request =
      "\r\nPOST /echo?x=1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\n\r\n";
  HttpClient client("127.0.0.1", service.server.port());
  for (int round = 0; round < 50; ++round) {
    std::string_view rest = request;
    while (!rest.empty()) {
      const size_t n = 1 + rng.below(static_cast<uint32_t>(rest.size()));
      client.send_raw(rest.substr(0, n));
      rest.remove_prefix(n);
    }
    EXPECT_EQ(client.read_reply().body, "abcde");
  }
}

TEST(HttpServer, BadRequestsAreRefusedAndTheNextWorks) {
  HttpServerOptions options;
  options.max_header_bytes = 2000;
  options.max_body_bytes = 1000;
  Service service(options);
  const std::string big(5000, 'a');
  const std::pair<std::string, int> cases[] = {
      {"nonsense\r\n\r\n", 400},
      {"GET /echo HTTP/9.9\r\n\r\n", 400},
      {"GET  HTTP/1.1\r\n\r\n", 400},
      {"GET nowhere HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /echo HTTP/1.1\r\nbad header\r\n\r\n", 400},
      {"GET /" + big + " HTTP/1.1\r\n\r\n", 431},
      {"GET / HTTP/1.1\r\nX: " + big + "\r\n\r\n", 431},
      {"POST /echo HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413},
      {"POST /echo HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + big, 413},
      {"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 400},
      {"POST /forbidden HTTP/1.1\r\nContent-Length: 900\r\n\r\nabc", 403},
      {"POST /echo HTTP/1.1\r\nExpect: miracles\r\nContent-Length: 3\r\n\r\nabc", 417},
      {std::string("\0\1\2\3\r\n\r\n", 8), 400},
  };
  for (const auto& [bytes, status] : cases) {
    SCOPED_TRACE(bytes.substr(0, 60));
    HttpClient client("127.0.0.1", service.server.port());
    client.send_raw(bytes);
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.status, status);
    EXPECT_NE(reply.body, "");
    EXPECT_EQ(reply.header("connection"), "close");
    EXPECT_TRUE(client.is_closed_by_peer());
    service.expect_works();
  }
}

TEST(HttpServer, RefusedWithoutBodyKeepsTheConnection) {
  Service service;
  HttpClient client("127.0.0.1", service.server.port());
  EXPECT_EQ(client.request("GET", "/forbidden").status, 403);
  EXPECT_EQ(client.request("POST", "/echo", "again").body, "again");
}

TEST(HttpServer, ExpectContinue) {
  Service service;
  HttpClient client("127.0.0.1", service.server.port());
  client.send_raw("POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 100);
  client.send_raw("abc");
  EXPECT_EQ(client.read_reply().body, "abc");
}

TEST(HttpServer, Http10ClosesAndStreamsPlain) {
  Service service;
  {
    HttpClient client("127.0.0.1", service.server.port());
    client.send_raw("POST /stream HTTP/1.0\r\nContent-Length: 7\r\n\r\nabcdefg");
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.body, "abcdefg");
    EXPECT_EQ(reply.header("transfer-encoding"), "");
  }
  HttpClient client("127.0.0.1", service.server.port());
  client.send_raw("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(client.read_reply().header("connection"), "keep-alive");
  EXPECT_EQ(client.request("POST", "/echo", "x").body, "x");
}

TEST(HttpServer, NoticesThatThePeerHasGone) {
  for (const bool hard : {false, true}) {
    Service service;
    HttpClient client("127.0.0.1", service.server.port());
    client.send_request("POST", "/hold", "x", {});
    ASSERT_TRUE(service.handler.held.wait());
    EXPECT_EQ(service.server.num_active_exchanges(), 1);
    hard ? client.reset() : client.close();
    EXPECT_TRUE(service.handler.closed.wait());
    EXPECT_TRUE(service.server.wait_until_quiet(kLongMs));
    service.handler.release("too late, and harmless");
    service.expect_works();
  }
}

TEST(HttpServer, NoticesThatThePeerHasGoneBehindAPipelinedRequest) {
  Service service;
  HttpClient client("127.0.0.1", service.server.port());
  client.send_raw("POST /hold HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET /echo HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(service.handler.held.wait());
  client.close();
  EXPECT_TRUE(service.handler.closed.wait());
}

TEST(HttpServer, DropsAReaderThatDoesNotRead) {
  HttpServerOptions options;
  options.max_unsent_bytes = 1 << 20;
  Service service(options);
  HttpClient client("127.0.0.1", service.server.port());
  client.send_request("POST", "/flood", "x", {});
  EXPECT_TRUE(service.handler.closed.wait());
  service.expect_works();
}

TEST(HttpServer, AForgottenRequestIsAnswered) {
  Service service;
  HttpClient client("127.0.0.1", service.server.port());
  EXPECT_EQ(client.request("POST", "/forget", "x").status, 500);
  EXPECT_EQ(client.request("POST", "/echo", "x").body, "x");
}

// An engine may let go of an answer when the server is long gone.
TEST(HttpServer, AnAnswerMayOutliveTheServer) {
  EchoHandler handler;
  {
    HttpServer server(HttpServerOptions{}, handler);
    server.start();
    HttpClient client("127.0.0.1", server.port(), kLongMs);
    client.send_request("POST", "/hold", "", {});
    ASSERT_TRUE(handler.held.wait());
  }
  handler.release("nobody reads this");
}

TEST(HttpServer, KeepAliveBytesWhileSilent) {
  Service service;
  HttpClient client("127.0.0.1", service.server.port());
  client.send_request("POST", "/quiet", "x", {});
  EXPECT_EQ(client.read_head().status, 200);
  std::string seen, piece;
  while (seen.size() < 6 && client.read_piece(&piece)) seen += piece;
  EXPECT_EQ(seen, ":\n\n:\n\n");
  service.handler.forget();
}

TEST(HttpServer, DeadlinesEndSlowRequests) {
  HttpServerOptions options;
  options.header_timeout_ms = options.body_timeout_ms = 30;
  options.idle_timeout_ms = 60;
  Service service(options);
  for (const char* bytes : {"GET /echo HT", "POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"}) {
    HttpClient client("127.0.0.1", service.server.port());
    client.send_raw(bytes);
    EXPECT_EQ(client.read_reply().status, 408);
  }
  HttpClient idle("127.0.0.1", service.server.port());
  EXPECT_TRUE(idle.is_closed_by_peer());
}

TEST(HttpServer, TooManyConnections) {
  HttpServerOptions options;
  options.max_connections = 2;
  Service service(options);
  HttpClient a("127.0.0.1", service.server.port()), b("127.0.0.1", service.server.port());
  EXPECT_EQ(a.request("POST", "/echo", "a").body, "a");
  EXPECT_EQ(b.request("POST", "/echo", "b").body, "b");
  HttpClient c("127.0.0.1", service.server.port());
  EXPECT_EQ(c.read_reply().status, 503);
  a.close();
  // The place is free once the server has seen the close, however many come in between.
  for (int i = 0;; ++i) {
    ASSERT_LT(i, 100'000);
    HttpClient d("127.0.0.1", service.server.port());
    try {
      if (d.request("POST", "/echo", "d").body == "d") break;
    } catch (const Error&) {
    }
  }
}

TEST(HttpServer, DrainAnswersWhatRunsThenCloses) {
  Service service;
  HttpClient idle("127.0.0.1", service.server.port()), busy("127.0.0.1", service.server.port());
  EXPECT_EQ(idle.request("POST", "/echo", "a").body, "a");
  busy.send_request("POST", "/hold", "x", {});
  ASSERT_TRUE(service.handler.held.wait());
  service.server.begin_close();
  EXPECT_TRUE(idle.is_closed_by_peer());
  EXPECT_FALSE(service.server.wait_until_quiet(1));
  service.handler.release("done");
  const HttpReply reply = busy.read_reply();
  EXPECT_EQ(reply.body, "done");
  EXPECT_EQ(reply.header("connection"), "close");
  EXPECT_TRUE(service.server.wait_until_quiet(kLongMs));
  service.server.stop();
}

TEST(HttpServer, ATakenPortIsSaid) {
  Service service;
  HttpServerOptions options;
  options.port = service.server.port();
  EchoHandler handler;
  try {
    HttpServer second(options, handler);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("taken"), std::string::npos) << error.what();
  }
}

TEST(HttpServer, ManyClientsAtOnce) {
  SCOPED_TRACE(testing::seed());
  Service service;
  std::atomic<int> num_right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(testing::seed(), static_cast<uint64_t>(t));
      HttpClient client("127.0.0.1", service.server.port());
      for (int i = 0; i < 50; ++i) {
        const std::string body(1 + rng.below(40000), static_cast<char>('a' + rng.below(26)));
        const char* paths[] = {"/echo", "/stream", "/background"};
        num_right += client.request("POST", paths[rng.below(3)], body).body == body;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_right, 400);
}

TEST(Url, SplitsTargets) {
  std::string path, query;
  EXPECT_TRUE(split_target("/a%2Fb%20c?x=%20", &path, &query));
  EXPECT_EQ(path, "/a/b c");
  EXPECT_EQ(query, "x=%20");
  EXPECT_TRUE(split_target("http://host:80/v1/models", &path, &query));
  EXPECT_EQ(path, "/v1/models");
  EXPECT_TRUE(split_target("http://host", &path, &query));
  EXPECT_EQ(path, "/");
  for (const char* bad : {"", "a", "/%", "/%1", "/%g0", "/%00", "/a\rb", "/a\nb"})
    EXPECT_FALSE(split_target(bad, &path, &query)) << bad;
  EXPECT_FALSE(split_target(std::string_view("/a\0b", 4), &path, &query));
}

TEST(EventReader, SplitsEventsAnywhere) {
  const std::string bytes = ": hello\n\ndata: {\"a\":1}\n\ndata: [DONE]\n\n";
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    EventReader reader;
    std::vector<std::string> events;
    reader.push(bytes.substr(0, cut), &events);
    reader.push(bytes.substr(cut), &events);
    EXPECT_EQ(events, (std::vector<std::string>{"{\"a\":1}", "[DONE]"}));
  }
}

}  // namespace
}  // namespace cadre
