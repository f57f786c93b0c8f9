// Recorded requests: when each came, how long its prompt and answer were, and which beginnings prompts share. Reads the
// published forms there are (docs/replay.md) into one. What it returns is checked: times ascend from 0, prompts and
// answers have a token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cadre::replay {

struct TraceRequest {
  int64_t arrival_us = 0;  // after the first request
  int64_t prompt_tokens = 0, output_tokens = 0;
  uint64_t first_block = 0;  // of Trace::blocks
  uint32_t num_blocks = 0;
};

struct Trace {
  std::string format;        // "mooncake", "azure", "servegen", "agentic"
  int64_t block_tokens = 0;  // tokens that a block id stands for; 0: the trace does not say what prompts share
  std::vector<TraceRequest> requests;
  std::vector<uint64_t> blocks;
  std::vector<std::string> notes;  // what was read otherwise than it stands

  // Ids of a prompt's leading blocks: equal ids mean equal tokens there and before.
  std::span<const uint64_t> blocks_of(const TraceRequest& request) const {
    return std::span(blocks).subspan(static_cast<size_t>(request.first_block), request.num_blocks);
  }
  double duration_s() const { return requests.empty() ? 0 : static_cast<double>(requests.back().arrival_us) / 1e6; }
};

struct TraceOptions {
  int64_t limit = 0;               // requests, from the start; 0: all
  double rate = 1;                 // arrivals so many times as fast
  int64_t repeat = 1;              // one after the other; block ids of each repetition are its own
  double session_interval_s = 10;  // of traces whose sessions do not say when they began: one after another
};

// Throws Error with file and line: expected, found, what to do.
Trace read_trace(const std::filesystem::path& file, const TraceOptions& options = {});
// The same of a text, named `what` in messages.
Trace parse_trace(std::string_view text, std::string_view what, const TraceOptions& options = {});

// "2023-11-16 18:17:03.9799600", a zone of zero or none behind it; microseconds since 1970. False: it is none.
bool parse_timestamp_us(std::string_view text, int64_t* us);

}  // namespace cadre::replay
