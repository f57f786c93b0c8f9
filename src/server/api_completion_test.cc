// /v1/completions: prompt forms, echo, log-probabilities; and the log-probabilities of chat.
#include <cmath>

#include "base/utf8.h"
#include "server/api_test_server.h"

namespace cadre::testing {
namespace {

const char* kChat = "/v1/chat/completions";
const char* kCompletion = "/v1/completions";

std::string body(const std::string& prompt_json, const std::string& more = "") {
  return R"({"model":"scripted","prompt":)" + prompt_json + (more.empty() ? "" : "," + more) + "}";
}

std::vector<std::string> texts(const json::object& reply) {
  std::vector<std::string> out;
  for (const json::value& choice : reply.at("choices").as_array()) {
    EXPECT_EQ(choice.at("index").to_number<size_t>(), out.size());
    out.push_back(str(choice.at("text")));
  }
  return out;
}

std::string ids_json(const std::string& text) {
  std::string out = "[";
  for (const char c : text) out += (out.size() > 1 ? "," : "") + std::to_string(static_cast<unsigned char>(c));
  return out + "]";
}

TEST(Prompts, FourForms) {
  TestServer server;
  const auto ask = [&](const std::string& prompt) {
    return texts(server.post(kCompletion, body(prompt, R"("max_tokens":20)")));
  };
  using V = std::vector<std::string>;
  EXPECT_EQ(ask(R"("<<say a>>")"), V{"a"});
  EXPECT_EQ(ask(R"(["<<say a>>","<<say b>>"])"), (V{"a", "b"}));
  EXPECT_EQ(ask(ids_json("<<say c>>")), V{"c"});
  EXPECT_EQ(ask("[" + ids_json("<<say c>>") + "," + ids_json("<<say d>>") + "]"), (V{"c", "d"}));
  EXPECT_EQ(ask(R"([[60,60,115,97,121,32,101,62,62]])"), V{"e"});
}

TEST(Prompts, ChoiceIndexIsPromptTimesNPlusChoice) {
  TestServer server;
  const std::string prompts = R"(["<<say a>>","<<say b>>","<<say c>>"])";
  EXPECT_EQ(texts(server.post(kCompletion, body(prompts, R"("n":2)"))),
            (std::vector<std::string>{"a", "a", "b", "b", "c", "c"}));
  const StreamResult stream =
      server.stream(kCompletion, body(prompts, R"("n":2,"stream":true,"stream_options":{"include_usage":true})"));
  std::vector<std::string> streamed(6);
  for (const json::value& event : stream.events)
    for (const json::value& choice : event.at("choices").as_array()) {
      streamed.at(choice.at("index").to_number<size_t>()) += str(choice.at("text"));
      EXPECT_EQ(event.at("object"), "text_completion");
    }
  EXPECT_EQ(streamed, (std::vector<std::string>{"a", "a", "b", "b", "c", "c"}));
  const json::value usage = stream.events.back().at("usage");
  EXPECT_EQ(usage.at("prompt_tokens").as_int64(), 30);  // three prompts of nine and a begin token, whatever n
  EXPECT_EQ(usage.at("completion_tokens").as_int64(), 12);
}

TEST(Prompts, BadForms) {
  TestServer server;
  for (const char* prompt :
       {"null", "[]", "5", "{}", "true", R"(["a",1])", R"([1,"a"])", "[[]]", "[[1],[]]", "[-1]", "[258]", "[1.5]",
        "[1e9]", "[99999999999999999999]", "[[1],[258]]", "[[\"a\"]]", "[null]", "[[1],\"a\"]", "[true]"}) {
    SCOPED_TRACE(prompt);
    EXPECT_EQ(server.refused(kCompletion, body(prompt), 400).at("param"), "prompt");
  }
  EXPECT_EQ(server.refused(kCompletion, R"({"model":"scripted"})", 400).at("param"), "prompt");
  server.expect_works();
}

TEST(Echo, TextStartsWithThePrompt) {
  TestServer server;
  const std::string prompt = "<<say abc>>";
  for (const std::string& form : {"\"" + prompt + "\"", ids_json(prompt)}) {
    EXPECT_EQ(texts(server.post(kCompletion, body(form, R"("echo":true)"))), std::vector<std::string>{prompt + "abc"});
    EXPECT_EQ(texts(server.post(kCompletion, body(form, R"("echo":true,"max_tokens":0)"))),
              std::vector<std::string>{prompt});
    EXPECT_EQ(texts(server.post(kCompletion, body(form, R"("echo":true,"max_tokens":1)"))),
              std::vector<std::string>{prompt + "a"});
    std::string streamed;
    for (const json::value& event : server.stream(kCompletion, body(form, R"("echo":true,"stream":true)")).events)
      streamed += str(event.at("choices").at(0).at("text"));
    EXPECT_EQ(streamed, prompt + "abc");
  }
  const json::object reply = server.post(kCompletion, body("\"x\"", R"("max_tokens":0)"));
  EXPECT_EQ(texts(reply), std::vector<std::string>{""});
  EXPECT_EQ(reply.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(reply.at("usage").at("completion_tokens").as_int64(), 0);
}

// Arrays of equal length; offsets point at the tokens in the text.
void check_completion_logprobs(const json::value& choice, size_t num_top) {
  const json::object& logprobs = choice.at("logprobs").as_object();
  const json::array& tokens = logprobs.at("tokens").as_array();
  const json::array& values = logprobs.at("token_logprobs").as_array();
  const json::array& tops = logprobs.at("top_logprobs").as_array();
  const json::array& offsets = logprobs.at("text_offset").as_array();
  ASSERT_EQ(tokens.size(), values.size());
  ASSERT_EQ(tokens.size(), tops.size());
  ASSERT_EQ(tokens.size(), offsets.size());
  const std::string text = str(choice.at("text"));
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!values[i].is_null()) {
      EXPECT_TRUE(std::isfinite(values[i].to_number<double>()));
      EXPECT_LE(values[i].to_number<double>(), 0.0);
      EXPECT_GE(tops[i].as_object().size(), std::max<size_t>(num_top, 1));
      EXPECT_LE(tops[i].as_object().size(), num_top + 1);
      EXPECT_TRUE(tops[i].as_object().contains(tokens[i].as_string()));
    } else {
      EXPECT_EQ(i, 0u);
      EXPECT_TRUE(tops[i].is_null());
    }
    const std::string token = str(tokens[i]);
    const size_t offset = offsets[i].to_number<size_t>();
    if (token.size() > 1) continue;
    EXPECT_EQ(text.substr(offset, 1), token) << i;
  }
}

TEST(CompletionLogprobs, Shape) {
  TestServer server;
  for (const int n : {0, 1, 5}) {
    const json::object reply = server.post(kCompletion, body(R"("<<say abc>>")", fmt::format(R"("logprobs":{})", n)));
    const json::value& choice = reply.at("choices").at(0);
    check_completion_logprobs(choice, static_cast<size_t>(n));
    EXPECT_EQ(choice.at("logprobs").at("tokens"), (json::value{"a", "b", "c"}));
    EXPECT_EQ(choice.at("logprobs").at("text_offset"), (json::value{0, 1, 2}));
  }
  EXPECT_TRUE(server.post(kCompletion, body(R"("<<say abc>>")", R"("logprobs":null)"))
                  .at("choices")
                  .at(0)
                  .at("logprobs")
                  .is_null());
}

TEST(CompletionLogprobs, EchoScoresThePrompt) {
  TestServer server;
  for (const int max : {0, 1, 3}) {
    for (const int n : {1, 2}) {
      const std::string more = fmt::format(R"("logprobs":2,"echo":true,"max_tokens":{},"n":{})", max, n);
      const json::object reply = server.post(kCompletion, body(R"("<<say abc>>")", more));
      ASSERT_EQ(reply.at("choices").as_array().size(), static_cast<size_t>(n));
      for (const json::value& choice : reply.at("choices").as_array()) {
        EXPECT_EQ(str(choice.at("text")), "<<say abc>>" + std::string("abc").substr(0, static_cast<size_t>(max)));
        check_completion_logprobs(choice, 2);
        const json::object& logprobs = choice.at("logprobs").as_object();
        ASSERT_EQ(logprobs.at("tokens").as_array().size(),
                  static_cast<size_t>(12 + max));  // begin token, prompt, answer
        EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
        EXPECT_FALSE(logprobs.at("token_logprobs").at(1).is_null());
      }
      // The stream's pieces, joined, say the same.
      std::vector<json::array> streamed(static_cast<size_t>(n));
      std::vector<std::string> text(static_cast<size_t>(n));
      for (const json::value& event :
           server.stream(kCompletion, body(R"("<<say abc>>")", more + ",\"stream\":true")).events) {
        const json::value& choice = event.at("choices").at(0);
        const auto idx = choice.at("index").to_number<size_t>();
        text[idx] += str(choice.at("text"));
        if (choice.at("logprobs").is_null()) continue;
        for (const json::value& token : choice.at("logprobs").at("text_offset").as_array())
          streamed[idx].push_back(token);
      }
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        EXPECT_EQ(text[i], str(reply.at("choices").at(i).at("text")));
        EXPECT_EQ(streamed[i], reply.at("choices").at(i).at("logprobs").at("text_offset").as_array());
      }
    }
  }
}

