// Starts the ranks of a deployment as processes of this host, gives each its place, forwards signals, ends all when one
// fails.
#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "comm/store.h"

namespace cadre::cli {
namespace {

constexpr int kGraceSeconds = 10;  // that ranks get to end after another one failed

struct LaunchFlags {
  int num_ranks = 0;
  std::vector<std::string> command;
};

// The environment of a rank: this one's, with its place in it.
std::vector<std::string> rank_environment(int rank, const LaunchFlags& flags, const std::string& store) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry; ++entry)
    if (!std::string_view(*entry).starts_with("CADRE_RANK=") && !std::string_view(*entry).starts_with("CADRE_WORLD_SIZE=") && !std::string_view(*entry).starts_with("CADRE_STORE="))
      out.emplace_back(*entry);
  out.push_back(fmt::format("CADRE_RANK={}", rank));
  out.push_back(fmt::format("CADRE_WORLD_SIZE={}", flags.num_ranks));
  out.push_back("CADRE_STORE=" + store);
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

pid_t start_rank(int rank, const LaunchFlags& flags, const std::string& store, const sigset_t& old_mask) {
  // All memory is taken before the fork: the store's thread may hold the allocator's lock in this moment.
  std::vector<std::string> environment = rank_environment(rank, flags, store), words{std::filesystem::read_symlink("/proc/self/exe").string()};
  words.insert(words.end(), flags.command.begin(), flags.command.end());
  std::vector<char*> argv = pointers(words), envp = pointers(environment);
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) throw Error(ErrorKind::kUnavailable, fmt::format("expected to start rank {}, found: {}; start fewer", rank, std::strerror(errno)));
  if (pid > 0) return pid;
  ::sigprocmask(SIG_SETMASK, &old_mask, nullptr);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // ranks do not outlive their launcher
  if (::getppid() == parent) ::execve(argv[0], argv.data(), envp.data());
  ::_exit(127);
}

// Waits for all; the first code that is not 0 is the launcher's.
int watch(std::vector<pid_t> ranks, int signals) {
  int code = kExitOk;
  size_t left = ranks.size();
  const auto kill_all = [&](int signal) {
    for (const pid_t pid : ranks)
      if (pid > 0) ::kill(pid, signal);
  };
  while (left > 0) {
    signalfd_siginfo info;
    if (::read(signals, &info, sizeof(info)) != sizeof(info)) continue;
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGTERM || signal == SIGINT) kill_all(signal);
    if (signal == SIGALRM) kill_all(SIGKILL);
    if (signal != SIGCHLD) continue;
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      for (size_t r = 0; r < ranks.size(); ++r) {
        if (ranks[r] != pid) continue;
        ranks[r] = 0;
        --left;
        const int rank_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (rank_code == 0 || code != kExitOk) continue;
        code = rank_code;
        std::fprintf(stderr, "cadre launch: rank %zu ended with %d; ending the others\n", r, rank_code);
        kill_all(SIGTERM);
        ::alarm(kGraceSeconds);
      }
    }
  }
  return code;
}

int launch(const LaunchFlags& flags) {
  if (flags.command.empty()) throw invalid_input("cadre launch: expected a command after its own options, found none; for example: cadre launch -n 2 serve MODEL -dp 2 -ep");
  // Blocked before any thread starts, so that all of them leave the signals to watch().
  sigset_t mask, old_mask;
  ::sigemptyset(&mask);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD, SIGALRM}) ::sigaddset(&mask, signal);
  ::sigprocmask(SIG_BLOCK, &mask, &old_mask);
  // Ranks find each other here; it binds before any of them starts.
  const StoreServer store({"127.0.0.1", 0});
  const int signals = ::signalfd(-1, &mask, SFD_CLOEXEC);
  std::vector<pid_t> ranks;
  for (int r = 0; r < flags.num_ranks; ++r) ranks.push_back(start_rank(r, flags, fmt::format("127.0.0.1:{}", store.port()), old_mask));
  const int code = watch(std::move(ranks), signals);
  ::close(signals);
  return code;
}

}  // namespace

// The parser sees launch's own options; what comes after them is another command line.
std::vector<std::string> take_launched_command(std::vector<std::string>* arguments) {
  if (arguments->empty() || arguments->front() != "launch") return {};
  size_t at = 1;
  while (at < arguments->size() && (*arguments)[at].starts_with("-")) at += (*arguments)[at] == "-n" || (*arguments)[at] == "--num-ranks" ? 2 : 1;
  at = std::min(at, arguments->size());
  std::vector<std::string> command(arguments->begin() + static_cast<std::ptrdiff_t>(at), arguments->end());
  arguments->resize(at);
  return command;
}

void add_launch(CLI::App& app, Run* run, std::vector<std::string> launched) {
  CLI::App* command = app.add_subcommand("launch", "Start a command's ranks as processes of this host: cadre launch -n 4 serve MODEL -dp 4 -ep");
  auto f = std::make_shared<LaunchFlags>();
  command->add_option("-n,--num-ranks", f->num_ranks, "Ranks; as many as the command's layout has")->required()->check(CLI::Range(1, 4096));
  f->command = std::move(launched);
  command->footer("Rank 0 serves; the others follow it. SIGTERM and SIGINT go to all ranks. Ranks on several hosts are started by mpirun,\n"
                  "srun or torchrun instead, which set the same things (docs/transports.md).");
  command->callback([run, f] { *run = [f] { return launch(*f); }; });
}

}  // namespace cadre::cli
