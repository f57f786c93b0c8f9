// The frames of a stream and what whole answers say, line by line of the OpenAI API as its clients read it.
#include "server/api_test_server.h"

namespace cadre::testing {
namespace {

const char* kChat = "/v1/chat/completions";
const char* kCompletion = "/v1/completions";

std::string chat(const std::string& content, const std::string& more = "") {
  return R"({"model":"scripted","messages":[{"role":"user","content":")" + content + "\"}]" +
         (more.empty() ? "" : "," + more) + "}";
}
std::string completion(const std::string& prompt, const std::string& more = "") {
  return R"({"model":"scripted","prompt":")" + prompt + "\"" + (more.empty() ? "" : "," + more) + "}";
}

json::object choice_of(const json::value& event) { return event.at("choices").at(0).as_object(); }

TEST(ChatStream, Frame) {
  TestServer server;
  const StreamResult result = server.stream(kChat, chat("<<say hello>>", R"("stream":true)"));
  EXPECT_EQ(result.head.status, 200);
  EXPECT_TRUE(result.head.header("content-type").starts_with("text/event-stream"));
  EXPECT_TRUE(result.is_done);
  EXPECT_TRUE(result.raw.ends_with("data: [DONE]\n\n"));
  ASSERT_GE(result.events.size(), 3u);

  const json::object first = choice_of(result.events.front());
  EXPECT_EQ(first.at("delta"), (json::value{{"role", "assistant"}, {"content", ""}}));
  std::string text;
  for (size_t i = 0; i < result.events.size(); ++i) {
    const json::object& event = result.events[i].as_object();
    EXPECT_EQ(event.at("id"), result.events[0].at("id"));
    EXPECT_EQ(event.at("created"), result.events[0].at("created"));
    EXPECT_EQ(event.at("model").as_string(), "scripted");
    EXPECT_EQ(event.at("object").as_string(), "chat.completion.chunk");
    EXPECT_FALSE(event.contains("usage"));
    ASSERT_EQ(event.at("choices").as_array().size(), 1u);
    const json::object choice = choice_of(event);
    const json::object& delta = choice.at("delta").as_object();
    const bool is_last = i + 1 == result.events.size();
    EXPECT_EQ(choice.at("finish_reason"), is_last ? json::value("stop") : json::value(nullptr));
    EXPECT_EQ(delta.empty(), is_last);
    if (i == 0 || is_last) continue;
    EXPECT_FALSE(delta.contains("role"));
    EXPECT_FALSE(delta.at("content").as_string().empty());
    text += str(delta.at("content"));
  }
  EXPECT_EQ(text, "hello");
  EXPECT_TRUE(str(result.events[0].at("id")).starts_with("chatcmpl-"));
}

// Headers and role chunk leave before the first step of the model has ended.
TEST(ChatStream, HeadersComeBeforePrefill) {
  TestServer server;
  server.gate.shut();
  HttpClient client("127.0.0.1", server.port());
  client.send_request("POST", kChat, chat("<<say hello>>", R"("stream":true)"), {});
  EXPECT_EQ(client.read_head().status, 200);
  std::string piece;
  ASSERT_TRUE(client.read_piece(&piece));
  EXPECT_NE(piece.find(R"("role":"assistant")"), std::string::npos);
  server.gate.open();
}