TEST(CompletionLogprobs, ShapesAreNotMixed) {
  TestServer server;
  server.refused(kCompletion, body("\"x\"", R"("logprobs":true)"), 400);
  server.refused(kCompletion, body("\"x\"", R"("logprobs":21)"), 400);
  server.refused(kCompletion, body("\"x\"", R"("logprobs":-1)"), 400);
  server.refused(kCompletion, body("\"x\"", R"("logprobs":2,"top_logprobs":2)"), 400);
  const std::string chat = R"({"model":"scripted","messages":[{"role":"user","content":"<<say a>>"}],)";
  server.refused(kChat, chat + R"("logprobs":3})", 400);
  server.refused(kChat, chat + R"("top_logprobs":3})", 400);
  server.refused(kChat, chat + R"("logprobs":false,"top_logprobs":3})", 400);
  server.refused(kChat, chat + R"("logprobs":true,"top_logprobs":21})", 400);
  server.post(kChat, chat + R"("logprobs":true,"top_logprobs":20})");
  server.post(kChat, chat + R"("logprobs":false,"top_logprobs":null})");
}

TEST(ChatLogprobs, BytesJoinToTheText) {
  TestServer server;
  const std::string chat =
      R"({"model":"scripted","messages":[{"role":"user","content":"<<say a\\xC3\\xA9 stop b>>"}],"logprobs":true,)";
  for (const char* more : {R"("top_logprobs":3)", R"("top_logprobs":0)", R"("stop":" stop","top_logprobs":2)",
                           R"("max_tokens":3)", R"("max_tokens":2)"}) {
    SCOPED_TRACE(more);
    const json::object reply = server.post(kChat, chat + more + "}");
    const json::value& choice = reply.at("choices").at(0);
    std::string bytes;
    for (const json::value& entry : choice.at("logprobs").at("content").as_array()) {
      EXPECT_TRUE(entry.at("token").is_string());
      EXPECT_TRUE(std::isfinite(entry.at("logprob").to_number<double>()));
      EXPECT_TRUE(entry.at("top_logprobs").is_array());
      for (const json::value& byte : entry.at("bytes").as_array()) bytes += static_cast<char>(byte.to_number<int>());
      for (const json::value& top : entry.at("top_logprobs").as_array()) {
        EXPECT_TRUE(top.at("bytes").is_array());
        EXPECT_FALSE(top.as_object().contains("top_logprobs"));
      }
    }
    EXPECT_EQ(utf8::replace_invalid(bytes), str(choice.at("message").at("content")));
  }
  EXPECT_EQ(server.post(kChat, chat + R"("top_logprobs":3})")
                .at("choices")
                .at(0)
                .at("logprobs")
                .at("content")
                .at(0)
                .at("top_logprobs")
                .as_array()
                .size(),
            3u);
}

