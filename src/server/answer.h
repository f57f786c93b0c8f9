// The answer to one request as it grows: the one state machine behind streams and whole answers. Deltas go in; out come
// pieces per choice (text with the log-probabilities that belong to it), which are sent as events or gathered. What a
// stream's pieces concatenate to is therefore what the whole answer says. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "server/api_request.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace cadre {

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

class Answer {
 public:
  // id and created are the same in all chunks. The tokenizer must outlive the answer.
  Answer(ApiRequest request, const Tokenizer& tokenizer, std::string id, int64_t created_unix_s);

  const ApiRequest& request() const { return request_; }
  const std::string& id() const { return id_; }

  // Events that can go before the first delta: the role chunk of every chat choice, the echo of every completion
  // choice.
  void open(std::string* events);

  // One delta of prompt prompt_idx. Appends the events it makes to *events; in a whole answer pass nullptr.
  // A delta that finishes with kError or kCancelled is not for here.
  void add(size_t prompt_idx, Delta&& delta, std::string* events);

  // Every choice has its finish reason.
  bool is_finished() const { return num_finished_ == choices_.size(); }
  // The usage chunk when it was asked for, and the end mark.
  void close(std::string* events) const;
  // The whole answer; all choices are finished.
  json::object whole() const;
  Usage usage() const;

  // "data: {...}\n\n"
  static std::string event(const json::value& value);

 private:
  // One token as logprobs report it.
  struct Entry {
    OutputToken token;
    bool has_logprob = true;  // false: the first prompt token
    size_t text_offset = 0;   // in characters of the choice's text
  };
  struct Choice {
    std::string text;
    std::vector<Entry> entries;                     // of the whole answer
    std::vector<Entry> pending;                     // not yet sent with a piece of text
    std::optional<IncrementalDetokenizer> offsets;  // decodes the tokens again to know where each starts
    size_t num_chars = 0;
    bool has_begun = false;  // role or echo went out
    std::optional<FinishReason> finish;
    std::optional<std::string> stop_reason;
    std::optional<int32_t> stop_token;
    int64_t num_completion_tokens = 0;
  };
  struct Prompt {
    std::optional<std::vector<OutputToken>> scored;  // the prompt's logprobs once known
    std::deque<Delta> waiting;                       // deltas of other choices that came before them
    int64_t num_cached_tokens = 0;
  };

  size_t choice_idx(size_t prompt_idx, int32_t choice) const;
  bool needs_prompt_logprobs() const;
  void begin_choice(size_t prompt_idx, Choice* choice, std::string* events);
  void add_to_choice(size_t prompt_idx, Delta&& delta, std::string* events);
  void take_token(const OutputToken& token, bool has_logprob, Choice* choice);
  void emit_text(size_t idx, std::string text, std::string* events);
  void emit_finish(size_t idx, std::string* events);
  void emit_chunk(size_t idx, json::object delta, bool is_terminal, std::string* events);

  json::object envelope(bool is_chunk) const;
  json::value logprobs_json(const std::vector<Entry>& entries) const;
  json::object chat_entry(const OutputToken& token, bool with_top) const;
  json::object completion_logprobs(const std::vector<Entry>& entries) const;
  std::string token_text(int32_t id) const;
  json::object whole_choice(size_t idx) const;
  json::object usage_json() const;

  ApiRequest request_;
  const Tokenizer& tokenizer_;
  std::string id_;
  int64_t created_unix_s_;
  std::vector<Prompt> prompts_;
  std::vector<Choice> choices_;  // index: prompt_idx * n + choice
  size_t num_finished_ = 0;
};

}  // namespace cadre
