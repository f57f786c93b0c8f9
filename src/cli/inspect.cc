#include <CLI/App.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "weights/inspect.h"

namespace cadre::cli {

void add_inspect(CLI::App& app, Run* run) {
  struct Flags {
    std::string model;
    bool as_json = false;
  };
  CLI::App* command = app.add_subcommand("inspect", "Say what a checkpoint holds: parameters by kind, bytes by type, KV bytes per token");
  auto flags = std::make_shared<Flags>();
  command->add_option("MODEL", flags->model, "Model folder, or a config.json alone")->required();
  command->add_flag("--json", flags->as_json, "As JSON");
  command->callback([run, flags] {
    *run = [flags] {
      std::fputs((flags->as_json ? inspect_json(flags->model) + "\n" : inspect_text(flags->model)).c_str(), stdout);
      return kExitOk;
    };
  });
}

}  // namespace cadre::cli
