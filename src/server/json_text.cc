#include "server/json_text.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/utf8.h"

namespace cadre {
namespace {

void append_string(std::string_view text, std::string* out) {
  std::string replaced;
  if (!utf8::is_valid(text)) text = replaced = utf8::replace_invalid(text);
  *out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
          *out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        else
          *out += c;
    }
  }
  *out += '"';
}

// 1.0 stays a number with a point: some clients tell integers from floats by it.
void append_number(double number, std::string* out) {
  if (!std::isfinite(number)) {
    *out += "null";
    return;
  }
  const std::string text = fmt::format("{}", number);
  *out += text;
  if (text.find_first_of(".e") == std::string::npos) *out += ".0";
}

void append_value(const json::value& value, std::string* out) {
  switch (value.kind()) {
    case json::kind::null:
      *out += "null";
      break;
    case json::kind::bool_:
      *out += value.get_bool() ? "true" : "false";
      break;
    case json::kind::int64:
      *out += fmt::format("{}", value.get_int64());
      break;
    case json::kind::uint64:
      *out += fmt::format("{}", value.get_uint64());
      break;
    case json::kind::double_:
      append_number(value.get_double(), out);
      break;
    case json::kind::string:
      append_string(std::string_view(value.get_string()), out);
      break;
    case json::kind::array: {
      *out += '[';
      const char* comma = "";
      for (const json::value& item : value.get_array()) {
        *out += std::exchange(comma, ",");
        append_value(item, out);
      }
      *out += ']';
      break;
    }
    case json::kind::object: {
      *out += '{';
      const char* comma = "";
      for (const auto& [key, item] : value.get_object()) {
        *out += std::exchange(comma, ",");
        append_string(std::string_view(key), out);
        *out += ':';
        append_value(item, out);
      }
      *out += '}';
      break;
    }
  }
}

}  // namespace

std::string json_text(const json::value& value) {
  std::string out;
  append_value(value, &out);
  return out;
}

}  // namespace cadre
