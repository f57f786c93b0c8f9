#include "base/json.h"

#include <cmath>
#include <fstream>

#include "base/error.h"

namespace cadre {
namespace {

Error wrong_type(const JsonObject& object, std::string_view key, std::string_view expected, const json::value* found) {
  const std::string what = found ? describe(*found) : "nothing";
  return Error(ErrorKind::kInvalidInput,
               fmt::format("{}: expected '{}' to be {}, found {}", object.name(), key, expected, what), std::string(key));
}

}  // namespace

std::string describe(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null: return "null";
    case json::kind::bool_: return value.get_bool() ? "true" : "false";
    case json::kind::int64: return fmt::format("{}", value.get_int64());
    case json::kind::uint64: return fmt::format("{}", value.get_uint64());
    case json::kind::double_: return fmt::format("{}", value.get_double());
    case json::kind::string: return "the string " + quoted(std::string_view(value.get_string()), 40);
    case json::kind::array: return fmt::format("an array of {}", value.get_array().size());
    case json::kind::object: return fmt::format("an object of {} keys", value.get_object().size());
  }
  return "?";
}

json::value parse_json(std::string_view text, std::string_view what, int max_depth) {
  json::parse_options options;
  options.max_depth = static_cast<std::size_t>(max_depth);
  json::stream_parser parser({}, options);
  json::error_code ec;
  const std::size_t consumed = parser.write(text.data(), text.size(), ec);
  if (!ec) parser.finish(ec);
  if (ec)
    throw invalid_input("{}: expected valid JSON at most {} levels deep, found an error near byte {} of {} ({}); correct the text",
                        what, max_depth, consumed, text.size(), ec.message());
  return parser.release();
}

json::value parse_json_file(const std::filesystem::path& path, uint64_t max_bytes) {
  std::error_code ec;
  const uint64_t bytes = std::filesystem::file_size(path, ec);
  if (ec) throw Error(ErrorKind::kNotFound, fmt::format("expected a readable file at {}, found: {}; check the path", path.string(), ec.message()));
  if (bytes > max_bytes)
    throw invalid_input("{}: expected at most {} bytes of JSON, found {}; this is not the file it should be", path.string(), max_bytes, bytes);
  std::string text(bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!in) throw Error(ErrorKind::kNotFound, fmt::format("expected to read {} bytes of {}, found fewer; check the file", bytes, path.string()));
  return parse_json(text, path.filename().string());
}

const json::value* JsonObject::find(std::string_view key) const {
  const json::value* value = object_->if_contains(key);
  return value && !value->is_null() ? value : nullptr;
}

std::optional<int64_t> JsonObject::maybe_integer(std::string_view key, int64_t min, int64_t max) const {
  const json::value* value = find(key);
  if (!value) return std::nullopt;
  const auto expected = fmt::format("an integer from {} to {}", min, max);
  int64_t result = 0;
  if (value->is_int64()) {
    result = value->get_int64();
  } else if (value->is_double() && std::nearbyint(value->get_double()) == value->get_double() && std::abs(value->get_double()) < 9e15) {
    result = static_cast<int64_t>(value->get_double());  // 1e3 and 8.0 are integers to JSON
  } else {
    throw wrong_type(*this, key, expected, value);
  }
  if (result < min || result > max) throw wrong_type(*this, key, expected, value);
  return result;
}

std::optional<double> JsonObject::maybe_number(std::string_view key) const {
  const json::value* value = find(key);
  if (!value) return std::nullopt;
  double result = 0;
  if (value->is_int64()) result = static_cast<double>(value->get_int64());
  else if (value->is_uint64()) result = static_cast<double>(value->get_uint64());
  else if (value->is_double()) result = value->get_double();
  else throw wrong_type(*this, key, "a number", value);
  if (!std::isfinite(result)) throw wrong_type(*this, key, "a finite number", value);
  return result;
}

std::optional<bool> JsonObject::maybe_boolean(std::string_view key) const {
  const json::value* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_bool()) throw wrong_type(*this, key, "true or false", value);
  return value->get_bool();
}

std::optional<std::string> JsonObject::maybe_string(std::string_view key) const {
  const json::value* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) throw wrong_type(*this, key, "a string", value);
  return std::string(std::string_view(value->get_string()));
}

std::optional<JsonObject> JsonObject::maybe_object(std::string_view key) const {
  const json::value* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_object()) throw wrong_type(*this, key, "an object", value);
  return JsonObject(value->get_object(), name_ + "." + std::string(key));
}

const json::array* JsonObject::maybe_array(std::string_view key) const {
  const json::value* value = find(key);
  if (!value) return nullptr;
  if (!value->is_array()) throw wrong_type(*this, key, "an array", value);
  return &value->get_array();
}

int64_t JsonObject::integer(std::string_view key, int64_t min, int64_t max) const {
  if (auto v = maybe_integer(key, min, max)) return *v;
  throw wrong_type(*this, key, fmt::format("an integer from {} to {}", min, max), nullptr);
}
double JsonObject::number(std::string_view key) const {
  if (auto v = maybe_number(key)) return *v;
  throw wrong_type(*this, key, "a number", nullptr);
}
bool JsonObject::boolean(std::string_view key) const {
  if (auto v = maybe_boolean(key)) return *v;
  throw wrong_type(*this, key, "true or false", nullptr);
}
std::string JsonObject::string(std::string_view key) const {
  if (auto v = maybe_string(key)) return *v;
  throw wrong_type(*this, key, "a string", nullptr);
}

}  // namespace cadre
