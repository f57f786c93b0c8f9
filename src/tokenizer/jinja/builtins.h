// Filters, tests and global functions by name, as Jinja and transformers' chat templates have them.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizer/jinja/ast.h"

namespace cadre::jinja {

// nullptr when there is none of that name.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);

struct Global {
  std::string_view name;
  Builtin function;
};
// range, dict, namespace, raise_exception, strftime_now, cycler, joiner.
const std::vector<Global>& global_functions();
Value global_function(Runtime& rt, const Global& global);

// Groups of filters, each sorted out in its own file.
Builtin find_text_filter(std::string_view name);
Builtin find_sequence_filter(std::string_view name);
Builtin find_order_filter(std::string_view name);
Builtin find_number_filter(std::string_view name);

// value.a.0.b for the path "a.0.b", or value[path] for another path; what `attribute=` means.
Value look_up_path(Runtime& rt, const Value& value, const Value& path);

// Formats a time (UTC) as Python's datetime.strftime does.
std::string format_time(Runtime& rt, std::string_view format, int64_t unix_s);

}  // namespace cadre::jinja
