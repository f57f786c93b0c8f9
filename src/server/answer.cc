#include "server/answer.h"

#include <cmath>

#include "base/check.h"
#include "base/utf8.h"
#include "server/json_text.h"

namespace cadre {
namespace {

size_t count_chars(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

std::string_view finish_name(FinishReason reason) { return reason == FinishReason::kLength ? "length" : "stop"; }

// JSON has no infinities; -9999 is what clients know for "impossible".
double finite_logprob(float logprob) {
  return std::isfinite(logprob) ? std::max(static_cast<double>(logprob), -9999.0) : -9999.0;
}

}  // namespace

Answer::Answer(ApiRequest request, const Tokenizer& tokenizer, std::string id, int64_t created_unix_s)
    : request_(std::move(request)), tokenizer_(tokenizer), id_(std::move(id)), created_unix_s_(created_unix_s) {
  prompts_.resize(request_.prompts.size());
  choices_.resize(static_cast<size_t>(request_.num_choices()));
  for (Choice& choice : choices_) choice.offsets.emplace(tokenizer_, request_.sampling.skip_special_tokens);
}

size_t Answer::choice_idx(size_t prompt_idx, int32_t choice) const {
  CADRE_CHECK(prompt_idx < prompts_.size() && choice >= 0 && choice < request_.n, "choice {} of prompt {}", choice,
              prompt_idx);
  return prompt_idx * static_cast<size_t>(request_.n) + static_cast<size_t>(choice);
}

bool Answer::needs_prompt_logprobs() const { return request_.echo && request_.return_logprobs; }

void Answer::open(std::string* events) {
  if (needs_prompt_logprobs()) return;  // the echo waits for them
  for (size_t prompt_idx = 0; prompt_idx < prompts_.size(); ++prompt_idx)
    for (int32_t j = 0; j < request_.n; ++j) begin_choice(prompt_idx, &choices_[choice_idx(prompt_idx, j)], events);
}

void Answer::begin_choice(size_t prompt_idx, Choice* choice, std::string* events) {
  if (std::exchange(choice->has_begun, true)) return;
  const size_t idx = static_cast<size_t>(choice - choices_.data());
  if (request_.kind == ApiKind::kChat) {
    if (events) emit_chunk(idx, {{"role", "assistant"}, {"content", ""}}, false, events);
    return;
  }
  if (!request_.echo) return;
  const Prompt& prompt = prompts_[prompt_idx];
  if (prompt.scored)
    for (size_t i = 0; i < prompt.scored->size(); ++i) take_token((*prompt.scored)[i], i > 0, choice);
  emit_text(idx, request_.prompts[prompt_idx].text, events);
  // Generated text begins where the echo ends, whatever characters the prompt's last token may have cut.
  choice->offsets.emplace(tokenizer_, request_.sampling.skip_special_tokens);
  choice->num_chars = count_chars(request_.prompts[prompt_idx].text);
}

void Answer::add(size_t prompt_idx, Delta&& delta, std::string* events) {
  Prompt& prompt = prompts_.at(prompt_idx);
  if (needs_prompt_logprobs() && !prompt.scored) {
    if (delta.prompt_tokens.empty() && delta.choice_idx != 0) {
      prompt.waiting.push_back(std::move(delta));
      return;
    }
    prompt.scored = std::move(delta.prompt_tokens);
  }
  begin_choice(prompt_idx, &choices_[choice_idx(prompt_idx, delta.choice_idx)], events);
  add_to_choice(prompt_idx, std::move(delta), events);
  while (!prompt.waiting.empty()) {
    Delta next = std::move(prompt.waiting.front());
    prompt.waiting.pop_front();
    begin_choice(prompt_idx, &choices_[choice_idx(prompt_idx, next.choice_idx)], events);
    add_to_choice(prompt_idx, std::move(next), events);
  }
}

void Answer::add_to_choice(size_t prompt_idx, Delta&& delta, std::string* events) {
  const size_t idx = choice_idx(prompt_idx, delta.choice_idx);
  Choice& choice = choices_[idx];
  CADRE_CHECK(!choice.finish, "choice {} goes on after its end", idx);
  choice.num_completion_tokens = delta.num_completion_tokens;
  prompts_[prompt_idx].num_cached_tokens = delta.num_cached_tokens;
  if (request_.return_logprobs) {
    for (const OutputToken& token : delta.tokens) {
      // Of tokens without text only special ones in mid-answer are told of: not the id that ended it, nor a stop
      // string's.
      const bool is_end = delta.stop_token && &token == &delta.tokens.back();
      const bool is_skipped_special = request_.sampling.skip_special_tokens && tokenizer_.is_special(token.token);
      if (token.in_text || (is_skipped_special && !is_end)) take_token(token, true, &choice);
    }
  }
  if (!delta.text.empty()) emit_text(idx, std::move(delta.text), events);
  if (!delta.finish) return;
  CADRE_CHECK(*delta.finish == FinishReason::kStop || *delta.finish == FinishReason::kLength, "choice {} has no answer",
              idx);
  choice.finish = delta.finish;
  choice.stop_reason = std::move(delta.stop_reason);
  choice.stop_token = delta.stop_token;
  ++num_finished_;
  emit_finish(idx, events);
}

void Answer::take_token(const OutputToken& token, bool has_logprob, Choice* choice) {
  choice->pending.push_back({token, has_logprob, choice->num_chars});
  std::string text;
  choice->offsets->push(token.token, &text);
  choice->num_chars += count_chars(text);
}

void Answer::emit_text(size_t idx, std::string text, std::string* events) {
  Choice& choice = choices_[idx];
  if (events) {
    json::object delta;
    delta[request_.kind == ApiKind::kChat ? "content" : "text"] = text;
    emit_chunk(idx, std::move(delta), false, events);
  } else {
    choice.text += text;
    for (Entry& entry : choice.pending) choice.entries.push_back(std::move(entry));
  }
  choice.pending.clear();
}

void Answer::emit_finish(size_t idx, std::string* events) {
  Choice& choice = choices_[idx];
  if (events) {
    json::object delta;
    if (request_.kind == ApiKind::kCompletion) delta["text"] = "";
    emit_chunk(idx, std::move(delta), true, events);
  } else {
    for (Entry& entry : choice.pending) choice.entries.push_back(std::move(entry));
  }
  choice.pending.clear();
}

void Answer::emit_chunk(size_t idx, json::object delta, bool is_terminal, std::string* events) {
  const Choice& choice = choices_[idx];
  json::object out{{"index", idx}};
  if (request_.kind == ApiKind::kChat) {
    out["delta"] = std::move(delta);
  } else {
    out["text"] = delta["text"];
  }
  out["logprobs"] =
      request_.return_logprobs && !choice.pending.empty() ? logprobs_json(choice.pending) : json::value(nullptr);
  out["finish_reason"] = is_terminal ? json::value(finish_name(*choice.finish)) : json::value(nullptr);
  if (is_terminal && choice.stop_reason) out["stop_reason"] = *choice.stop_reason;
  if (is_terminal && choice.stop_token) out["stop_reason"] = *choice.stop_token;

  json::object chunk = envelope(true);
  chunk["choices"] = json::array{std::move(out)};
  if (request_.continuous_usage)
    chunk["usage"] = usage_json();
  else if (request_.include_usage)
    chunk["usage"] = nullptr;
  *events += event(chunk);
}

void Answer::close(std::string* events) const {
  if (request_.include_usage) {
    json::object chunk = envelope(true);
    chunk["choices"] = json::array();
    chunk["usage"] = usage_json();
    *events += event(chunk);
  }
  *events += "data: [DONE]\n\n";
}

std::string Answer::event(const json::value& value) { return "data: " + json_text(value) + "\n\n"; }

json::object Answer::envelope(bool is_chunk) const {
  const bool is_chat = request_.kind == ApiKind::kChat;
  json::object out;
  out["id"] = id_;
  out["object"] = !is_chat ? "text_completion" : is_chunk ? "chat.completion.chunk" : "chat.completion";
  out["created"] = created_unix_s_;
  out["model"] = request_.model;
  return out;
}

json::object Answer::whole() const {
  json::object out = envelope(false);
  json::array choices;
  for (size_t idx = 0; idx < choices_.size(); ++idx) choices.push_back(whole_choice(idx));
  out["choices"] = std::move(choices);
  out["usage"] = usage_json();
  return out;
}

json::object Answer::whole_choice(size_t idx) const {
  const Choice& choice = choices_[idx];
  json::object out{{"index", idx}};
  if (request_.kind == ApiKind::kChat) {
    out["message"] = json::object{{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
  } else {
    out["text"] = choice.text;
  }
  out["logprobs"] = request_.return_logprobs ? logprobs_json(choice.entries) : json::value(nullptr);
  out["finish_reason"] = finish_name(*choice.finish);
  if (choice.stop_reason) out["stop_reason"] = *choice.stop_reason;
  if (choice.stop_token) out["stop_reason"] = *choice.stop_token;
  return out;
}

Usage Answer::usage() const {
  Usage usage;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    usage.prompt_tokens += static_cast<int64_t>(request_.prompts[i].ids.size());
    usage.cached_tokens += prompts_[i].num_cached_tokens;
  }
  for (const Choice& choice : choices_) usage.completion_tokens += choice.num_completion_tokens;
  return usage;
}

json::object Answer::usage_json() const {
  const Usage u = usage();
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.completion_tokens},
          {"total_tokens", u.prompt_tokens + u.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", u.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", 0}}}};
}

