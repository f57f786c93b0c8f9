// String literals of a template, with Python's escapes.
#pragma once

#include <string>
#include <string_view>

namespace cadre::jinja {

// Bytes of the literal text starts with, quotes included. Throws Fault when it does not end.
size_t string_literal_end(std::string_view text);
// What the part between the quotes stands for. Throws Fault for an escape Python refuses, and for lone surrogates.
std::string unescaped(std::string_view literal);

}  // namespace cadre::jinja
