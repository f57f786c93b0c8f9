// Disconnects in every state, full queues, loading, draining, metrics: nothing leaks, and the next request works.
#include <atomic>
#include <thread>

#include "base/rng.h"
#include "server/api_test_server.h"
#include "tests/testing.h"

namespace cadre::testing {
namespace {

const char* kChat = "/v1/chat/completions";
const char* kCompletion = "/v1/completions";

std::string completion(const std::string& prompt, const std::string& more = "") {
  return R"({"model":"scripted","prompt":")" + prompt + "\"" + (more.empty() ? "" : "," + more) + "}";
}

// Value of a metric line that starts with `name`; -1 when there is none.
double metric(TestServer& server, const std::string& name) {
  const std::string text = server.request("GET", "/metrics").body;
  const size_t at = text.find("\n" + name);
  if (at == std::string::npos) return -1;
  const size_t end = text.find('\n', at + 1);
  return std::stod(text.substr(text.rfind(' ', end), end));
}

class Disconnect : public ::testing::TestWithParam<bool> {};  // streaming or not

INSTANTIATE_TEST_SUITE_P(BothModes, Disconnect, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Stream" : "Whole"; });

TEST_P(Disconnect, WhileDecoding) {
  TestServer server;
  HttpClient client("127.0.0.1", server.port());
  server.gate.shut();
  client.send_request("POST", kCompletion, completion("<<loop ab>>", GetParam() ? R"("stream":true)" : ""), {});
  server.gate.wait_for_arrivals(1);
  server.gate.allow(3);
  server.gate.wait_for_arrivals(4);
  client.close();
  EXPECT_TRUE(server.http().wait_until_quiet(20'000));
  server.gate.open();
  server.expect_idle();
  EXPECT_EQ(server.controller().stats(0).num_cancelled_decode, 1u);
  EXPECT_LT(server.controller().stats(0).num_generated_tokens, 20u);
  server.expect_works();
}

TEST_P(Disconnect, WhilePrefilling) {
  TestServerOptions options;
  options.engine.max_num_batched_tokens = 16;
  TestServer server(options);
  server.gate.shut();
  HttpClient client("127.0.0.1", server.port());
  client.send_request("POST", kCompletion, completion(std::string(500, 'x'), GetParam() ? R"("stream":true)" : ""), {});
  server.gate.wait_for_arrivals(1);
  server.gate.allow(2);
  server.gate.wait_for_arrivals(3);
  client.close();
  EXPECT_TRUE(server.http().wait_until_quiet(20'000));
  server.gate.open();
  server.expect_idle();
  EXPECT_EQ(server.controller().stats(0).num_cancelled_prefill, 1u);
  server.expect_works();
}

TEST_P(Disconnect, WhileWaiting) {
  TestServerOptions options;
  options.engine.max_num_seqs = 1;
  TestServer server(options);
  server.gate.shut();
  HttpClient first("127.0.0.1", server.port()), second("127.0.0.1", server.port());
  first.send_request("POST", kCompletion, completion("<<say first>>"), {});
  server.gate.wait_for_arrivals(1);
  server.gate.allow(1);
  server.gate.wait_for_arrivals(2);  // it runs, and the controller knows
  second.send_request("POST", kCompletion, completion("<<loop ab>>", GetParam() ? R"("stream":true)" : ""), {});
  while (server.controller().stats(0).num_waiting < 1) std::this_thread::yield();
  server.gate.allow(1);
  server.gate.wait_for_arrivals(3);
  second.close();
  while (server.http().num_active_exchanges() > 1) std::this_thread::yield();
  server.gate.open();
  EXPECT_EQ(parse_json(first.read_reply().body, "reply").at("choices").at(0).at("text"), "first");
  server.expect_idle();
  EXPECT_EQ(server.controller().stats(0).num_cancelled_waiting, 1u);
  server.expect_works();
}

TEST_P(Disconnect, AtRandomMoments) {
  SCOPED_TRACE(seed());
  TestServerOptions options;
  options.engine.max_num_seqs = 4;
  options.engine.num_kv_blocks = 64;
  TestServer server(options);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Rng rng(seed(), static_cast<uint64_t>(t));
      for (int i = 0; i < 40; ++i) {
        HttpClient client("127.0.0.1", server.port());
        const std::string prompt(1 + rng.below(300), 'p');
        client.send_request(
            "POST", kCompletion,
            completion(prompt, fmt::format(R"("max_tokens":{},"n":{},"ignore_eos":true{})", 1 + rng.below(200),
                                           1 + rng.below(3), GetParam() ? R"(,"stream":true)" : "")),
            {});
        std::string piece;
        switch (rng.below(4)) {
          case 0:
            client.reset();
            break;
          case 1:
            client.read_head();
            for (uint32_t n = rng.below(6); n > 0 && client.read_piece(&piece); --n) {
            }
            break;
          case 2:
            EXPECT_EQ(client.read_reply().status, 200);
            break;
          default:
            break;  // closes at once
        }
      }
    });
  for (auto& thread : threads) thread.join();
  server.expect_idle();
  server.expect_works();
}

TEST(Disconnect, OfABatchCancelsAllOfIt) {
  TestServer server;
  server.gate.shut();
  HttpClient client("127.0.0.1", server.port());
  client.send_request("POST", kCompletion,
                      R"({"model":"scripted","prompt":["<<loop a>>","<<loop b>>","<<loop c>>"],"n":2})", {});
  server.gate.wait_for_arrivals(1);
  const auto num_in = [&] { return server.controller().stats(0).num_waiting + server.controller().stats(0).num_running; };
  while (num_in() < 6) std::this_thread::yield();  // the first may run already, the others wait
  client.close();
  EXPECT_TRUE(server.http().wait_until_quiet(20'000));
  server.gate.open();
  server.expect_idle();
  EXPECT_EQ(server.controller().stats(0).num_cancelled, 6u);
}

TEST(Disconnect, OfAReaderThatDoesNotRead) {
  TestServerOptions options;
  options.http.max_unsent_bytes = 100'000;
  options.model.max_position = 1 << 20;
  options.engine.num_kv_blocks = 1 << 16;
  TestServer server(options);
  HttpClient client("127.0.0.1", server.port());
  client.send_request("POST", kCompletion, completion("<<loop ab>>", R"("stream":true,"logprobs":20)"), {});
  server.gate.wait_for_arrivals(1);
  // The model goes on until the bound is passed and the request is dropped.
  server.expect_idle();
  EXPECT_EQ(server.controller().stats(0).num_cancelled_decode, 1u);
  server.expect_works();
}

TEST(Queue, FullIs429WithRetryAfter) {
  TestServerOptions options;
  options.engine.max_num_seqs = 1;
  options.controller.max_queued_requests = 2;
  TestServer server(options);
  server.gate.shut();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpClient>("127.0.0.1", server.port()));
    clients.back()->send_request("POST", kCompletion, completion("<<say x>>"), {});
    if (i == 0) {
      server.gate.wait_for_arrivals(1);
      server.gate.allow(1);
      server.gate.wait_for_arrivals(2);  // it runs, and the controller knows
    } else {
      while (server.controller().stats(0).num_waiting < i) std::this_thread::yield();
    }
  }
  // The choices of a request count, in a stream as well as in a whole answer.
  for (const char* more : {"", R"("stream":true)", R"("n":5)"}) {
    const HttpReply reply = server.request("POST", kCompletion, completion("<<say y>>", more));
    EXPECT_EQ(reply.status, 429);
    EXPECT_NE(reply.header("retry-after"), "");
    TestServer::check_error(reply);
  }
  server.gate.open();
  for (auto& client : clients) EXPECT_EQ(client->read_reply().status, 200);
  server.expect_idle();
  server.expect_works();
}

// A batch of which only part fits is refused as a whole.
TEST(Queue, ABatchIsAdmittedWhollyOrNot) {
  TestServerOptions options;
  options.engine.max_num_seqs = 1;
  options.controller.max_queued_requests = 2;
  TestServer server(options);
  server.gate.shut();
  HttpClient first("127.0.0.1", server.port());
  first.send_request("POST", kCompletion, completion("<<say x>>"), {});
  server.gate.wait_for_arrivals(1);
  EXPECT_EQ(server.request("POST", kCompletion, R"({"model":"scripted","prompt":["a","b","c","d"]})").status, 429);
  server.gate.open();
  EXPECT_EQ(first.read_reply().status, 200);
  server.expect_idle();
}

TEST(Readiness, LoadingIs503) {
  SteadyClock clock;
  ApiService service({}, clock);
  HttpServer http({}, service);
  http.start();
  HttpClient client("127.0.0.1", http.port());
  for (const char* path : {"/health", "/v1/models"}) {
    const HttpReply reply = client.request("GET", path);
    EXPECT_EQ(reply.status, 503);
    TestServer::check_error(reply);
  }
  EXPECT_EQ(client.request("POST", kChat, "{}").status, 503);
  EXPECT_EQ(client.request("GET", "/metrics").status, 200);
}

TEST(Drain, FinishesWhatRunsAndRefusesTheRest) {
  TestServer server;
  server.gate.shut();
  HttpClient running("127.0.0.1", server.port());
  running.send_request("POST", kCompletion, completion("<<say to the end>>", R"("stream":true)"), {});
  server.gate.wait_for_arrivals(1);
  server.service().begin_drain();
  server.http().begin_close();
  server.controller().begin_drain();
  for (const char* path : {kCompletion, kChat, "/tokenize"}) server.refused(path, completion("x"), 503);
  EXPECT_EQ(server.request("GET", "/health").status, 503);
  EXPECT_EQ(server.request("GET", "/metrics").status, 200);
  server.gate.open();
  const StreamResult result = TestServer::read_stream(running);
  EXPECT_TRUE(result.is_done);
  std::string text;
  for (const json::value& event : result.events) text += str(event.at("choices").at(0).at("text"));
  EXPECT_EQ(text, "to the end");
  server.expect_idle();
}

TEST(Drain, CancelAllTellsTheClients) {
  TestServer server;
  server.gate.shut();
  HttpClient stream("127.0.0.1", server.port()), whole("127.0.0.1", server.port());
  stream.send_request("POST", kCompletion, completion("<<loop a>>", R"("stream":true)"), {});
  whole.send_request("POST", kCompletion, completion("<<loop a>>"), {});
  server.gate.wait_for_arrivals(1);
  // Both have been submitted: a request that cancel_all() meets before that is refused, not cancelled.
  while (server.controller().stats(0).num_running + server.controller().stats(0).num_waiting < 2)
    std::this_thread::yield();
  server.gate.allow(2);
  server.gate.wait_for_arrivals(3);
  server.service().begin_drain();
  server.service().cancel_all();
  server.gate.open();
  const StreamResult result = TestServer::read_stream(stream);
  EXPECT_FALSE(result.is_done);
  EXPECT_TRUE(result.events.back().as_object().contains("error"));
  EXPECT_EQ(whole.read_reply().status, 503);
  server.expect_idle();
}

TEST(Drain, CancelAllRefusesWhatHadPassedTheCheck) {
  TestServer server;
  server.service().cancel_all();  // without begin_drain(): as if the request had been checked before it
  server.refused(kCompletion, completion("<<say ok>>"), 503);
  server.expect_idle();
}

TEST(Metrics, CountWhatHappened) {
  TestServer server;
  server.post(kCompletion, completion("<<say abc>>"));
  server.post(kCompletion, completion("<<loop abc>>", R"("max_tokens":5,"n":2)"));
  server.refused(kCompletion, "{", 400);
  server.expect_idle();
  const HttpReply reply = server.request("GET", "/metrics");
  EXPECT_TRUE(reply.header("content-type").starts_with("text/plain"));
  EXPECT_EQ(metric(server, R"(cadre:num_requests_running{)"), 0);
  EXPECT_EQ(metric(server, R"(cadre:num_requests_waiting{)"), 0);
  EXPECT_EQ(metric(server, R"(cadre:kv_cache_usage_perc{)"), 0);
  EXPECT_EQ(metric(server, R"(cadre:request_success_total{finished_reason="stop"})"), 1);
  EXPECT_EQ(metric(server, R"(cadre:request_success_total{finished_reason="length"})"), 2);
  EXPECT_EQ(metric(server, R"(cadre:generation_tokens_total{)"), 14);
  EXPECT_EQ(metric(server, R"(cadre:time_to_first_token_seconds_count)"), 3);
  EXPECT_EQ(metric(server, R"(cadre:inter_token_latency_seconds_count)"), 11);
  EXPECT_EQ(metric(server, R"(cadre:e2e_request_latency_seconds_count)"), 2);
  EXPECT_EQ(metric(server, R"(cadre:http_requests_total{route="/v1/completions",status="200"})"), 2);
  EXPECT_EQ(metric(server, R"(cadre:http_requests_total{route="/v1/completions",status="400"})"), 1);
  EXPECT_GE(metric(server, R"(cadre:request_aborts_total{engine="0",model_name="scripted",phase="decode"})"), 0);
  EXPECT_GE(metric(server, R"(cadre:num_preemptions_total{)"), 0);
}

TEST(Ranks, RequestsSpreadAndMetricsTellThemApart) {
  TestServerOptions options;
  options.num_ranks = 2;
  TestServer server(options);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] { server.post(kCompletion, completion(fmt::format("<<say number {}>>", i))); });
  for (auto& thread : threads) thread.join();
  EXPECT_GE(metric(server, R"(cadre:generation_tokens_total{engine="1")"), 0);
  server.expect_idle();
}

}  // namespace
}  // namespace cadre::testing
