// A compiled pattern (PCRE2, JIT where the machine has it) and the scratch one thread needs to search with it.
// Immutable.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/recent_characters.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace cadre {

// Working memory of searches; one per thread, any pattern.
class MatchScratch {
 public:
  MatchScratch();
  ~MatchScratch();
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;

  // Whether the texts to come may have characters that PCRE2 does not know (recent_characters.h).
  void set_has_recent_characters(bool has) { has_recent_characters_ = has; }

 private:
  friend class Pattern;
  bool grow_stack();

  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_ = nullptr;  // only for patterns that backtrack much
  bool has_recent_characters_ = false;
};

class Pattern {
 public:
  // pcre2: in PCRE2's syntax (regex_syntax.h makes it). shown: how messages name it. Throws Error when it does not
  // compile.
  Pattern(const std::string& pcre2, std::string_view shown);
  Pattern(Pattern&&) noexcept = default;
  Pattern& operator=(Pattern&&) noexcept = default;

  // First match in text (valid UTF-8) that starts at or after `from`, a character boundary. False when there is none.
  // Throws Error (kInvalidInput) when the search passes its limit of steps or memory.
  bool find(std::string_view text, size_t from, MatchScratch& scratch, size_t* begin, size_t* end) const;

  // Calls visit(begin, end, is_match) for parts that cover text in order: the matches and, where not empty, what lies
  // between. An empty match right after the match before it does not count.
  template <typename Visit>
  void split(std::string_view text, MatchScratch& scratch, Visit&& visit) const {
    std::string shown;
    if (scratch.has_recent_characters_) text = shown = with_stand_ins(text);
    size_t from = 0, done = 0, begin = 0, end = 0;
    bool after_match = false;
    while (from <= text.size() && find(text, from, scratch, &begin, &end)) {
      if (begin == end && after_match && end == done) {
        from = next_character(text, from);
        continue;
      }
      if (done != begin) visit(done, begin, false);
      visit(begin, end, true);
      from = done = end;
      after_match = true;
    }
    if (done != text.size()) visit(done, text.size(), false);
  }

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  static size_t next_character(std::string_view text, size_t pos);

  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
  bool has_jit_ = false;
  std::string shown_;
};

}  // namespace cadre
