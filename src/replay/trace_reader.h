// What the readers of trace.cc share: a builder that checks each request as it comes.
#pragma once

#include <string>
#include <string_view>

#include "replay/trace.h"

namespace cadre::replay {

// Sizes beyond these are mistakes, and sums of them stay far from overflow.
inline constexpr int64_t kMaxTraceTokens = int64_t{1} << 30;
inline constexpr double kMaxTraceSeconds = 1e9;

class TraceBuilder {
 public:
  TraceBuilder(Trace& trace, std::string_view what, const TraceOptions& options)
      : trace_(trace), what_(what), options_(options) {}

  bool is_full() const { return options_.limit > 0 && static_cast<int64_t>(trace_.requests.size()) >= options_.limit; }
  // "file:line"
  std::string at(int64_t line) const;
  // Arrivals are since any start, in order. Throws Error naming the line.
  void add(int64_t line, double arrival_us, int64_t prompt_tokens, int64_t output_tokens,
           std::span<const uint64_t> blocks);

 private:
  Trace& trace_;
  std::string_view what_;
  const TraceOptions& options_;
  double first_us_ = 0, last_us_ = 0;
};

void read_csv(std::string_view text, std::string_view what, const TraceOptions& options, Trace& trace);
void read_json_lines(std::string_view text, std::string_view what, const TraceOptions& options, Trace& trace);

}  // namespace cadre::replay
