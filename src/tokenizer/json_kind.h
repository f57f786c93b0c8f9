// Reading the parts of a tokenizer.json, which are objects told apart by their "type". Shared by the parts' readers.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "tokenizer/pattern.h"

namespace cadre {

// The object that value must be, named for messages.
JsonObject json_object(const json::value& value, std::string name);

// The parts named by a "Sequence" object's list at key, each an object.
std::vector<JsonObject> json_sequence(const JsonObject& sequence, std::string_view key);

// The "pattern" of a Split or Replace: {"String": text} or {"Regex": expression}, or the bare text of old files.
struct PatternSource {
  bool is_regex;
  std::string text;
  Pattern compile() const;
};
PatternSource json_pattern(const JsonObject& part);

// Error for a part whose type is not served.
[[noreturn]] void refuse_kind(const JsonObject& part, std::string_view type, std::string_view served);

}  // namespace cadre
