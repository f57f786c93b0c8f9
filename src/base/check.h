// CADRE_CHECK aborts on a bug: a broken promise between parts of the program. No user input may reach one;
// bad input is an Error (error.h).
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace cadre {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message);

}  // namespace cadre

#define CADRE_CHECK(condition, ...)                                                            \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      ::cadre::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__));    \
  } while (false)
