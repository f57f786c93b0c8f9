// Upper and title case of the characters that become several, sorted by code point.
// Written by tools/make_case_table.py.
#pragma once

#include <array>
#include <string_view>

namespace cadre::jinja {

struct SpecialCase {
  char32_t code_point;
  std::string_view upper, title;  // UTF-8
};
extern const std::array<SpecialCase, 102> kSpecialCases;

}  // namespace cadre::jinja