TEST(Logprobs, ImpossibleTokensAreFinite) {
  TestServer server;
  const json::object reply = server.post(
      kCompletion, body("\"x\"", R"("logprobs":20,"max_tokens":3,"logit_bias":{"65":100},"temperature":0)"));
  EXPECT_EQ(texts(reply), std::vector<std::string>{"AAA"});
  EXPECT_EQ(server.request("POST", kCompletion, body("\"x\"", R"("logprobs":20,"max_tokens":3)")).body.find("Infinity"),
            std::string::npos);
}

TEST(Sampling, FieldsReachTheEngine) {
  TestServer server;
  const auto one = [&](const std::string& more) {
    return texts(server.post(kCompletion, body("\"abc\"", R"("max_tokens":8,)" + more)))[0];
  };
  const std::string greedy = one(R"("temperature":0)");
  EXPECT_EQ(one(R"("temperature":1.5,"top_k":1)"), greedy);
  EXPECT_EQ(one(R"("temperature":1.5,"top_p":1e-6)"), greedy);
  EXPECT_EQ(one(R"("temperature":1.5,"min_p":1)"), greedy);
  EXPECT_EQ(one(R"("temperature":0,"top_k":-1,"seed":-5,"user":"u","metadata":{"a":"b"},"unknown_field":[1,2])"),
            greedy);
  EXPECT_EQ(one(R"("temperature":0,"logit_bias":{"66":100})"), "BBBBBBBB");
  EXPECT_NE(one(R"("temperature":0,"repetition_penalty":1.8,"logit_bias":{"66":6,"67":6})").find("C"),
            std::string::npos);
  EXPECT_EQ(one(R"("temperature":2,"seed":9)"), one(R"("temperature":2,"seed":9)"));
}

