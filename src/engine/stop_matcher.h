// Finds stop strings in a text that arrives in pieces. How the text is cut into pieces never changes the answer: the
// match that is complete first wins, and of those complete at the same byte the longest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cadre {

class StopMatcher {
 public:
  // No stop string may be empty.
  explicit StopMatcher(const std::vector<std::string>& stops);

  struct Match {
    size_t stop_idx = 0;
    size_t end = 0;  // bytes of the piece up to and including the last one of the match
  };

  // Reads a piece. With `may_match` false, complete stop strings are read over as ordinary text (they may still be the
  // beginning of a match that is completed later). After a match the object is of no further use.
  std::optional<Match> push(std::string_view piece, bool may_match);

  // Bytes at the end of the text that may turn out to belong to a stop string.
  size_t num_held() const;
  bool is_empty() const { return patterns_.empty(); }

 private:
  // Knuth, Morris and Pratt: borders[i] is the length of the longest proper border of the first i + 1 bytes.
  struct Pattern {
    std::string text;
    std::vector<uint32_t> borders;
    uint32_t matched = 0;  // bytes of `text` that the read text ends with; less than its size between bytes
  };
  std::vector<Pattern> patterns_;
};

}  // namespace cadre
