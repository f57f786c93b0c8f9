// Template text to a syntax tree.
#pragma once

#include <memory>
#include <string_view>

#include "tokenizer/jinja/ast.h"

namespace cadre::jinja {

// Throws Fault; *line then holds the line at fault. max_depth bounds the nesting of statements and expressions.
std::unique_ptr<SyntaxTree> parse_template(std::string_view source, int max_depth, int* line);

}  // namespace cadre::jinja
