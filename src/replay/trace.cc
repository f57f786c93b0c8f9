#include "replay/trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/mapped_file.h"
#include "replay/trace_reader.h"

namespace cadre::replay {
namespace {

bool parse_digits(std::string_view& text, size_t count, int64_t* out) {
  if (text.size() < count) return false;
  *out = 0;
  for (size_t i = 0; i < count; ++i) {
    if (text[i] < '0' || text[i] > '9') return false;
    *out = *out * 10 + (text[i] - '0');
  }
  text.remove_prefix(count);
  return true;
}

bool take(std::string_view& text, std::string_view any_of) {
  if (text.empty() || any_of.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

// Copies of the trace, each beginning a mean gap behind the one before.
void repeat(Trace& trace, int64_t times) {
  const std::vector<TraceRequest> once = trace.requests;
  const std::vector<uint64_t> blocks = trace.blocks;
  const uint64_t num_ids = blocks.empty() ? 0 : *std::max_element(blocks.begin(), blocks.end()) + 1;
  const auto gap =
      static_cast<int64_t>(trace.duration_s() * 1e6 / static_cast<double>(std::max<size_t>(once.size() - 1, 1)));
  const int64_t span = once.back().arrival_us + gap;
  if (static_cast<double>(span) * static_cast<double>(times) > kMaxTraceSeconds * 1e6 ||
      static_cast<double>(num_ids) * static_cast<double>(times) > 0x1p63)
    throw invalid_input("--replay-repeat: expected fewer repetitions of a trace of {:.0f} s, found {}; lower it",
                        trace.duration_s(), times);
  trace.requests.reserve(once.size() * static_cast<size_t>(times));
  trace.blocks.reserve(blocks.size() * static_cast<size_t>(times));
  for (int64_t i = 1; i < times; ++i) {
    for (TraceRequest request : once) {
      request.arrival_us += span * i;
      request.first_block += blocks.size() * static_cast<uint64_t>(i);
      trace.requests.push_back(request);
    }
    for (const uint64_t id : blocks) trace.blocks.push_back(id + num_ids * static_cast<uint64_t>(i));
  }
}

void check_options(const TraceOptions& options) {
  if (!(options.rate > 0) || !std::isfinite(options.rate) || options.rate > 1e6)
    throw invalid_input("--replay-rate: expected a factor above 0 and at most 1,000,000, found {}; correct it",
                        options.rate);
  if (options.repeat < 1 || options.limit < 0)
    throw invalid_input("replay: expected at least one repetition and no negative limit, found {} and {}; correct them",
                        options.repeat, options.limit);
  if (!(options.session_interval_s >= 0) || options.session_interval_s > 1e6)
    throw invalid_input("--replay-session-interval: expected seconds from 0 to 1,000,000, found {}; correct it",
                        options.session_interval_s);
}

}  // namespace

bool parse_timestamp_us(std::string_view text, int64_t* us) {
  int64_t year, month, day, hour, minute, second;
  if (!parse_digits(text, 4, &year) || !take(text, "-") || !parse_digits(text, 2, &month) || !take(text, "-") ||
      !parse_digits(text, 2, &day) || !take(text, " T") || !parse_digits(text, 2, &hour) || !take(text, ":") ||
      !parse_digits(text, 2, &minute) || !take(text, ":") || !parse_digits(text, 2, &second))
    return false;
  int64_t fraction_us = 0;
  if (take(text, ".")) {
    int64_t unit = 100'000, digit;
    size_t count = 0;
    for (; parse_digits(text, 1, &digit); ++count, unit /= 10) fraction_us += digit * unit;
    if (count == 0) return false;
  }
  if (text == "Z" || text == "+00:00" || text == " UTC") text = {};
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(year)),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!text.empty() || !date.ok() || hour > 23 || minute > 59 || second > 60) return false;
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  *us = ((days * 24 + hour) * 60 + minute) * 60'000'000 + second * 1'000'000 + fraction_us;
  return true;
}

std::string TraceBuilder::at(int64_t line) const { return fmt::format("{}:{}", what_, line); }

void TraceBuilder::add(int64_t line, double arrival_us, int64_t prompt_tokens, int64_t output_tokens,
                       std::span<const uint64_t> blocks) {
  if (prompt_tokens < 1 || prompt_tokens > kMaxTraceTokens)
    throw invalid_input("{}: expected a prompt of 1 to {} tokens, found {}; correct the trace", at(line),
                        kMaxTraceTokens, prompt_tokens);
  if (output_tokens < 0 || output_tokens > kMaxTraceTokens)
    throw invalid_input("{}: expected an answer of 0 to {} tokens, found {}; correct the trace", at(line),
                        kMaxTraceTokens, output_tokens);
  if (trace_.requests.empty()) first_us_ = last_us_ = arrival_us;
  if (arrival_us < last_us_)
    throw invalid_input(
        "{}: expected times in ascending order, found one {:g} ms before the line above; sort the trace", at(line),
        (last_us_ - arrival_us) / 1e3);
  if (arrival_us - first_us_ > kMaxTraceSeconds * 1e6)
    throw invalid_input("{}: expected a trace of at most {:g} s, found {:g} s; correct its times", at(line),
                        kMaxTraceSeconds, (arrival_us - first_us_) / 1e6);
  last_us_ = arrival_us;
  TraceRequest request{.arrival_us = static_cast<int64_t>(std::llround(arrival_us - first_us_)),
                       .prompt_tokens = prompt_tokens,
                       .output_tokens = output_tokens};
  request.first_block = trace_.blocks.size();
  request.num_blocks = static_cast<uint32_t>(blocks.size());
  trace_.blocks.insert(trace_.blocks.end(), blocks.begin(), blocks.end());
  trace_.requests.push_back(request);
}

Trace parse_trace(std::string_view text, std::string_view what, const TraceOptions& options) {
  check_options(options);
  Trace trace;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos)
    throw invalid_input("{}: expected a trace, found an empty file; see docs/replay.md for the forms that are read",
                        what);
  if (text[first] == '{')
    read_json_lines(text, what, options, trace);
  else
    read_csv(text, what, options, trace);
  if (trace.requests.empty())
    throw invalid_input("{}: expected at least one request, found none; see docs/replay.md for the forms that are read",
                        what);
  int64_t num_without_answer = 0;
  for (TraceRequest& request : trace.requests) {
    if (request.output_tokens == 0) ++num_without_answer, request.output_tokens = 1;
    request.arrival_us = static_cast<int64_t>(static_cast<double>(request.arrival_us) / options.rate);
  }
  if (num_without_answer > 0)
    trace.notes.push_back(fmt::format("{} requests without an answer are given one of one token", num_without_answer));
  if (options.repeat > 1) repeat(trace, options.repeat);
  return trace;
}

Trace read_trace(const std::filesystem::path& file, const TraceOptions& options) {
  const MappedFile mapped(file);
  const auto bytes = mapped.bytes();
  return parse_trace({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.filename().string(), options);
}

}  // namespace cadre::replay
