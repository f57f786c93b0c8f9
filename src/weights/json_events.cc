#include "weights/json_events.h"

#include <boost/json/basic_parser_impl.hpp>

#include "base/error.h"

namespace cadre {
namespace {

namespace json = boost::json;

// Joins the parts that the parser hands out and passes whole values on.
class Handler {
 public:
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);

  explicit Handler(JsonEvents& events) : events_(events) {}

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) { return events_.begin_object(), true; }
  bool on_object_end(std::size_t, json::error_code&) { return events_.end_object(), true; }
  bool on_array_begin(json::error_code&) { return events_.begin_array(), true; }
  bool on_array_end(std::size_t, json::error_code&) { return events_.end_array(), true; }
  bool on_key_part(json::string_view part, std::size_t, json::error_code&) { return add(part); }
  bool on_key(json::string_view part, std::size_t, json::error_code&) {
    add(part);
    events_.key(text_);
    text_.clear();
    return true;
  }
  bool on_string_part(json::string_view part, std::size_t, json::error_code&) { return add(part); }
  bool on_string(json::string_view part, std::size_t, json::error_code&) {
    add(part);
    events_.string(text_);
    text_.clear();
    return true;
  }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t value, json::string_view, json::error_code&) { return events_.integer(value), true; }
  bool on_uint64(uint64_t, json::string_view, json::error_code&) { return events_.other("a number above 2^63"), true; }
  bool on_double(double, json::string_view, json::error_code&) {
    return events_.other("a number that is no integer"), true;
  }
  bool on_bool(bool value, json::error_code&) { return events_.other(value ? "true" : "false"), true; }
  bool on_null(json::error_code&) { return events_.other("null"), true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  bool add(json::string_view part) {
    text_.append(part.data(), part.size());
    return true;
  }
  JsonEvents& events_;
  std::string text_;
};

}  // namespace

void read_json_events(std::string_view text, std::string_view what, int max_depth, JsonEvents& events) {
  json::parse_options options;
  options.max_depth = static_cast<std::size_t>(max_depth);
  json::basic_parser<Handler> parser(options, events);
  json::error_code ec;
  const std::size_t consumed = parser.write_some(false, text.data(), text.size(), ec);
  if (!ec && consumed < text.size()) ec = json::error::extra_data;
  if (ec)
    throw invalid_input(
        "{}: expected valid JSON at most {} levels deep, found an error near byte {} of {} ({}); the file is damaged",
        what, max_depth, consumed, text.size(), ec.message());
}

}  // namespace cadre
