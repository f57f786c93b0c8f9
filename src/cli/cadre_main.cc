// The command line: parses flags, runs one subcommand, turns what went wrong into one sentence and an exit code.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <new>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/layout_flags.h"

namespace cadre::cli {
namespace {

constexpr const char* kDescription =
    "Cadre serves mixture-of-experts language models.\n"
    "\n"
    "  cadre serve models/demo                        an OpenAI-compatible server on 127.0.0.1:8000\n"
    "  cadre ask http://127.0.0.1:8000 \"A question\"   one chat answer of a running server\n"
    "  cadre generate models/demo --prompt \"Once\"     text without a server\n"
    "  cadre inspect models/demo                      what a checkpoint holds\n"
    "  cadre verify --reference DIR                   a checkpoint against another implementation's answers\n"
    "  cadre eplb plan FILE --ranks N                 where experts should stand, from a recorded load\n"
    "  cadre plan --model DIR --hardware h100-80g:16  whether it fits, which layout, what bounds a step\n"
    "  cadre doctor --model models/demo               whether this machine is ready, and what it can serve";

constexpr const char* kFooter =
    "Every command has its own --help.\n"
    "Exit codes: 0 done; 1 it ran and failed; 2 a flag, file or request is wrong; 3 a port is taken or a server does "
    "not answer.";

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidInput:
    case ErrorKind::kContextLength:
    case ErrorKind::kNotFound:
    case ErrorKind::kUnsupported: return kExitBadInput;
    case ErrorKind::kOverloaded:
    case ErrorKind::kUnavailable: return kExitUnavailable;
    case ErrorKind::kInternal: return kExitFailed;
  }
  return kExitFailed;
}

int run_guarded(const Run& run) {
  try {
    return run();
  } catch (const Error& error) {
    std::fprintf(stderr, "cadre: %s\n", error.what());
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr,
                 "cadre: expected enough memory for this command, found none left; ask for fewer KV blocks or a "
                 "smaller model\n");
    return kExitFailed;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cadre: failed: %s\n", error.what());
    return kExitFailed;
  }
}

}  // namespace
}  // namespace cadre::cli

int main(int argc, char** argv) {
  using namespace cadre::cli;
  CLI::App app(kDescription, "cadre");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough(false);
  Run run;
  std::vector<std::string> arguments = spell_out_layout_flags(argc, argv);
  redirect_plan_check(&arguments);
  const std::vector<std::string> launched = take_launched_command(&arguments);
  add_serve(app, &run);
  add_generate(app, &run);
  add_ask(app, &run);
  add_inspect(app, &run);
  add_eplb(app, &run);
  add_plan_command(app, &run);
  add_doctor(app, &run);
  add_calibrate(app, &run);
  add_launch(app, &run, launched);
  add_verify(app, &run);
  add_perplexity(app, &run);
  add_version(app, &run);
  try {
    std::reverse(arguments.begin(), arguments.end());  // as the parser takes them
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    const auto chosen = app.get_subcommands();
    const std::string command = chosen.empty() ? "cadre" : "cadre " + chosen[0]->get_name();
    std::fprintf(stderr, "%s: %s; see '%s --help'\n", command.c_str(), error.what(), command.c_str());
    return kExitBadInput;
  } catch (const cadre::Error& error) {  // of a flag that is a document of its own
    std::fprintf(stderr, "cadre: %s\n", error.what());
    return kExitBadInput;
  }
  return run_guarded(run);
}
