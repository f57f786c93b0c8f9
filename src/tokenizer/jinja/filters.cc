// Finds a filter in its group; and what several groups share.
#include <array>
#include <charconv>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {

Builtin find_filter(std::string_view name) {
  for (const auto find : {find_text_filter, find_sequence_filter, find_order_filter, find_number_filter})
    if (const Builtin found = find(name)) return found;
  return nullptr;
}

Value look_up_path(Runtime& rt, const Value& value, const Value& path) {
  if (path.is_none()) return value;
  if (!path.is_string()) return get_item(rt, value, path);
  Value current = value;
  for (const std::string_view part : split(path.text(), ".", -1)) {
    rt.heap.step();
    int64_t idx = 0;
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == part.npos &&
                           std::from_chars(part.data(), part.data() + part.size(), idx).ec == std::errc();
    current = get_item(rt, current, is_number ? Value(idx) : rt.string(part));
  }
  return current;
}

}  // namespace cadre::jinja
