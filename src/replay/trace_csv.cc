// Azure's traces (TIMESTAMP,ContextTokens,GeneratedTokens) and ServeGen's
// (arrival_s,...,input_tokens,output_tokens,...): columns in any order, further ones are passed over.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "replay/trace_reader.h"

namespace cadre::replay {
namespace {

constexpr size_t kMaxColumns = 64;

struct Columns {
  std::array<std::string_view, kMaxColumns> cells;
  size_t count = 0;
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') text = text.substr(1, text.size() - 2);
  return text;
}

// False when there are too many.
bool split(std::string_view line, Columns* out) {
  out->count = 0;
  while (true) {
    if (out->count == kMaxColumns) return false;
    const size_t end = line.find(',');
    out->cells[out->count++] = trimmed(line.substr(0, end));
    if (end == std::string_view::npos) return true;
    line.remove_prefix(end + 1);
  }
}

struct Form {
  std::string_view name, time, prompt, output;
};
constexpr Form kForms[] = {{"azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens"},
                           {"servegen", "arrival_s", "input_tokens", "output_tokens"}};

class CsvReader {
 public:
  CsvReader(std::string_view what, const TraceOptions& options, Trace& trace)
      : what_(what), trace_(trace), builder_(trace, what, options) {}

  void read_header(int64_t line, const Columns& header) {
    const auto place_of = [&](std::string_view name) {
      return static_cast<size_t>(std::find(header.cells.begin(), header.cells.begin() + header.count, name) -
                                 header.cells.begin());
    };
    for (const Form& form : kForms) {
      const size_t places[] = {place_of(form.time), place_of(form.prompt), place_of(form.output)};
      if (std::none_of(std::begin(places), std::end(places), [&](size_t p) { return p < header.count; })) continue;
      const std::string_view names[] = {form.time, form.prompt, form.output};
      for (int i = 0; i < 3; ++i)
        if (places[i] >= header.count)
          throw invalid_input("{}: expected the columns {}, {} and {}, found no {}; add it", builder_.at(line),
                              names[0], names[1], names[2], names[i]);
      form_ = &form;
      time_ = places[0], prompt_ = places[1], output_ = places[2];
      num_columns_ = header.count;
      trace_.format = form.name;
      return;
    }
    throw invalid_input(
        "{}: expected a header with TIMESTAMP,ContextTokens,GeneratedTokens or arrival_s,input_tokens,output_tokens, "
        "or lines of JSON, found {}; see docs/replay.md for the forms that are read",
        builder_.at(line), quoted(header.cells[0]));
  }
  bool has_header() const { return form_ != nullptr; }
  // False when there are enough.
  bool read_row(int64_t line, const Columns& row) {
    if (builder_.is_full()) return false;
    if (row.count != num_columns_)
      throw invalid_input("{}: expected {} columns as in the header, found {}; correct the line", builder_.at(line),
                          num_columns_, row.count);
    builder_.add(line, time_us(line, row.cells[time_]), tokens(line, form_->prompt, row.cells[prompt_]),
                 tokens(line, form_->output, row.cells[output_]), {});
    return true;
  }

 private:
  double time_us(int64_t line, std::string_view cell) const {
    if (int64_t us = 0; form_->name == "azure" && parse_timestamp_us(cell, &us)) return static_cast<double>(us);
    double seconds = 0;
    const auto parsed = std::from_chars(cell.data(), cell.data() + cell.size(), seconds);
    if (parsed.ec != std::errc() || parsed.ptr != cell.data() + cell.size() || !std::isfinite(seconds))
      throw invalid_input("{}: {}: expected {}, found {}; correct the line", builder_.at(line), form_->time,
                          form_->name == "azure" ? "a time such as 2023-11-16 18:17:03.97" : "seconds", quoted(cell));
    if (seconds < 0)
      throw invalid_input("{}: {}: expected a time from 0, found {}; correct the line", builder_.at(line), form_->time,
                          quoted(cell));
    return std::min(seconds, 1e12) * 1e6;
  }
  int64_t tokens(int64_t line, std::string_view name, std::string_view cell) const {
    int64_t value = 0;
    const auto parsed = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != cell.data() + cell.size())
      throw invalid_input("{}: {}: expected a whole number of tokens, found {}; correct the line", builder_.at(line),
                          name, quoted(cell));
    return value;
  }

  std::string_view what_;
  Trace& trace_;
  TraceBuilder builder_;
  const Form* form_ = nullptr;
  size_t time_ = 0, prompt_ = 0, output_ = 0, num_columns_ = 0;
};

}  // namespace

void read_csv(std::string_view text, std::string_view what, const TraceOptions& options, Trace& trace) {
  CsvReader reader(what, options, trace);
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  Columns columns;
  for (int64_t line = 1; !text.empty(); ++line) {
    const size_t end = text.find('\n');
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (trimmed(row).empty()) continue;
    if (!split(row, &columns))
      throw invalid_input(
          "{}:{}: expected at most {} columns, found more; see docs/replay.md for the forms that are read", what, line,
          kMaxColumns);
    if (!reader.has_header())
      reader.read_header(line, columns);
    else if (!reader.read_row(line, columns))
      return;
  }
}

}  // namespace cadre::replay
