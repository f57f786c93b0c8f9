// The subcommands of `cadre`, one file each. add_x() declares the flags and sets *run to what the command does once the
// flags are parsed; run returns the exit code or throws Error.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

namespace cadre::cli {

// Exit codes, told in --help.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;       // it ran and failed: our own fault, or a check that did not pass
inline constexpr int kExitBadInput = 2;     // a flag, file or request is wrong
inline constexpr int kExitUnavailable = 3;  // a port is taken, a server does not answer

using Run = std::function<int()>;

void add_serve(CLI::App& app, Run* run);
void add_generate(CLI::App& app, Run* run);
void add_inspect(CLI::App& app, Run* run);
void add_eplb(CLI::App& app, Run* run);
void add_doctor(CLI::App& app, Run* run);
void add_calibrate(CLI::App& app, Run* run);
void add_ask(CLI::App& app, Run* run);
void add_launch(CLI::App& app, Run* run, std::vector<std::string> launched);
// Cuts the command that `launch` starts off the arguments; empty for other commands.
std::vector<std::string> take_launched_command(std::vector<std::string>* arguments);
void add_plan_command(CLI::App& app, Run* run);
// `plan --check [serve] FLAGS` is `serve FLAGS --check`: the check of a command is the one that the command makes.
void redirect_plan_check(std::vector<std::string>* arguments);
void add_verify(CLI::App& app, Run* run);
void add_perplexity(CLI::App& app, Run* run);
void add_version(CLI::App& app, Run* run);

}  // namespace cadre::cli
