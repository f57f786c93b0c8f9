// Mooncake's traces ({"timestamp" in ms, "input_length", "output_length", "hash_ids" of 512 tokens}, a request a line)
// and coding agents' ({"block_size", "requests": [{"t" in s, "in", "out", "h": [[first id, count], ...]}]}, a session a
// line).
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "replay/trace_reader.h"

namespace cadre::replay {
namespace {

constexpr int64_t kMooncakeBlockTokens = 512;
constexpr int64_t kMaxId = INT64_MAX / 4;

double time_of(const JsonObject& object, std::string_view key, double most) {
  const double value = object.number(key);
  if (value < 0)
    throw invalid_input("{}: expected '{}' to be a time from 0, found {}; correct the trace", object.name(), key,
                        value);
  if (value > most)
    throw invalid_input("{}: expected '{}' to be at most {:g}, found {:g}; correct the trace", object.name(), key, most,
                        value);
  return value;
}

int64_t tokens_of(const JsonObject& object, std::string_view key) { return object.integer(key, 0, kMaxTraceTokens); }

void read_mooncake(const JsonObject& object, int64_t line, std::vector<uint64_t>& ids, TraceBuilder& builder) {
  const int64_t prompt = tokens_of(object, "input_length");
  ids.clear();
  if (const json::array* list = object.maybe_array("hash_ids")) {
    const int64_t most = (prompt + kMooncakeBlockTokens - 1) / kMooncakeBlockTokens;
    if (static_cast<int64_t>(list->size()) > most)
      throw invalid_input(
          "{}: expected at most {} 'hash_ids', one for {} of the {} prompt tokens, found {}; correct the trace",
          object.name(), most, kMooncakeBlockTokens, prompt, list->size());
    for (const json::value& id : *list) {
      if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > kMaxId)
        throw invalid_input("{}: expected 'hash_ids' to be whole numbers from 0, found {}; correct the trace",
                            object.name(), describe(id));
      ids.push_back(static_cast<uint64_t>(id.get_int64()));
    }
  }
  builder.add(line, time_of(object, "timestamp", kMaxTraceSeconds * 1e3) * 1e3, prompt,
              tokens_of(object, "output_length"), ids);
}

struct SessionRequest {
  double arrival_us = 0;
  int64_t line = 0, prompt = 0, output = 0;
  std::vector<uint64_t> ids;
};

// Block ids hold within their session; `next_id` is the first that no session has.
void read_session(const JsonObject& session, int64_t line, double start_us, uint64_t* next_id,
                  std::vector<SessionRequest>& out) {
  const int64_t block_tokens = session.integer("block_size", 1, 1 << 20);
  const json::array* list = session.maybe_array("requests");
  if (!list) throw invalid_input("{}: expected 'requests', a list, found none; correct the trace", session.name());
  uint64_t end_id = *next_id;
  double last_s = 0;
  for (const json::value& value : *list) {
    if (!value.is_object())
      throw invalid_input("{}: expected 'requests' to be objects, found {}; correct the trace", session.name(),
                          describe(value));
    const JsonObject object(value.get_object(), session.name());
    const double seconds = time_of(object, "t", kMaxTraceSeconds);
    if (seconds < last_s)
      throw invalid_input("{}: expected the times of a session in ascending order, found {} after {}; sort the trace",
                          session.name(), seconds, last_s);
    last_s = seconds;
    SessionRequest request{.arrival_us = start_us + seconds * 1e6,
                           .line = line,
                           .prompt = tokens_of(object, "in"),
                           .output = tokens_of(object, "out"),
                           .ids = {}};
    const int64_t most = (request.prompt + block_tokens - 1) / block_tokens;
    if (const json::array* runs = object.maybe_array("h")) {
      for (const json::value& run : *runs) {
        if (!run.is_array() || run.get_array().size() != 2 || !run.get_array()[0].is_int64() ||
            !run.get_array()[1].is_int64())
          throw invalid_input("{}: expected 'h' to be pairs [first id, count], found {}; correct the trace",
                              session.name(), describe(run));
        const int64_t first = run.get_array()[0].get_int64(), count = run.get_array()[1].get_int64();
        if (first < 0 || first > kMaxTraceTokens || count < 0 || count > kMaxTraceTokens)
          throw invalid_input("{}: expected ids and counts from 0 in 'h', found {}; correct the trace", session.name(),
                              describe(run));
        for (int64_t i = 0; i < count && static_cast<int64_t>(request.ids.size()) < most; ++i)
          request.ids.push_back(*next_id + static_cast<uint64_t>(first + i));
      }
      for (const uint64_t id : request.ids) end_id = std::max(end_id, id + 1);
    }
    out.push_back(std::move(request));
  }
  *next_id = end_id;
}

int64_t session_block_tokens(const JsonObject& session, int64_t known) {
  const int64_t block_tokens = session.integer("block_size", 1, 1 << 20);
  if (known != 0 && known != block_tokens)
    throw invalid_input("{}: expected the 'block_size' of the lines above, {}, found {}; split the trace",
                        session.name(), known, block_tokens);
  return block_tokens;
}

}  // namespace

void read_json_lines(std::string_view text, std::string_view what, const TraceOptions& options, Trace& trace) {
  TraceBuilder builder(trace, what, options);
  std::vector<uint64_t> ids;
  std::vector<SessionRequest> sessions;
  uint64_t next_id = 0;
  int64_t num_sessions = 0;
  for (int64_t line = 1; !text.empty() && !builder.is_full(); ++line) {
    const size_t end = text.find('\n');
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const json::value value = parse_json(row, builder.at(line));
    if (!value.is_object())
      throw invalid_input("{}: expected an object, found {}; see docs/replay.md for the forms that are read",
                          builder.at(line), describe(value));
    const JsonObject object(value.get_object(), builder.at(line));
    const bool is_session = object.has("requests");
    if (!is_session && !object.has("timestamp"))
      throw invalid_input(
          "{}: expected 'timestamp', 'input_length' and 'output_length', or 'block_size' and 'requests', found none of "
          "these; see docs/replay.md for the forms that are read",
          object.name());
    const std::string format = is_session ? "agentic" : "mooncake";
    if (!trace.format.empty() && trace.format != format)
      throw invalid_input("{}: expected the form of the lines above ({}), found {}; split the trace", object.name(),
                          trace.format, format);
    trace.format = format;
    trace.block_tokens = is_session ? session_block_tokens(object, trace.block_tokens) : kMooncakeBlockTokens;
    if (is_session)
      read_session(object, line, static_cast<double>(num_sessions++) * options.session_interval_s * 1e6, &next_id,
                   sessions);
    else
      read_mooncake(object, line, ids, builder);
  }
  // Sessions run beside each other: their requests in the order of time.
  std::stable_sort(sessions.begin(), sessions.end(),
                   [](const SessionRequest& a, const SessionRequest& b) { return a.arrival_us < b.arrival_us; });
  for (const SessionRequest& request : sessions) {
    if (builder.is_full()) break;
    builder.add(request.line, request.arrival_us, request.prompt, request.output, request.ids);
  }
}

}  // namespace cadre::replay
