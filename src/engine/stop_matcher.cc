#include "engine/stop_matcher.h"

#include <algorithm>

#include "base/check.h"

namespace cadre {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  patterns_.reserve(stops.size());
  for (const std::string& stop : stops) {
    CADRE_CHECK(!stop.empty(), "stop string {}", patterns_.size());
    Pattern pattern{stop, std::vector<uint32_t>(stop.size(), 0)};
    for (size_t i = 1; i < stop.size(); ++i) {
      uint32_t border = pattern.borders[i - 1];
      while (border > 0 && stop[i] != stop[border]) border = pattern.borders[border - 1];
      pattern.borders[i] = border + (stop[i] == stop[border] ? 1 : 0);
    }
    patterns_.push_back(std::move(pattern));
  }
}

std::optional<StopMatcher::Match> StopMatcher::push(std::string_view piece, bool may_match) {
  if (patterns_.empty()) return std::nullopt;
  for (size_t i = 0; i < piece.size(); ++i) {
    std::optional<Match> match;
    for (size_t p = 0; p < patterns_.size(); ++p) {
      Pattern& pattern = patterns_[p];
      uint32_t& matched = pattern.matched;
      while (matched > 0 && piece[i] != pattern.text[matched]) matched = pattern.borders[matched - 1];
      if (piece[i] == pattern.text[matched]) ++matched;
      if (matched < pattern.text.size()) continue;
      if (may_match && (!match || pattern.text.size() > patterns_[match->stop_idx].text.size())) match = Match{p, i + 1};
      matched = pattern.borders[matched - 1];
    }
    if (match) return match;
  }
  return std::nullopt;
}

size_t StopMatcher::num_held() const {
  size_t held = 0;
  for (const Pattern& pattern : patterns_) held = std::max<size_t>(held, pattern.matched);
  return held;
}

}  // namespace cadre
