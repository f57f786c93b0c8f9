// JSON from outside, on Boost.JSON: a bounded parser and typed reads that name the key when they refuse.
#pragma once

#include <boost/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace cadre {

namespace json = boost::json;

// Parses text, at most max_depth levels deep. Throws Error naming `what` and the place of the fault.
json::value parse_json(std::string_view text, std::string_view what, int max_depth = 64);

// Reads and parses a file of at most max_bytes.
json::value parse_json_file(const std::filesystem::path& path, uint64_t max_bytes = uint64_t{256} << 20);

// A JSON object with the name it has in messages ("config.json", "request"). null counts as absent everywhere.
// The view does not own the object.
class JsonObject {
 public:
  JsonObject(const json::object& object, std::string name) : object_(&object), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  const json::object& raw() const { return *object_; }
  // The value at key, or nullptr when absent or null.
  const json::value* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  // Each throws Error with key, expected type and found value when the type or range is wrong; the optional forms
  // return nullopt when the key is absent or null, the others throw then.
  int64_t integer(std::string_view key, int64_t min, int64_t max) const;
  double number(std::string_view key) const;  // finite
  bool boolean(std::string_view key) const;
  std::string string(std::string_view key) const;
  std::optional<int64_t> maybe_integer(std::string_view key, int64_t min, int64_t max) const;
  std::optional<double> maybe_number(std::string_view key) const;
  std::optional<bool> maybe_boolean(std::string_view key) const;
  std::optional<std::string> maybe_string(std::string_view key) const;
  std::optional<JsonObject> maybe_object(std::string_view key) const;
  const json::array* maybe_array(std::string_view key) const;

 private:
  const json::object* object_;
  std::string name_;
};

// Short description of a value for messages: its type and, shortened, its text.
std::string describe(const json::value& value);

}  // namespace cadre
