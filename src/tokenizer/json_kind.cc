#include "tokenizer/json_kind.h"

#include "base/error.h"
#include "tokenizer/regex_syntax.h"

namespace cadre {

JsonObject json_object(const json::value& value, std::string name) {
  if (!value.is_object())
    throw invalid_input("{}: expected an object, found {}; correct the file", name, describe(value));
  return JsonObject(value.get_object(), std::move(name));
}

std::vector<JsonObject> json_sequence(const JsonObject& sequence, std::string_view key) {
  const json::array* list = sequence.maybe_array(key);
  if (!list) throw invalid_input("{}: expected a list '{}', found none; correct the file", sequence.name(), key);
  std::vector<JsonObject> parts;
  for (size_t i = 0; i < list->size(); ++i)
    parts.push_back(json_object((*list)[i], fmt::format("{}.{}[{}]", sequence.name(), key, i)));
  return parts;
}

Pattern PatternSource::compile() const {
  return Pattern(is_regex ? pcre2_from_oniguruma(text) : pcre2_literal(text), text);
}

PatternSource json_pattern(const JsonObject& part) {
  const json::value* value = part.find("pattern");
  if (value && value->is_string()) return {false, part.string("pattern")};
  const auto pattern = part.maybe_object("pattern");
  if (pattern && pattern->has("String")) return {false, pattern->string("String")};
  if (pattern && pattern->has("Regex")) return {true, pattern->string("Regex")};
  throw invalid_input("{}: expected a 'pattern' with 'String' or 'Regex', found {}; correct the file", part.name(),
                      value ? describe(*value) : "none");
}

void refuse_kind(const JsonObject& part, std::string_view type, std::string_view served) {
  throw unsupported("{}: expected one of the served types ({}), found {}; this tokenizer is not served", part.name(),
                    served, cadre::quoted(type));
}

}  // namespace cadre
