#include "cli/version.h"

#include <cstdio>

#include "cli/commands.h"

namespace cadre::cli {

void add_version(CLI::App& app, Run* run) {
  CLI::App* command = app.add_subcommand("version", "Print the version");
  command->callback([run] {
    *run = [] {
      std::printf("cadre %s\n", kVersion);
      return kExitOk;
    };
  });
}

}  // namespace cadre::cli
