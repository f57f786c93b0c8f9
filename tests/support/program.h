// The program itself, run as a user runs it. For tests whose executable lies beside `cadre`.
#pragma once

#include <string>

namespace cadre::testing {

struct Ran {
  int code = -1;    // 128 + N where signal N ended it
  std::string out;  // standard output and error together
};

// `cadre ARGUMENTS` through the shell, with nothing on standard input.
Ran run_cadre(const std::string& arguments);

}  // namespace cadre::testing
