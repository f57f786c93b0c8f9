#include "tests/support/program.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>

namespace cadre::testing {

Ran run_cadre(const std::string& arguments) {
  const std::string program = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cadre").string();
  Ran ran;
  FILE* pipe = ::popen((program + " " + arguments + " 2>&1 </dev/null").c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) ran.out.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

}  // namespace cadre::testing