TEST(ChatStream, UsageWhenAskedFor) {
  TestServer server;
  const StreamResult result =
      server.stream(kChat, chat("<<say hello>>", R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_GE(result.events.size(), 3u);
  for (size_t i = 0; i + 1 < result.events.size(); ++i) EXPECT_TRUE(result.events[i].at("usage").is_null());
  const json::object& last = result.events.back().as_object();
  EXPECT_TRUE(last.at("choices").as_array().empty());
  const json::value& usage = last.at("usage");
  const json::value whole = server.post(kChat, chat("<<say hello>>")).at("usage");
  EXPECT_EQ(usage, whole);
  EXPECT_EQ(usage.at("completion_tokens").as_int64(), 6);  // five letters and the end
  EXPECT_EQ(usage.at("total_tokens").as_int64(), usage.at("prompt_tokens").as_int64() + 6);
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens").as_int64(), 0);
  EXPECT_EQ(usage.at("completion_tokens_details").at("reasoning_tokens").as_int64(), 0);
}

TEST(ChatStream, StreamOptions) {
  TestServer server;
  EXPECT_TRUE(server.stream(kChat, chat("<<say a>>", R"("stream":true,"stream_options":null)")).is_done);
  EXPECT_TRUE(server.stream(kChat, chat("<<say a>>", R"("stream":true,"stream_options":{})")).is_done);
  EXPECT_EQ(server.refused(kChat, chat("a", R"("stream_options":{"include_usage":true})"), 400).at("param"),
            "stream_options");
  EXPECT_EQ(server.refused(kChat, chat("a", R"("stream":false,"stream_options":{})"), 400).at("param"),
            "stream_options");
  EXPECT_EQ(server.post(kChat, chat("<<say a>>", R"("stream_options":null)")).at("object"), "chat.completion");
  const StreamResult continuous = server.stream(
      kChat,
      chat("<<say abc>>", R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})"));
  int64_t last = -1;
  for (const json::value& event : continuous.events) {
    const int64_t now = event.at("usage").at("completion_tokens").as_int64();
    EXPECT_GE(now, last);
    last = now;
  }
  EXPECT_EQ(last, 4);
}

TEST(ChatStream, KeepAliveComments) {
  TestServerOptions options;
  options.api.keep_alive_ms = 5;
  TestServer server(options);
  server.gate.shut();
  HttpClient client("127.0.0.1", server.port());
  client.send_request("POST", kChat, chat("<<say hello>>", R"("stream":true)"), {});
  client.read_head();
  std::string seen, piece;
  while (seen.find(": keep-alive\n\n: keep-alive\n\n") == std::string::npos && client.read_piece(&piece)) seen += piece;
  server.gate.open();
  while (client.read_piece(&piece)) seen += piece;
  std::vector<std::string> events;
  EventReader().push(seen, &events);
  EXPECT_EQ(events.back(), "[DONE]");
  TestServer plain;
  EXPECT_EQ(plain.stream(kChat, chat("<<say hello>>", R"("stream":true)")).raw.find("\n:"), std::string::npos);
}

// An error after the headers is one event and the end of the connection, without the end mark.
TEST(ChatStream, ErrorAfterHeaders) {
  TestServer server;
  for (const char* script : {"<<say abc\\\\!nan>>", "<<say abc\\\\!fail>>", "<<say abc\\\\!throw>>"}) {
    SCOPED_TRACE(script);
    HttpClient client("127.0.0.1", server.port());
    client.send_request("POST", kChat, chat(script, R"("stream":true)"), {});
    const StreamResult result = TestServer::read_stream(client);
    EXPECT_EQ(result.head.status, 200);
    EXPECT_FALSE(result.is_done);
    ASSERT_FALSE(result.events.empty());
    const json::object& error = result.events.back().at("error").as_object();
    EXPECT_TRUE(error.at("message").is_string());
    EXPECT_TRUE(error.at("code").is_string());
    EXPECT_TRUE(client.is_closed_by_peer());
    server.refused(kChat, chat(script), 500);
    server.expect_works();
    server.expect_idle();
  }
}

TEST(Chat, WholeAnswer) {
  TestServer server;
  const json::object reply = server.post(kChat, chat("<<say hello>>"));
  EXPECT_EQ(reply.at("object"), "chat.completion");
  EXPECT_TRUE(reply.at("created").is_int64());
  const json::object& choice = reply.at("choices").at(0).as_object();
  EXPECT_EQ(choice.at("index").to_number<int>(), 0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "hello");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_TRUE(choice.at("logprobs").is_null());
  // An empty answer is an empty string, never null.
  EXPECT_EQ(server.post(kChat, chat("<<say >>")).at("choices").at(0).at("message").at("content"), "");
}

TEST(Chat, ContentForms) {
  TestServer server;
  const auto answer = [&](const std::string& messages) {
    return str(server.post(kChat, R"({"model":"scripted","messages":)" + messages + "}")
                   .at("choices")
                   .at(0)
                   .at("message")
                   .at("content"));
  };
  EXPECT_EQ(answer(R"([{"role":"user","content":[{"type":"text","text":"<<say a"},{"type":"text","text":"b>>"}]}])"),
            "ab");
  EXPECT_EQ(
      answer(
          R"([{"role":"user","content":"x"},{"role":"assistant","content":null},{"role":"user","content":"<<say c>>"}])"),
      "c");
  EXPECT_EQ(
      answer(
          R"([{"role":"user","content":"x"},{"role":"assistant"},{"role":"user","content":"<<say d>>","name":null}])"),
      "d");
  EXPECT_EQ(answer(R"([{"role":"developer","content":"be brief"},{"role":"user","content":"<<say e>>"}])"), "e");
  for (const char* messages : {"null", "[]", "{}", "\"hi\"", "[1]", R"([{"content":"x"}])", R"([{"role":"user"}])",
                               R"([{"role":"user","content":null}])", R"([{"role":"user","content":5}])",
                               R"([{"role":"wizard","content":"x"}])", R"([{"role":7,"content":"x"}])",
                               R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
                               R"([{"role":"user","content":[{"type":"text"}]}])",
                               R"([{"role":"user","content":["x"]}])", R"([{"role":"tool","content":"x"}])"}) {
    SCOPED_TRACE(messages);
    server.refused(kChat, R"({"model":"scripted","messages":)" + std::string(messages) + "}", 400);
  }
}

TEST(Chat, ContinueFinalMessage) {
  TestServer server;
  const json::object reply =
      server.post(kChat, R"({"model":"scripted","max_tokens":30,"continue_final_message":true,"messages":[
      {"role":"user","content":"x"},{"role":"assistant","content":"<<say and more>>"}]})");
  EXPECT_EQ(reply.at("choices").at(0).at("message").at("content"), "and more");
  server.refused(kChat, chat("x", R"("continue_final_message":true,"add_generation_prompt":true)"), 400);
}

