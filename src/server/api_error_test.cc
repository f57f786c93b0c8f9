// Refusals: one status and code per condition, in OpenAI's shape, and the next request works.
#include "server/api_test_server.h"

namespace cadre::testing {
namespace {

using namespace std::string_literals;

const char* kChat = "/v1/chat/completions";
const char* kCompletion = "/v1/completions";

std::string chat_with(const std::string& more) {
  return R"({"model":"scripted","max_tokens":4,"messages":[{"role":"user","content":"<<say ok>>"}])" +
         (more.empty() ? "" : "," + more) + "}";
}

TEST(Errors, MalformedBodies) {
  TestServer server;
  const std::string deep(100'000, '[');
  const std::vector<std::string> bodies = {"",
                                           "{",
                                           "}",
                                           "nonsense",
                                           "null",
                                           "[]",
                                           "5",
                                           "\"text\"",
                                           "{\"model\":",
                                           deep,
                                           "{\"a\":" + deep,
                                           "{\"model\":\"scripted\",}",
                                           "{\"model\":\"scripted\" \"prompt\":\"x\"}",
                                           "\xFF\xFE",
                                           "{\"model\":\"scripted\",\"prompt\":\"\xC3\x28\"}",
                                           R"({"model":"scripted","prompt":"\ud800"})",
                                           R"({"model":"scripted","prompt":"x"} trailing)",
                                           "{}",
                                           R"({"model":5,"prompt":"x"})",
                                           "{\"model\":\"scripted\",\"prompt\":\"a\0b\"}"s};
  for (const std::string& body : bodies) {
    SCOPED_TRACE(body.substr(0, 80));
    for (const char* path : {kChat, kCompletion, "/tokenize", "/detokenize"}) server.refused(path, body, 400);
    server.expect_works();
  }
  for (const char* body : {R"({"prompt":"x"})", R"({"model":null,"prompt":"x"})"})
    EXPECT_EQ(server.refused(kCompletion, body, 400).at("param"), "model");
  server.expect_idle();
}

TEST(Errors, WrongValues) {
  TestServer server;
  const std::pair<const char*, const char*> cases[] = {{"temperature", "-0.1"},
                                                       {"temperature", "2.1"},
                                                       {"temperature", "\"hot\""},
                                                       {"temperature", "1e999"},
                                                       {"temperature", "[]"},
                                                       {"top_p", "0"},
                                                       {"top_p", "1.01"},
                                                       {"top_p", "-1"},
                                                       {"n", "0"},
                                                       {"n", "-1"},
                                                       {"n", "1.5"},
                                                       {"n", "129"},
                                                       {"n", "1e300"},
                                                       {"n", "\"2\""},
                                                       {"n", "99999999999999999999999"},
                                                       {"max_tokens", "-5"},
                                                       {"max_tokens", "\"many\""},
                                                       {"max_tokens", "9223372036854775807"},
                                                       {"max_tokens", "2147483647"},
                                                       {"min_tokens", "-1"},
                                                       {"min_tokens", "5"},
                                                       {"presence_penalty", "2.5"},
                                                       {"frequency_penalty", "-2.5"},
                                                       {"repetition_penalty", "0"},
                                                       {"repetition_penalty", "-1"},
                                                       {"min_p", "1.5"},
                                                       {"top_k", "-2"},
                                                       {"top_k", "0.5"},
                                                       {"seed", "\"x\""},
                                                       {"seed", "1.5"},
                                                       {"seed", "1e30"},
                                                       {"stream", "1"},
                                                       {"stream", "\"true\""},
                                                       {"stream_options", "{}"},
                                                       {"stop", "5"},
                                                       {"stop_token_ids", "[300]"},
                                                       {"stop_token_ids", "[-1]"},
                                                       {"stop_token_ids", "5"},
                                                       {"logit_bias", "[]"},
                                                       {"logit_bias", "{\"x\":1}"},
                                                       {"logit_bias", "{\"300\":1}"},
                                                       {"logit_bias", "{\"-1\":1}"},
                                                       {"logit_bias", "{\"5\":101}"},
                                                       {"logit_bias", "{\"5\":\"a\"}"},
                                                       {"logit_bias", "{\" 5\":1}"},
                                                       {"ignore_eos", "0"},
                                                       {"skip_special_tokens", "\"no\""},
                                                       {"logprobs", "\"x\""},
                                                       {"user_tokens_are_ignored\":1,\"n", "[1]"}};
  for (const auto& [key, value] : cases) {
    SCOPED_TRACE(fmt::format("{}: {}", key, value));
    std::string body =
        fmt::format(R"({{"model":"scripted","messages":[{{"role":"user","content":"x"}}],"{}":{}}})", key, value);
    if (std::string(key) == "min_tokens") body.insert(body.size() - 1, ",\"max_tokens\":4");
    server.refused(kChat, body, 400);
  }
  server.expect_works();
}

TEST(Errors, ParamNamesTheField) {
  TestServer server;
  EXPECT_EQ(server.refused(kChat, chat_with(R"("temperature":9)"), 400).at("param"), "temperature");
  EXPECT_EQ(server.refused(kChat, chat_with(R"("top_p":"x")"), 400).at("param"), "top_p");
  EXPECT_EQ(server.refused(kChat, R"({"model":"scripted"})", 400).at("param"), "messages");
  EXPECT_EQ(server.refused(kChat, R"({"messages":[]})", 400).at("param"), "model");
  EXPECT_EQ(server.refused(kChat, chat_with(R"("temperature":9)"), 400).at("type"), "invalid_request_error");
}

TEST(Errors, UnservedFieldsAreRefusedNotIgnored) {
  TestServer server;
  for (const char* field : {R"("tools":[{"type":"function","function":{"name":"f"}}])",
                            R"("functions":[{"name":"f"}])",
                            R"("tool_choice":"required")",
                            R"("tool_choice":{"type":"function","function":{"name":"f"}})",
                            R"("function_call":{"name":"f"})",
                            R"("response_format":{"type":"json_object"})",
                            R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{}}})",
                            R"("response_format":{"type":"poem"})",
                            R"("response_format":{})",
                            R"("response_format":"text")",
                            R"("best_of":2)",
                            R"("n":2,"best_of":3)",
                            R"("modalities":["text","audio"])",
                            R"("audio":{"voice":"x","format":"wav"})",
                            R"("prediction":{"type":"content","content":"x"})",
                            R"("web_search_options":{"a":1})",
                            R"("reasoning_effort":"low")",
                            R"("suffix":"x")",
                            R"("prompt_logprobs":1)",
                            R"("guided_json":{"a":1})",
                            R"("use_beam_search":true)",
                            R"("length_penalty":0.5)",
                            R"("logits_processors":["x"])",
                            R"("echo":true)",
                            R"("truncate_prompt_tokens":5)",
                            R"("bad_words":["x"])"}) {
    SCOPED_TRACE(field);
    server.refused(kChat, chat_with(field), 400);
  }
  EXPECT_EQ(server.refused(kCompletion, R"({"model":"scripted","prompt":"x","suffix":"y"})", 400).at("param"),
            "suffix");
  for (const char* field :
       {R"("tools":[])", R"("tools":null)", R"("tool_choice":"none")", R"("tool_choice":"auto")",
        R"("functions":[],"function_call":"none")", R"("response_format":{"type":"text"})", R"("best_of":1)",
        R"("n":2,"best_of":2)", R"("modalities":["text"])", R"("suffix":"")", R"("parallel_tool_calls":true)",
        R"("store":false,"service_tier":"auto","user":"me")", R"("something_new":{"a":[1]})"}) {
    SCOPED_TRACE(field);
    EXPECT_EQ(server.post(kChat, chat_with(field)).at("choices").at(0).at("message").at("content"), "ok");
  }
}

TEST(Errors, UnknownModel) {
  TestServer server;
  for (const char* path : {kChat, kCompletion, "/tokenize", "/detokenize"}) {
    const json::object error =
        server.refused(path, R"({"model":"other","prompt":"x","messages":[{"role":"user","content":"x"}]})", 404);
    EXPECT_EQ(error.at("code"), "model_not_found");
    EXPECT_EQ(error.at("param"), "model");
  }
  EXPECT_EQ(
      server.post(kChat, R"({"model":"an/alias","messages":[{"role":"user","content":"<<say a>>"}]})").at("model"),
      "an/alias");
}

TEST(Routes, PathsAndMethods) {
  TestServer server;
  EXPECT_EQ(server.request("GET", "/nowhere").status, 404);
  EXPECT_EQ(server.request("POST", "/nowhere", "{}").status, 404);
  EXPECT_EQ(server.request("GET", "/").status, 404);
  TestServer::check_error(server.request("GET", "/nowhere"));
  const HttpReply wrong = server.request("GET", kChat);
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "POST");
  TestServer::check_error(wrong);
  EXPECT_EQ(server.request("DELETE", "/v1/models").status, 405);
  EXPECT_EQ(server.request("PUT", kCompletion, "{}").status, 405);
  EXPECT_EQ(server.request("HEAD", "/health").status, 200);
  EXPECT_EQ(server.request("HEAD", "/v1/models").status, 200);
  EXPECT_EQ(server.request("HEAD", kChat).status, 405);
  const HttpReply options = server.request("OPTIONS", kChat);
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.header("access-control-allow-origin"), "");
  EXPECT_EQ(server.request("POST", kChat, "x", {{"Content-Encoding", "gzip"}}).status, 415);
  EXPECT_EQ(server.request("GET", "/health?verbose=1").status, 200);
  server.expect_works();
}