TEST(Sampling, DefaultsOfTheModel) {
  TestServerOptions options;
  options.defaults.temperature = 0;
  TestServer server(options);
  const std::string a = texts(server.post(kCompletion, body("\"abc\"", R"("max_tokens":8)")))[0];
  EXPECT_EQ(a, texts(server.post(kCompletion, body("\"abc\"", R"("max_tokens":8,"temperature":0)")))[0]);
}

TEST(Sampling, NullIsAbsent) {
  TestServer server;
  std::string more;
  for (const char* key : {"suffix",
                          "max_tokens",
                          "max_completion_tokens",
                          "temperature",
                          "top_p",
                          "n",
                          "stream",
                          "stream_options",
                          "logprobs",
                          "echo",
                          "stop",
                          "presence_penalty",
                          "frequency_penalty",
                          "best_of",
                          "logit_bias",
                          "user",
                          "seed",
                          "top_k",
                          "min_p",
                          "repetition_penalty",
                          "min_tokens",
                          "ignore_eos",
                          "stop_token_ids",
                          "skip_special_tokens",
                          "include_stop_str_in_output",
                          "add_special_tokens",
                          "response_format",
                          "tools",
                          "tool_choice",
                          "prompt_logprobs",
                          "top_logprobs",
                          "modalities",
                          "audio",
                          "chat_template_kwargs",
                          "parallel_tool_calls",
                          "metadata"})
    more += fmt::format("{}\"{}\":null", more.empty() ? "" : ",", key);
  EXPECT_EQ(texts(server.post(kCompletion, body(R"("<<say ok>>")", more))), std::vector<std::string>{"ok"});
  EXPECT_EQ(
      server.post(kChat, R"({"model":"scripted","messages":[{"role":"user","content":"<<say ok>>"}],)" + more + "}")
          .at("choices")
          .at(0)
          .at("message")
          .at("content"),
      "ok");
}

}  // namespace
}  // namespace cadre::testing