TEST(Chat, NoTemplate) {
  TestServerOptions options;
  options.has_chat_template = false;
  TestServer server(options);
  server.refused(kChat, chat("x"), 400);
  server.expect_works();
}

TEST(Choices, ExactlyNInBothModes) {
  TestServer server;
  const std::string more = R"("n":4,"seed":7,"max_tokens":12,"ignore_eos":true)";
  const json::object whole = server.post(kChat, chat("tell me", more));
  ASSERT_EQ(whole.at("choices").as_array().size(), 4u);
  std::vector<std::string> texts;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(whole.at("choices").at(i).at("index").to_number<size_t>(), i);
    EXPECT_EQ(whole.at("choices").at(i).at("finish_reason"), "length");
    texts.push_back(str(whole.at("choices").at(i).at("message").at("content")));
    for (size_t j = 0; j < i; ++j) EXPECT_NE(texts[i], texts[j]);
  }
  EXPECT_EQ(whole.at("usage").at("completion_tokens").as_int64(), 48);
  EXPECT_EQ(whole.at("usage").at("prompt_tokens"),
            server.post(kChat, chat("tell me", R"("max_tokens":1)")).at("usage").at("prompt_tokens"));

  const StreamResult stream = server.stream(kChat, chat("tell me", more + R"(,"stream":true)"));
  std::vector<std::string> streamed(4);
  std::vector<int> roles(4), ends(4);
  for (const json::value& event : stream.events) {
    const json::object choice = choice_of(event);
    const auto idx = choice.at("index").to_number<size_t>();
    ASSERT_LT(idx, 4u);
    EXPECT_EQ(ends[idx], 0) << "a chunk after the last one";
    const json::object& delta = choice.at("delta").as_object();
    roles[idx] += delta.contains("role");
    if (delta.contains("content")) streamed[idx] += str(delta.at("content"));
    ends[idx] += !choice.at("finish_reason").is_null();
  }
  EXPECT_EQ(streamed, texts);
  EXPECT_EQ(roles, std::vector<int>(4, 1));
  EXPECT_EQ(ends, std::vector<int>(4, 1));
}

// The same seed gives the same choices whoever else is served.
TEST(Choices, SeedIsIndependentOfBatchMates) {
  TestServer server;
  const std::string body = completion("a story", R"("n":3,"seed":42,"max_tokens":20,"ignore_eos":true)");
  const json::value alone = server.post(kCompletion, body).at("choices");
  std::vector<std::thread> strangers;
  for (int i = 0; i < 4; ++i)
    strangers.emplace_back([&, i] {
      for (int j = 0; j < 5; ++j)
        server.post(kCompletion,
                    completion("stranger " + std::to_string(i * 10 + j), R"("n":2,"max_tokens":50,"ignore_eos":true)"));
    });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(server.post(kCompletion, body).at("choices"), alone);
  for (auto& thread : strangers) thread.join();
  EXPECT_NE(server.post(kCompletion, completion("a story", R"("n":3,"seed":43,"max_tokens":20,"ignore_eos":true)"))
                .at("choices"),
            alone);
}

TEST(Stop, CutsAcrossTokens) {
  TestServer server;
  const auto text = [&](const std::string& more) {
    const json::value choice = server.post(kCompletion, completion("<<say one two three>>", more)).at("choices").at(0);
    return str(choice.at("text")) + "/" + str(choice.at("finish_reason"));
  };
  EXPECT_EQ(text(R"("stop":" three")"), "one two/stop");
  EXPECT_EQ(text(R"("stop":["zzz","two"])"), "one /stop");
  EXPECT_EQ(text(R"("stop":["o thr","three"])"), "one tw/stop");
  EXPECT_EQ(text(R"("stop":"two","include_stop_str_in_output":true)"), "one two/stop");
  EXPECT_EQ(text(R"("stop":"three!")"), "one two three/stop");  // held back, then flushed
  EXPECT_EQ(text(R"("stop":"")"), "one two three/stop");
  EXPECT_EQ(text(R"("stop":["",""])"), "one two three/stop");
  EXPECT_EQ(text(R"("stop":null)"), "one two three/stop");
  EXPECT_EQ(text(R"("stop":[])"), "one two three/stop");
  EXPECT_EQ(text(R"("stop":"three","max_tokens":10)"), "one two th/length");
  EXPECT_EQ(text(R"("stop_token_ids":[32])"), "one/stop");
  EXPECT_EQ(text(R"("stop":"one","min_tokens":5)"), "one two three/stop");
  server.refused(kCompletion, completion("x", R"("stop":["a","b","c","d","e"])"), 400);
  server.refused(kCompletion, completion("x", R"("stop":[1])"), 400);
  server.refused(kCompletion, completion("x", R"("stop":{"a":1})"), 400);
}