TEST(Routes, Cors) {
  TestServerOptions options;
  options.api.cors_origin = "*";
  options.api.api_keys = {"k"};
  TestServer server(options);
  const HttpReply preflight =
      server.request("OPTIONS", kChat, {}, {{"Origin", "http://a"}, {"Access-Control-Request-Method", "POST"}});
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.header("access-control-allow-origin"), "*");
  EXPECT_NE(preflight.header("access-control-allow-headers").find("Authorization"), std::string_view::npos);
  EXPECT_EQ(server.request("GET", "/v1/models").header("access-control-allow-origin"), "*");
  EXPECT_EQ(server.request("GET", "/health").header("access-control-allow-origin"), "*");
}

TEST(Keys, Bearer) {
  TestServerOptions options;
  options.api.api_keys = {"secret-one", "secret-two"};
  TestServer server(options);
  const auto status = [&](const std::string& value) {
    return server
        .request("GET", "/v1/models", {}, value.empty() ? HttpHeaders{} : HttpHeaders{{"Authorization", value}})
        .status;
  };
  EXPECT_EQ(status("Bearer secret-one"), 200);
  EXPECT_EQ(status("bearer  secret-two"), 200);
  for (const char* bad : {"", "Bearer", "Bearer ", "Bearer secret", "Bearer secret-on", "Bearer secret-one1",
                          "Basic secret-one", "secret-one", "Bearer SECRET-ONE"})
    EXPECT_EQ(status(bad), 401) << bad;
  const HttpReply reply = server.request("POST", kChat, chat_with(""));
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(TestServer::check_error(reply).at("code"), "invalid_api_key");
  EXPECT_EQ(server.request("POST", kChat, chat_with(""), {{"Authorization", "Bearer secret-one"}}).status, 200);
  for (const char* open : {"/health", "/metrics"}) EXPECT_EQ(server.request("GET", open).status, 200);
  for (const char* closed : {"/version", "/v1/models"}) EXPECT_EQ(server.request("GET", closed).status, 401);
  for (const char* closed : {"/tokenize", "/detokenize", kCompletion})
    EXPECT_EQ(server.request("POST", closed, "{}").status, 401);
}

