#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace cadre {

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "%s:%d: bug: '%s' does not hold. %.*s\n", file, line, condition, static_cast<int>(message.size()),
               message.data());
  std::abort();
}

}  // namespace cadre
