// JSON as a stream of events, for documents where a key that comes twice must be seen (a parsed object keeps the last)
// or that are too large to hold as values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cadre {

// What comes along. Every method may throw. Numbers that are not integers of 64 bits come as `other`.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void begin_object() = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  virtual void key(std::string_view text) = 0;
  virtual void string(std::string_view text) = 0;
  virtual void integer(int64_t value) = 0;
  // A number that is no int64, true, false or null.
  virtual void other(std::string_view what) = 0;
};

// Throws Error naming `what` when text is not one valid JSON document at most max_depth levels deep.
void read_json_events(std::string_view text, std::string_view what, int max_depth, JsonEvents& events);

}  // namespace cadre
