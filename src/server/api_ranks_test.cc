// Requests that name their rank, answers that tell it, and what the server says of its ranks.
#include <thread>

#include "server/api_test_server.h"

namespace cadre::testing {
namespace {

const char* kChat = "/v1/chat/completions";
const char* kCompletion = "/v1/completions";

std::string completion(const std::string& more) { return R"({"model":"scripted","prompt":"<<say ok>>")" + (more.empty() ? "" : "," + more) + "}"; }
std::string chat(const std::string& more) {
  return R"({"model":"scripted","messages":[{"role":"user","content":"<<say ok>>"}])" + (more.empty() ? "" : "," + more) + "}";
}

TestServerOptions ranks(int num_ranks, LoadBalance method = LoadBalance::kTotalTokens) {
  TestServerOptions options;
  options.num_ranks = num_ranks;
  options.controller.load_balance = method;
  return options;
}

std::string served_by(TestServer& server, const std::string& path, const std::string& body, const HttpHeaders& headers = {}) {
  const HttpReply reply = server.request("POST", path, body, headers);
  EXPECT_EQ(reply.status, 200) << reply.body;
  return std::string(reply.header("x-data-parallel-rank"));
}

TEST(RankPin, BodyOrHeaderChooseTheRankOfAnyAnswer) {
  TestServer server(ranks(3));
  for (const int rank : {2, 0, 1, 1}) {
    const std::string name = std::to_string(rank), field = R"("data_parallel_rank":)" + name;
    EXPECT_EQ(served_by(server, kCompletion, completion(field)), name);
    EXPECT_EQ(served_by(server, kChat, chat(field)), name);
    EXPECT_EQ(served_by(server, kCompletion, completion(""), {{"X-Data-Parallel-Rank", name}}), name);
    EXPECT_EQ(served_by(server, kChat, chat(R"("data_parallel_rank":null)"), {{"x-data-parallel-rank", name}}), name);
    EXPECT_EQ(served_by(server, kChat, chat(field), {{"X-Data-Parallel-Rank", name}}), name);
    for (const std::string& more : {field + R"(,"stream":true)", field + R"(,"stream":true,"n":3)"})
      for (const char* path : {kCompletion, kChat}) {
        const StreamResult result = server.stream(path, path == kChat ? chat(more) : completion(more));
        EXPECT_EQ(result.head.status, 200);
        EXPECT_EQ(result.head.header("x-data-parallel-rank"), name);
        EXPECT_TRUE(result.is_done);
      }
  }
  server.expect_idle();
}

TEST(RankPin, AllChoicesAndPromptsGoThere) {
  TestServer server(ranks(3));
  EXPECT_EQ(served_by(server, kCompletion, R"({"model":"scripted","prompt":["<<say a>>","<<say b>>","<<say c>>","<<say d>>"],"n":2,"data_parallel_rank":1})"), "1");
  server.expect_idle();
  EXPECT_EQ(server.controller().status(1).num_assigned, 4u);
  EXPECT_EQ(server.controller().stats(1).num_finished_stop, 8u);
  for (const int other : {0, 2}) EXPECT_EQ(server.controller().status(other).num_assigned, 0u);
  // Without a pin they spread, and the header names every rank once.
  EXPECT_EQ(served_by(server, kCompletion, R"({"model":"scripted","prompt":["<<say a>>","<<say b>>","<<say c>>","<<say d>>"]})"), "0, 1, 2");
  server.expect_idle();
}

TEST(RankPin, WhatIsNoRankIsRefusedWithTheRange) {
  TestServer server(ranks(3));
  for (const char* value : {"3", "-1", "1.5", "\"1\"", "true", "[1]", "18446744073709551615", "1e30"})
    for (const char* path : {kCompletion, kChat}) {
      const std::string field = std::string(R"("data_parallel_rank":)") + value;
      const json::object error = server.refused(path, path == kChat ? chat(field) : completion(field), 400);
      EXPECT_EQ(error.at("param"), "data_parallel_rank");
      EXPECT_NE(str(error.at("message")).find("from 0 to 2"), std::string::npos) << str(error.at("message"));
    }
  for (const char* value : {"3", "-1", "1.5", "one", "+1", "0x1", "1,2", "99999999999999999999"}) {
    const json::object error = server.refused(kCompletion, completion(""), 400, {{"X-Data-Parallel-Rank", value}});
    EXPECT_NE(str(error.at("message")).find("from 0 to 2"), std::string::npos) << str(error.at("message"));
  }
  for (const HttpHeaders& headers : {HttpHeaders{{"X-Data-Parallel-Rank", "2"}}, HttpHeaders{{"X-Data-Parallel-Rank", "1"}, {"X-Data-Parallel-Rank", "2"}}}) {
    const json::object error = server.refused(kChat, chat(R"("data_parallel_rank":1)"), 400, headers);
    EXPECT_NE(str(error.at("message")).find("found 1 and 2"), std::string::npos) << str(error.at("message"));
  }
  EXPECT_EQ(server.request("POST", kChat, chat(""), {{"X-Data-Parallel-Rank", ""}}).status, 200);  // says nothing
  server.expect_idle();
  TestServer one;
  EXPECT_EQ(served_by(one, kChat, chat(R"("data_parallel_rank":0)")), "0");
  one.refused(kChat, chat(R"("data_parallel_rank":1)"), 400);
}

TEST(BootstrapRoom, IsFollowedAndNeededWhereTheServerFollowsIt) {
  TestServer server(ranks(3, LoadBalance::kFollowBootstrapRoom));
  for (const auto& [room, rank] : {std::pair{"0", "0"}, {"5", "2"}, {"9223372036854775807", "1"}}) {
    EXPECT_EQ(served_by(server, kCompletion, completion(std::string(R"("bootstrap_room":)") + room)), rank);
    EXPECT_EQ(served_by(server, kChat, chat(std::string(R"("bootstrap_room":)") + room)), rank);
  }
  EXPECT_EQ(served_by(server, kChat, chat(R"("data_parallel_rank":1)")), "1");
  for (const char* more : {"", R"("bootstrap_room":null)", R"("bootstrap_room":-1)", R"("bootstrap_room":"5")", R"("bootstrap_room":[5])"}) {
    const json::object error = server.refused(kCompletion, completion(more), 400);
    EXPECT_EQ(error.at("param"), "bootstrap_room") << more;
  }
  server.expect_idle();
  TestServer plain(ranks(2));
  EXPECT_EQ(served_by(plain, kChat, chat(R"("bootstrap_room":5)")), "0");
  plain.refused(kChat, chat(R"("bootstrap_room":0.5)"), 400);
}

TEST(ServerInfo, TellsLayoutLimitsAndEveryRank) {
  TestServerOptions options = ranks(2, LoadBalance::kRoundRobin);
  options.api.version = "9.9";
  options.api.api_keys = {"key"};
  options.layout = {{"world", 2}, {"attn_dp", 2}, {"exchange", "alltoall"}};
  options.engine.max_prefill_tokens_per_step = 64;
  options.controller.max_queued_requests = 77;
  TestServer server(options);
  EXPECT_EQ(server.request("GET", "/server_info").status, 401);
  const HttpHeaders key{{"Authorization", "Bearer key"}};
  EXPECT_EQ(server.request("POST", "/server_info", "{}", key).status, 405);
  EXPECT_EQ(server.request("POST", kCompletion, completion(R"("data_parallel_rank":1,"n":2)"), key).status, 200);
  EXPECT_EQ(server.request("POST", kCompletion, completion(""), key).status, 200);
  server.expect_idle();
  const json::object info = parse_json(server.request("GET", "/server_info", {}, key).body, "reply").as_object();
  EXPECT_EQ(info.at("version"), "9.9");
  EXPECT_EQ(info.at("model"), "scripted");
  EXPECT_EQ(info.at("status"), "serving");
  EXPECT_EQ(info.at("load_balance_method"), "round_robin");
  EXPECT_EQ(info.at("layout").at("exchange"), "alltoall");
  EXPECT_EQ(info.at("limits").at("max_model_len"), 4096);
  EXPECT_EQ(info.at("limits").at("max_queued_requests"), 77);
  EXPECT_EQ(info.at("limits").at("max_prefill_tokens_per_step"), 64);
  const json::array& all = info.at("ranks").as_array();
  ASSERT_EQ(all.size(), 2u);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(all[r].at("rank"), r);
    EXPECT_EQ(all[r].at("healthy"), true);
    EXPECT_EQ(all[r].at("requests_assigned"), 1);
    EXPECT_EQ(all[r].at("free_kv_blocks"), 512);
    EXPECT_EQ(all[r].at("total_kv_blocks"), 512);
    EXPECT_EQ(all[r].at("prompt_tokens"), 11);
    EXPECT_EQ(all[r].at("generated_tokens"), r == 1 ? 6 : 3);
    for (const char* zero : {"running", "waiting", "running_tokens", "waiting_tokens"}) EXPECT_EQ(all[r].at(zero), 0) << zero;
    EXPECT_EQ(all[r].at("load").at("tokens"), 0);
  }
  server.service().begin_drain();
  EXPECT_EQ(parse_json(server.request("GET", "/server_info", {}, key).body, "reply").at("status"), "draining");
}

TEST(ServerInfo, IsUnavailableWhileTheModelLoads) {
  SteadyClock clock;
  ApiService service({}, clock);
  HttpServer http({}, service);
  http.start();
  EXPECT_EQ(HttpClient("127.0.0.1", http.port()).request("GET", "/server_info").status, 503);
}

TEST(ServerInfo, ShowsWhatRunsAndWaits) {
  TestServerOptions options = ranks(2);
  options.engine.max_num_seqs = 1;
  TestServer server(options);
  server.gate.shut();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(std::make_unique<HttpClient>("127.0.0.1", server.port()));
    clients.back()->send_request("POST", kCompletion, completion(R"("data_parallel_rank":1)"), {});
    if (i == 0) server.gate.wait_for_arrivals(1);
  }
  while (server.controller().stats(1).num_waiting < 1) std::this_thread::yield();
  const json::value info = parse_json(server.request("GET", "/server_info").body, "reply");
  const json::value& rank = info.at("ranks").at(1);
  EXPECT_EQ(rank.at("running"), 1);
  EXPECT_EQ(rank.at("waiting"), 1);
  EXPECT_EQ(rank.at("running_tokens"), 11);
  EXPECT_EQ(rank.at("waiting_tokens"), 11);
  EXPECT_EQ(rank.at("load").at("tokens"), 22);
  EXPECT_EQ(rank.at("load").at("requests"), 2);
  EXPECT_EQ(info.at("ranks").at(0).at("running"), 0);
  server.gate.open();
  for (auto& client : clients) EXPECT_EQ(client->read_reply().status, 200);
}