TEST(RequestId, EchoedOrMade) {
  TestServer server;
  const auto id = [&](const HttpHeaders& headers, const char* path = "/v1/models") {
    return std::string(server.request("GET", path, {}, headers).header("x-request-id"));
  };
  EXPECT_EQ(id({{"X-Request-Id", "abc-123_4.5:6"}}), "abc-123_4.5:6");
  EXPECT_EQ(id({{"X-Request-Id", "abc"}}, "/nowhere"), "abc");
  EXPECT_EQ(id({{"X-Request-Id", std::string(1000, 'a')}}), std::string(128, 'a'));
  EXPECT_EQ(id({{"X-Request-Id", "a b\tc\"<>"}}), "abc");
  const std::string made = id({});
  EXPECT_FALSE(made.empty());
  EXPECT_NE(made, id({}));
  HttpClient client("127.0.0.1", server.port());
  client.send_request("POST", kChat, chat_with(R"("stream":true)"), {{"x-request-id", "mine"}});
  EXPECT_EQ(TestServer::read_stream(client).head.header("x-request-id"), "mine");
}

TEST(Limits, BodyAndHeader) {
  TestServerOptions options;
  options.http.max_body_bytes = 10'000;
  options.http.max_header_bytes = 4'000;
  TestServer server(options);
  EXPECT_EQ(server.refused(kChat, std::string(10'001, ' '), 413).at("code"), "body_too_large");
  EXPECT_EQ(
      TestServer::check_error(server.request("GET", "/v1/models", {}, {{"X", std::string(5'000, 'x')}})).at("code"),
      "header_too_large");
  EXPECT_EQ(server.request("GET", "/" + std::string(5'000, 'x')).status, 431);
  server.expect_works();
}

TEST(Models, ListAndOne) {
  TestServer server;
  const HttpReply reply = server.request("GET", "/v1/models");
  const json::object list = parse_json(reply.body, "list").as_object();
  EXPECT_EQ(list.at("object"), "list");
  ASSERT_EQ(list.at("data").as_array().size(), 2u);
  const json::object& model = list.at("data").at(0).as_object();
  EXPECT_EQ(model.at("id"), "scripted");
  EXPECT_EQ(model.at("object"), "model");
  EXPECT_EQ(model.at("created").as_int64(), 1'700'000'000);
  EXPECT_TRUE(model.at("owned_by").is_string());
  EXPECT_EQ(model.at("max_model_len").as_int64(), 4096);
  EXPECT_EQ(parse_json(server.request("GET", "/v1/models/scripted").body, "model").at("id"), "scripted");
  EXPECT_EQ(parse_json(server.request("GET", "/v1/models/an/alias").body, "model").at("id"), "an/alias");
  EXPECT_EQ(parse_json(server.request("GET", "/v1/models/an%2Falias").body, "model").at("id"), "an/alias");
  EXPECT_EQ(TestServer::check_error(server.request("GET", "/v1/models/other")).at("code"), "model_not_found");
}

TEST(Tokenize, TextAndMessages) {
  TestServer server;
  const auto post = [&](const char* path, const std::string& body) { return server.post(path, body); };
  EXPECT_EQ(post("/tokenize", R"({"prompt":"ab"})").at("tokens"), (json::value{256, 97, 98}));
  EXPECT_EQ(post("/tokenize", R"({"model":"scripted","prompt":"ab","add_special_tokens":false})").at("tokens"),
            (json::value{97, 98}));
  EXPECT_EQ(post("/tokenize", R"({"prompt":"<|begin|>ab"})").at("count").to_number<int>(), 3);
  EXPECT_EQ(post("/tokenize", R"({"prompt":"","add_special_tokens":false})").at("count").to_number<int>(), 0);
  EXPECT_EQ(post("/tokenize", R"({"prompt":"ab","return_token_strs":true})").at("token_strs"),
            (json::value{"<|begin|>", "a", "b"}));
  EXPECT_EQ(post("/detokenize", R"({"tokens":[256,97,98]})").at("prompt"), "<|begin|>ab");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[]})").at("prompt"), "");
  for (const char* bad :
       {R"({"tokens":[258]})", R"({"tokens":[-1]})", R"({"tokens":"x"})", R"({"tokens":[1.5]})", R"({})"})
    server.refused("/detokenize", bad, 400);
  for (const char* bad : {R"({})", R"({"prompt":5})", R"({"prompt":"x","messages":[]})"})
    server.refused("/tokenize", bad, 400);

  // Exactly one begin token, and the count is what usage says.
  const std::string messages = R"("messages":[{"role":"system","content":"s"},{"role":"user","content":"<<say a>>"}])";
  const json::object tokens = post("/tokenize", "{" + messages + "}");
  int64_t num_begin = 0;
  for (const json::value& id : tokens.at("tokens").as_array()) num_begin += id.to_number<int>() == 256;
  EXPECT_EQ(num_begin, 1);
  EXPECT_EQ(
      tokens.at("count").to_number<int64_t>(),
      post(kChat, R"({"model":"scripted",)" + messages + "}").at("usage").at("prompt_tokens").to_number<int64_t>());
  EXPECT_EQ(post("/tokenize", R"({"prompt":"<<say a>>"})").at("count").to_number<int64_t>(),
            post(kCompletion, R"({"model":"scripted","prompt":"<<say a>>"})")
                .at("usage")
                .at("prompt_tokens")
                .to_number<int64_t>());
}

TEST(Version, IsTold) {
  TestServerOptions options;
  options.api.version = "1.2.3";
  TestServer server(options);
  EXPECT_EQ(parse_json(server.request("GET", "/version").body, "version").at("version"), "1.2.3");
}

}  // namespace
}  // namespace cadre::testing