TEST(Length, MaxTokensByBothNames) {
  TestServer server;
  const auto tokens = [&](const std::string& more) {
    const json::object reply = server.post(kChat, chat("<<loop ab>>", more));
    EXPECT_EQ(reply.at("choices").at(0).at("finish_reason"), "length");
    return reply.at("usage").at("completion_tokens").as_int64();
  };
  EXPECT_EQ(tokens(R"("max_tokens":3)"), 3);
  EXPECT_EQ(tokens(R"("max_completion_tokens":4)"), 4);
  EXPECT_EQ(tokens(R"("max_completion_tokens":4,"max_tokens":4)"), 4);
  EXPECT_EQ(tokens(R"("max_completion_tokens":null,"max_tokens":5)"), 5);
  server.refused(kChat, chat("x", R"("max_completion_tokens":4,"max_tokens":5)"), 400);
  server.refused(kChat, chat("x", R"("max_tokens":0)"), 400);
  server.refused(kChat, chat("x", R"("max_tokens":-1)"), 400);
  server.refused(kChat, chat("x", R"("max_tokens":1.5)"), 400);
}

// Without a maximum an answer goes up to the context, and that is not reserved at admission.
TEST(Length, AbsentMeansUpToTheContext) {
  TestServerOptions options;
  options.model.max_position = 128;
  options.engine.num_kv_blocks = 12;  // 192 tokens: more than one request's context, less than two
  TestServer server(options);
  const json::object reply = server.post(kChat, chat("<<loop ab>>"));
  EXPECT_EQ(reply.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(reply.at("usage").at("total_tokens").as_int64(), 128);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { server.post(kChat, chat("<<say short>>")); });
  for (auto& thread : threads) thread.join();
  server.expect_idle();
}

TEST(Length, PromptOverTheContext) {
  TestServerOptions options;
  options.model.max_position = 100;
  TestServer server(options);
  for (const auto& [path, body] : {std::pair<const char*, std::string>{kChat, chat(std::string(150, 'x'))},
                                   {kChat, chat("x", R"("max_tokens":1000)")},
                                   {kChat, chat(std::string(150, 'x'), R"("stream":true)")},
                                   {kCompletion, completion(std::string(150, 'x'))},
                                   {kCompletion, completion("x", R"("max_tokens":100)")}}) {
    const json::object error = server.refused(path, body, 400);
    EXPECT_EQ(error.at("code"), "context_length_exceeded");
    EXPECT_NE(str(error.at("message")).find("100"), std::string::npos);
  }
  const json::object error = server.refused(kCompletion, completion(std::string(150, 'x')), 400);
  EXPECT_NE(str(error.at("message")).find("151"), std::string::npos) << str(error.at("message"));
  server.expect_works();
}

TEST(Utf8, CutCharactersAreTheSameInBothModes) {
  TestServer server;
  const std::string prompt = R"(<<say a\\xC3\\xA9\\xF0\\x9F\\x8E\\xBB>>)";  // a é 🎻
  for (int max = 1; max <= 8; ++max) {
    const std::string more = "\"max_tokens\":" + std::to_string(max);
    const std::string whole = str(server.post(kCompletion, completion(prompt, more)).at("choices").at(0).at("text"));
    std::string streamed;
    for (const json::value& event : server.stream(kCompletion, completion(prompt, more + ",\"stream\":true")).events)
      streamed += str(choice_of(event).at("text"));
    EXPECT_EQ(streamed, whole);
    const char* expected[] = {"a",
                              "a\uFFFD",
                              "a\u00E9",
                              "a\u00E9\uFFFD",
                              "a\u00E9\uFFFD",
                              "a\u00E9\uFFFD",
                              "a\u00E9\U0001F3BB",
                              "a\u00E9\U0001F3BB"};
    EXPECT_EQ(whole, expected[max - 1]);
  }
}

}  // namespace
}  // namespace cadre::testing
