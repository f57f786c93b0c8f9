// A whole server for tests: scripted byte model, controller, API and HTTP on a free loopback port. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "dp/controller.h"
#include "server/api_service.h"
#include "server/http_client.h"
#include "server/http_server.h"
#include "server/json_text.h"
#include "tests/support/scripted_model.h"
#include "tokenizer/byte_tokenizer.h"

namespace cadre::testing {

// Holds the model's steps until the test opens it.
class StepGate {
 public:
  void arrive() {
    std::unique_lock lock(mutex_);
    ++num_arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_open_ || num_allowed_ > 0; });
    if (!is_open_) --num_allowed_;
  }
  void shut() {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void allow(int64_t count) {
    const std::lock_guard lock(mutex_);
    num_allowed_ += count;
    changed_.notify_all();
  }
  // Returns once `count` steps in all have begun.
  void wait_for_arrivals(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_arrived_ >= count; });
  }
  int64_t num_arrived() {
    const std::lock_guard lock(mutex_);
    return num_arrived_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_arrived_ = 0, num_allowed_ = 0;
  bool is_open_ = true;
};

struct StreamResult {
  HttpReply head;
  std::vector<json::value> events;  // without the end mark
  bool is_done = false;             // the end mark came, and last
  std::string raw;
};

struct TestServerOptions {
  ScriptedModelOptions model;
  EngineOptions engine{.num_kv_blocks = 512, .eos_ids = {257}};
  ControllerOptions controller;
  ApiServiceOptions api;
  HttpServerOptions http;
  SamplingDefaults defaults;
  int num_ranks = 1;
  json::object layout;
  std::shared_ptr<ExpertAdmin> experts;
  bool has_chat_template = true;
};

// What ByteTokenizer's own chat template renders.
inline std::string render_test_chat(const json::object& variables) {
  std::string text = std::string(variables.at("bos_token").as_string());
  for (const json::value& message : variables.at("messages").as_array()) {
    const json::object& m = message.as_object();
    const json::string& role = m.at("role").as_string();
    if (role == "tool") throw Error(ErrorKind::kInvalidInput, "the template knows no tools");
    const json::value* content = m.if_contains("content");
    text += std::string(role) + ": " + (content && content->is_string() ? std::string(content->get_string()) : "None") +
            "\n";
  }
  if (variables.at("add_generation_prompt").as_bool()) text += "assistant: ";
  return text;
}

class TestServer {
 public:
  explicit TestServer(TestServerOptions options = {}) : service_(options.api, clock_) {
    auto tokenizer = std::make_shared<ByteTokenizer>();
    std::vector<std::unique_ptr<Engine>> engines;
    auto before = options.model.before_forward;
    options.model.before_forward = [this, before](const StepInput& input) {
      if (before) before(input);
      gate.arrive();
    };
    for (int rank = 0; rank < options.num_ranks; ++rank)
      engines.push_back(
          std::make_unique<Engine>(std::make_unique<ScriptedModel>(options.model), tokenizer, options.engine, clock_));
    controller_ = std::make_unique<Controller>(std::move(engines), options.controller);
    auto model = std::make_shared<ServedModel>();
    model->names = {"scripted", "an/alias"};
    model->tokenizer = tokenizer;
    if (options.has_chat_template) model->render_chat = render_test_chat;
    model->chat_template = tokenizer->chat_template();
    model->vocab_size = controller_->engine(0).vocab_size();
    model->max_model_len = controller_->engine(0).max_model_len();
    model->created_unix_s = 1'700'000'000;
    model->defaults = options.defaults;
    model->layout = options.layout;
    model->experts = options.experts;
    service_.set_ready(model, *controller_);
    http_ = std::make_unique<HttpServer>(options.http, service_);
    http_->start();
  }
  ~TestServer() {
    gate.open();
    http_->stop();
  }

  uint16_t port() const { return http_->port(); }
  Controller& controller() { return *controller_; }
  ApiService& service() { return service_; }
  HttpServer& http() { return *http_; }

  HttpReply request(std::string_view method, std::string_view path, std::string_view body = {},
                    const HttpHeaders& headers = {}) {
    return HttpClient("127.0.0.1", port()).request(method, path, body, headers);
  }
  // A POST that must succeed.
  json::object post(std::string_view path, std::string_view body) {
    const HttpReply reply = request("POST", path, body);
    EXPECT_EQ(reply.status, 200) << body << "\n" << reply.body;
    return parse_json(reply.body, "reply").as_object();
  }
  // A POST that must be refused; checks the error's shape and returns what is inside 'error'.
  json::object refused(std::string_view path, std::string_view body, int status, const HttpHeaders& headers = {}) {
    const HttpReply reply = request("POST", path, body, headers);
    EXPECT_EQ(reply.status, status) << body.substr(0, 300) << "\n" << reply.body.substr(0, 1000);
    return check_error(reply);
  }
  static json::object check_error(const HttpReply& reply) {
    json::object error;
    try {
      error = parse_json(reply.body, "reply").as_object().at("error").as_object();
    } catch (const std::exception&) {
      ADD_FAILURE() << "not an error body: " << reply.body;
      return {{"message", ""}, {"type", ""}, {"param", nullptr}, {"code", ""}};
    }
    EXPECT_TRUE(error.at("message").is_string() && !error.at("message").as_string().empty());
    EXPECT_TRUE(error.at("type").is_string());
    EXPECT_TRUE(error.at("code").is_string());
    EXPECT_TRUE(error.at("param").is_string() || error.at("param").is_null());
    EXPECT_NE(reply.header("x-request-id"), "");
    return error;
  }
  StreamResult stream(std::string_view path, std::string_view body) {
    HttpClient client("127.0.0.1", port());
    client.send_request("POST", path, body, {});
    return read_stream(client);
  }
  static StreamResult read_stream(HttpClient& client) {
    StreamResult out;
    out.head = client.read_head();
    for (std::string piece; client.read_piece(&piece);) out.raw += piece;
    std::vector<std::string> texts;
    EventReader().push(out.raw, &texts);
    for (size_t i = 0; i < texts.size(); ++i) {
      if (texts[i] == "[DONE]") {
        EXPECT_EQ(i + 1, texts.size()) << "events after the end mark";
        out.is_done = true;
      } else {
        out.events.push_back(parse_json(texts[i], "event"));
      }
    }
    return out;
  }

  // Nothing runs, nothing waits, no KV block is held.
  void expect_idle() {
    EXPECT_TRUE(http_->wait_until_quiet(20'000));
    EXPECT_TRUE(controller_->wait_until_idle(20'000));
    for (int rank = 0; rank < controller_->num_ranks(); ++rank) {
      const EngineStats stats = controller_->stats(rank);
      EXPECT_EQ(stats.num_free_blocks, stats.num_blocks);
      EXPECT_EQ(stats.num_running, 0);
      EXPECT_EQ(stats.num_waiting, 0);
    }
  }
  void expect_works() {
    const json::object reply =
        post("/v1/completions", R"({"model":"scripted","prompt":"<<say works>>","max_tokens":20})");
    EXPECT_EQ(reply.at("choices").at(0).at("text").as_string(), "works");
  }

  StepGate gate;  // open unless the test shuts it

 private:
  SteadyClock clock_;
  ApiService service_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<HttpServer> http_;
};

inline std::string str(const json::value& value) { return std::string(value.as_string()); }

}  // namespace cadre::testing