TEST(Health, NamesTheRankThatMakesNoSteps) {
  static ManualClock manual;  // outlives the controller
  TestServerOptions options = ranks(3);
  options.controller.step_timeout_us = 1000;
  options.controller.clock = &manual;
  TestServer server(options);
  EXPECT_EQ(server.request("GET", "/health").status, 200);
  server.gate.shut();
  HttpClient client("127.0.0.1", server.port());
  client.send_request("POST", kCompletion, completion(R"("data_parallel_rank":1)"), {});
  server.gate.wait_for_arrivals(1);
  manual.advance_us(2000);
  const HttpReply reply = server.request("GET", "/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(str(TestServer::check_error(reply).at("message")).find("found 1 of 3 that make none (rank 1)"), std::string::npos) << reply.body;
  const std::string metrics = server.request("GET", "/metrics").body;
  for (const char* line : {R"(cadre:rank_healthy{engine="0",model_name="scripted"} 1)", R"(cadre:rank_healthy{engine="1",model_name="scripted"} 0)",
                           R"(cadre:requests_assigned_total{engine="1",model_name="scripted"} 1)", R"(cadre:num_running_tokens{engine="1",model_name="scripted"} 11)"})
    EXPECT_NE(metrics.find(line), std::string::npos) << line << "\n" << metrics;
  const json::value info = parse_json(server.request("GET", "/server_info").body, "reply");
  EXPECT_EQ(info.at("ranks").at(1).at("healthy"), false);
  EXPECT_EQ(info.at("ranks").at(2).at("healthy"), true);
  server.gate.open();
  EXPECT_EQ(client.read_reply().status, 200);
  server.expect_idle();
  EXPECT_EQ(server.request("GET", "/health").status, 200);
}

class FakeExperts final : public ExpertAdmin {
 public:
  json::object placement() const override { return {{"placed", body_}}; }
  json::object place(const std::string& body) override {
    if (body == "bad") throw invalid_input("placement: expected a good one, found a bad one; mend it");
    body_ = body;
    return {{"accepted", true}};
  }
  json::object start_recording(const std::string& body) override { return {{"started", body}}; }
  json::object stop_recording() override { return {{"stopped", true}}; }
  json::object distribution() const override { return {{"steps", 3}}; }
  std::string dump() const override { return "{\"a\":1}\n{\"b\":2}\n"; }
  std::optional<ExpertMetrics> metrics() const override {
    return ExpertMetrics{.balancedness = 0.75, .num_rebalances = 2, .num_moved_bytes = 12345, .rows_of_rank = {10, 30}, .waited_seconds_of_rank = {0.5, 0},
                         .balancedness_by_rows = {{0.5, 0.9}, {1, 4, 2}, 5.25}, .stall_seconds_of_steps = {{0.1}, {0, 0}, 0}};
  }

 private:
  std::string body_;
};

TEST(ExpertDistributionRoute, StartsStopsReadsAndDumpsUnderBothNames) {
  TestServerOptions options;
  options.experts = std::make_shared<FakeExperts>();
  TestServer server(options);
  EXPECT_EQ(server.request("POST", "/expert_distribution/start", R"({"mode":"stat"})", {}).body, R"({"started":"{\"mode\":\"stat\"}"})");
  EXPECT_EQ(server.request("POST", "/start_expert_distribution_record", "", {}).body, R"({"started":""})");
  for (const char* path : {"/expert_distribution/stop", "/stop_expert_distribution_record"}) EXPECT_EQ(server.request("POST", path, "", {}).body, R"({"stopped":true})");
  for (const char* path : {"/expert_distribution/dump", "/dump_expert_distribution_record"}) EXPECT_EQ(server.request("POST", path, "", {}).body, "{\"a\":1}\n{\"b\":2}\n");
  EXPECT_EQ(server.request("GET", "/expert_distribution", "", {}).body, R"({"steps":3})");
  EXPECT_EQ(server.request("GET", "/expert_distribution/start", "", {}).status, 405);
}

TEST(ExpertMetrics, AreShownWhereExpertsMove) {
  TestServerOptions options;
  options.experts = std::make_shared<FakeExperts>();
  TestServer server(options);
  const std::string text = server.request("GET", "/metrics", "", {}).body;
  for (const char* line : {"cadre:expert_balancedness{model_name=\"scripted\"} 0.75",
                           "cadre:expert_rows_total{model_name=\"scripted\",rank=\"1\"} 30",
                           "cadre:expert_imbalance_seconds_total{model_name=\"scripted\",rank=\"0\"} 0.5",
                           "cadre:eplb_rebalances_total{model_name=\"scripted\"} 2",
                           "cadre:eplb_moved_bytes_total{model_name=\"scripted\"} 12345", "cadre:eplb_stall_seconds_total{model_name=\"scripted\"} 0",
                           "cadre:expert_balancedness_of_steps_bucket{model_name=\"scripted\",le=\"0.9\"} 5", "cadre:expert_balancedness_of_steps_bucket{model_name=\"scripted\",le=\"+Inf\"} 7",
                           "cadre:expert_balancedness_of_steps_sum{model_name=\"scripted\"} 5.25", "cadre:eplb_step_stall_seconds_count{model_name=\"scripted\"} 0"})
    EXPECT_NE(text.find(std::string(line) + "\n"), std::string::npos) << line << "\n" << text;
  TestServer plain;
  EXPECT_EQ(plain.request("GET", "/metrics", "", {}).body.find("cadre:expert"), std::string::npos);
}

TEST(ExpertPlacementRoute, ReadsAndSetsWhereExpertsMove) {
  TestServerOptions options;
  options.experts = std::make_shared<FakeExperts>();
  TestServer server(options);
  EXPECT_EQ(server.request("PUT", "/expert_placement", "new", {}).status, 200);
  const HttpReply read = server.request("GET", "/expert_placement", "", {});
  EXPECT_EQ(read.status, 200);
  EXPECT_EQ(read.body, R"({"placed":"new"})");
  const HttpReply bad = server.request("PUT", "/expert_placement", "bad", {});
  EXPECT_EQ(bad.status, 400);
  EXPECT_NE(bad.body.find("expected a good one"), std::string::npos) << bad.body;
  EXPECT_EQ(server.request("POST", "/expert_placement", "new", {}).status, 405);
  EXPECT_EQ(server.request("GET", "/expert_placement", "", {}).body, R"({"placed":"new"})") << "what was refused changed nothing";
}

TEST(ExpertPlacementRoute, SaysSoOfADenseModel) {
  TestServer server;
  for (const char* method : {"GET", "PUT"}) {
    const HttpReply reply = server.request(method, "/expert_placement", "", {});
    EXPECT_EQ(reply.status, 400);
    EXPECT_NE(reply.body.find("found a dense one"), std::string::npos) << reply.body;
  }
}

}  // namespace
}  // namespace cadre::testing
