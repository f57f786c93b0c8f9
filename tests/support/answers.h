// Collects what a sink receives, choice by choice, and checks the promises of Delta on the way.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"

namespace cadre::testing {

struct Answer {
  std::string text, error;
  std::vector<OutputToken> tokens, prompt_tokens;
  std::optional<FinishReason> finish;
  std::optional<std::string> stop_reason;
  std::optional<int32_t> stop_token;
  int64_t num_prompt_tokens = 0, num_completion_tokens = 0;
  int64_t num_deltas = 0;
};

inline void add_delta(Delta&& delta, std::vector<Answer>* choices) {
  ASSERT_GE(delta.choice_idx, 0);
  ASSERT_LT(static_cast<size_t>(delta.choice_idx), choices->size());
  Answer& answer = (*choices)[static_cast<size_t>(delta.choice_idx)];
  EXPECT_FALSE(answer.finish) << "a delta after the last one";
  EXPECT_GE(delta.num_completion_tokens, answer.num_completion_tokens);
  EXPECT_TRUE(delta.prompt_tokens.empty() || (answer.num_deltas == 0 && delta.choice_idx == 0));
  answer.text += delta.text;
  answer.error += delta.error;
  for (OutputToken& token : delta.tokens) answer.tokens.push_back(std::move(token));
  for (OutputToken& token : delta.prompt_tokens) answer.prompt_tokens.push_back(std::move(token));
  answer.finish = delta.finish;
  answer.stop_reason = delta.stop_reason;
  answer.stop_token = delta.stop_token;
  answer.num_prompt_tokens = delta.num_prompt_tokens;
  answer.num_completion_tokens = delta.num_completion_tokens;
  ++answer.num_deltas;
  if (!answer.finish) return;
  EXPECT_EQ(answer.tokens.size(), static_cast<size_t>(answer.num_completion_tokens));
}

// A sink that fills *choices, which must outlive it and have one entry per choice.
inline DeltaSink collector(std::shared_ptr<std::vector<Answer>> choices) {
  return [choices = std::move(choices)](Delta&& delta) { add_delta(std::move(delta), choices.get()); };
}

inline bool same_tokens(const std::vector<OutputToken>& a, const std::vector<OutputToken>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].token != b[i].token || a[i].logprob != b[i].logprob || a[i].in_text != b[i].in_text ||
        a[i].top.size() != b[i].top.size())
      return false;
    for (size_t j = 0; j < a[i].top.size(); ++j)
      if (a[i].top[j].token != b[i].top[j].token || a[i].top[j].logprob != b[i].top[j].logprob) return false;
  }
  return true;
}

// Equal to the bit, log-probabilities included; how the answer was cut into deltas may differ.
inline void expect_same(const Answer& got, const Answer& expected) {
  EXPECT_EQ(got.text, expected.text);
  EXPECT_EQ(got.error, expected.error);
  EXPECT_EQ(got.finish, expected.finish);
  EXPECT_EQ(got.stop_reason, expected.stop_reason);
  EXPECT_EQ(got.stop_token, expected.stop_token);
  EXPECT_EQ(got.num_prompt_tokens, expected.num_prompt_tokens);
  EXPECT_EQ(got.num_completion_tokens, expected.num_completion_tokens);
  EXPECT_TRUE(same_tokens(got.tokens, expected.tokens));
  EXPECT_TRUE(same_tokens(got.prompt_tokens, expected.prompt_tokens));
}

}  // namespace cadre::testing