json::value Answer::logprobs_json(const std::vector<Entry>& entries) const {
  if (request_.kind == ApiKind::kCompletion) return completion_logprobs(entries);
  json::array content;
  for (const Entry& entry : entries) content.push_back(chat_entry(entry.token, true));
  return json::object{{"content", std::move(content)}, {"refusal", nullptr}};
}

json::object Answer::chat_entry(const OutputToken& token, bool with_top) const {
  json::object out;
  out["token"] = utf8::replace_invalid(tokenizer_.piece(token.token));
  out["logprob"] = finite_logprob(token.logprob);
  // The bytes of all entries together are the text, so a token that the text leaves out has none.
  json::array bytes;
  if (!(request_.sampling.skip_special_tokens && tokenizer_.is_special(token.token)))
    for (const char c : tokenizer_.piece(token.token)) bytes.push_back(static_cast<unsigned char>(c));
  out["bytes"] = std::move(bytes);
  if (!with_top) return out;
  json::array top;
  for (const TokenLogprob& other : token.top) {
    OutputToken plain;
    plain.token = other.token;
    plain.logprob = other.logprob;
    top.push_back(chat_entry(plain, false));
  }
  out["top_logprobs"] = std::move(top);
  return out;
}

// Token text where alternatives are keys: part of a character is spelt out, so that two of them never become one key.
std::string Answer::token_text(int32_t id) const {
  const std::string_view piece = tokenizer_.piece(id);
  if (utf8::is_valid(piece)) return std::string(piece);
  std::string out = "bytes:";
  for (const char c : piece) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

json::object Answer::completion_logprobs(const std::vector<Entry>& entries) const {
  json::array tokens, logprobs, tops, offsets;
  for (const Entry& entry : entries) {
    tokens.push_back(json::value(token_text(entry.token.token)));
    offsets.push_back(entry.text_offset);
    if (!entry.has_logprob) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(finite_logprob(entry.token.logprob));
    // The chosen token is always among them, so there may be one more than asked for.
    json::object top;
    top[token_text(entry.token.token)] = finite_logprob(entry.token.logprob);
    for (const TokenLogprob& other : entry.token.top) top[token_text(other.token)] = finite_logprob(other.logprob);
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace cadre
