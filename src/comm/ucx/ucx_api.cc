#include "comm/ucx/ucx_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <mutex>

#include "base/error.h"

namespace cadre {
namespace {

template <typename Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function)
    throw Error(
        ErrorKind::kUnavailable,
        fmt::format("UCX: expected the function {}, found a library without it; install UCX 1.13 or later", name));
}

}  // namespace

UcxApi::UcxApi() {
  // Unless asked for, UCX leaves the process's signal handlers and memory calls alone: crashes are ours to report, and
  // what it sends from is memory that stays. Read once, when the library is loaded; once, because another rank of this
  // process may already be reading the environment.
  static std::once_flag is_environment_set;
  std::call_once(is_environment_set, [] {
    setenv("UCX_HANDLE_ERRORS", "none", 0);
    setenv("UCX_MEM_EVENTS", "n", 0);
  });
  // Never closed: UCX leaves threads and exit handlers behind.
  void* library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw Error(ErrorKind::kUnavailable, fmt::format("UCX: expected its library for ranks in several processes, found: "
                                                     "{}; install libucx0 or run all ranks in one process",
                                                     dlerror()));
#define X(name) look_up(library, #name, name);
  CADRE_UCX_FUNCTIONS(X)
#undef X
}

}  // namespace cadre
