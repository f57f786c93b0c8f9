// Stream equals whole, for thousands of seeded requests: stop strings across tokens, cut characters, cut lengths,
// choices, log-probabilities. Every case asks twice and compares what the two answers say.
#include <thread>

#include "base/rng.h"
#include "server/api_test_server.h"
#include "tests/testing.h"

namespace cadre::testing {
namespace {

// What an answer says about one choice, whatever way it came.
struct Said {
  std::string text, finish;
  json::array logprobs;  // chat: content; completions: [token, logprob, top, offset] each
  json::value stop_reason;
  bool operator==(const Said&) const = default;
};

void append_logprobs(const json::value& logprobs, bool is_chat, json::array* out) {
  if (logprobs.is_null()) return;
  if (is_chat) {
    for (const json::value& entry : logprobs.at("content").as_array()) out->push_back(entry);
    return;
  }
  const json::array& tokens = logprobs.at("tokens").as_array();
  for (size_t i = 0; i < tokens.size(); ++i)
    out->push_back(json::array{tokens[i], logprobs.at("token_logprobs").at(i), logprobs.at("top_logprobs").at(i),
                               logprobs.at("text_offset").at(i)});
}

std::vector<Said> said_whole(const json::object& reply, bool is_chat) {
  std::vector<Said> out;
  for (const json::value& choice : reply.at("choices").as_array()) {
    Said said;
    said.text = str(is_chat ? choice.at("message").at("content") : choice.at("text"));
    said.finish = str(choice.at("finish_reason"));
    append_logprobs(choice.at("logprobs"), is_chat, &said.logprobs);
    if (const json::value* reason = choice.as_object().if_contains("stop_reason")) said.stop_reason = *reason;
    out.push_back(std::move(said));
  }
  return out;
}

std::vector<Said> said_stream(const StreamResult& stream, bool is_chat, size_t num_choices) {
  std::vector<Said> out(num_choices);
  for (const json::value& event : stream.events) {
    for (const json::value& choice : event.at("choices").as_array()) {
      Said& said = out.at(choice.at("index").to_number<size_t>());
      EXPECT_EQ(said.finish, "") << "a chunk after the last one";
      if (!is_chat) {
        said.text += str(choice.at("text"));
      } else if (choice.at("delta").as_object().contains("content")) {
        said.text += str(choice.at("delta").at("content"));
      }
      append_logprobs(choice.at("logprobs"), is_chat, &said.logprobs);
      if (!choice.at("finish_reason").is_null()) said.finish = str(choice.at("finish_reason"));
      if (const json::value* reason = choice.as_object().if_contains("stop_reason")) said.stop_reason = *reason;
    }
  }
  return out;
}

// Text as a script has it: letters that make stop strings overlap, and characters of one to four bytes, some of them
// cut.
std::string random_script_text(Rng& rng) {
  static const char* kParts[] = {
      "a",          "b",     "ab",    "aab", " ",    "\\xC3\\xA9", "\\xE2\\x82\\xAC", "\\xF0\\x9F\\x8E\\xBB",
      "\\xF0\\x9F", "\\xFF", "\\xC3", "x",   "stop", "sto"};
  std::string out;
  for (uint32_t n = rng.below(14); n > 0; --n) out += kParts[rng.below(std::size(kParts))];
  return out;
}

json::object random_request(Rng& rng, bool is_chat) {
  static const char* kStops[] = {"ab",     "b a",     "stop", "aab",   "\u00E9", "\U0001F3BB",
                                 "\uFFFD", "a\u20AC", "xx",   "stops", " "};
  json::object request{{"model", "scripted"}, {"temperature", rng.below(2) ? 1.0 : 0.0}, {"seed", rng()}};
  const std::string script =
      rng.below(5) == 0 ? "no script" : (rng.below(4) ? "<<say " : "<<loop ") + random_script_text(rng) + ">>";
  if (is_chat)
    request["messages"] = json::array{json::object{{"role", "user"}, {"content", script}}};
  else
    request["prompt"] = script;
  request["max_tokens"] = 1 + rng.below(40);
  if (rng.below(2)) {
    json::array stops;
    for (uint32_t n = rng.below(5); n > 0; --n) stops.push_back(kStops[rng.below(std::size(kStops))]);
    request["stop"] = std::move(stops);
  }
  if (rng.below(4) == 0) request["n"] = 1 + rng.below(3);
  if (rng.below(4) == 0) request["include_stop_str_in_output"] = true;
  if (rng.below(4) == 0)
    request["min_tokens"] = rng.below(static_cast<uint32_t>(request["max_tokens"].to_number<int>()) + 1);
  if (rng.below(4) == 0) request["ignore_eos"] = true;
  if (rng.below(4) == 0) request["skip_special_tokens"] = false;
  if (rng.below(4) == 0) request["stop_token_ids"] = json::array{97, 0xA9};
  if (rng.below(2)) {
    if (is_chat)
      request["logprobs"] = true, request["top_logprobs"] = rng.below(4);
    else
      request["logprobs"] = rng.below(4);
  }
  if (!is_chat && rng.below(4) == 0) request["echo"] = true;
  return request;
}

void compare(TestServer& server, uint64_t stream_id, int num_cases) {
  Rng rng(seed(), stream_id);
  HttpClient client("127.0.0.1", server.port());
  for (int i = 0; i < num_cases; ++i) {
    const bool is_chat = rng.below(2) == 0;
    json::object request = random_request(rng, is_chat);
    const char* path = is_chat ? "/v1/chat/completions" : "/v1/completions";
    const std::string whole_body = json_text(request);
    SCOPED_TRACE(whole_body);
    const HttpReply whole = client.request("POST", path, whole_body);
    ASSERT_EQ(whole.status, 200) << whole.body;
    const json::object reply = parse_json(whole.body, "reply").as_object();
    request["stream"] = true;
    request["stream_options"] = json::object{{"include_usage", true}};
    client.send_request("POST", path, json_text(request), {});
    const StreamResult stream = TestServer::read_stream(client);
    ASSERT_TRUE(stream.is_done) << stream.raw;
    const std::vector<Said> a = said_whole(reply, is_chat), b = said_stream(stream, is_chat, a.size());
    for (size_t c = 0; c < a.size(); ++c) {
      ASSERT_EQ(b[c].text, a[c].text);
      ASSERT_EQ(b[c].finish, a[c].finish);
      ASSERT_EQ(b[c].logprobs, a[c].logprobs);
      ASSERT_EQ(b[c].stop_reason, a[c].stop_reason);
    }
    ASSERT_EQ(stream.events.back().at("usage"), reply.at("usage"));
    // A stop string that is not to be shown is not there, once min_tokens could not have let it pass.
    const bool shows_stops =
        request.contains("include_stop_str_in_output") || request.contains("min_tokens") || request.contains("echo");
    if (!request.contains("stop") || shows_stops) continue;
    for (const Said& said : a)
      for (const json::value& stop : request["stop"].as_array())
        ASSERT_EQ(said.text.find(std::string(stop.as_string())), std::string::npos);
  }
}

TEST(Differential, StreamEqualsWhole) {
  SCOPED_TRACE(seed());
  TestServerOptions options;
  options.engine.max_num_seqs = 8;
  options.engine.max_num_batched_tokens = 64;
  TestServer server(options);
  // Several at once, so that the answers are computed among strangers.
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) threads.emplace_back([&, t] { compare(server, t, 750); });
  for (auto& thread : threads) thread.join();
  server.expect_idle();
}

}  // namespace
}  // namespace cadre::testing
