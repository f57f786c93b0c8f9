// Says whether this machine is ready to serve, what is in the way and what to do about it.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/units.h"
#include "comm/store.h"
#include "comm/transport.h"
#include "host/capacity.h"
#include "host/checks.h"
#include "host/gpu_probe.h"
#include "host/ports.h"
#include "host/ucx_probe.h"
#include "kernels/cpu/machine.h"
#include "kernels/devices.h"
#include "weights/weight_source.h"

namespace cadre::cli {
namespace {

constexpr int kProbeTimeoutMs = 30'000;

struct DoctorFlags {
  std::string model, kv_cache_dtype = "auto", root = "/";
  int64_t max_model_len = 0, max_num_seqs = 64;
  int port = 0;  // 0: the one that serve takes unless told
  int threads = 0;
  bool as_json = false, no_measure = false;
  int ucx_rank = -1, ucx_store = 0;  // of a process that measures; not for people
};

// The child's side of a measurement between two processes.
int run_ucx_rank(const DoctorFlags& flags) {
  UcxMeasured measured;
  try {
    measured = measure_ucx_pair(flags.ucx_rank, {"127.0.0.1", flags.ucx_store});
  } catch (const std::exception& e) {
    measured.error = e.what();
  }
  if (flags.ucx_rank == 0) std::printf("%s\n", to_line(measured).c_str());
  return kExitOk;
}

// Runs this program as one of the two ranks; its answers come out of `out`, or nowhere with -1.
pid_t start_rank(int rank, int store_port, int out) {
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe").string(),
                                 "doctor",
                                 "--ucx-rank",
                                 std::to_string(rank),
                                 "--ucx-store",
                                 std::to_string(store_port)};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (out >= 0) ::dup2(out, STDOUT_FILENO);
  if (::getppid() == parent) ::execv(argv[0], argv.data());
  ::_exit(127);
}

// What comes from a pipe until its end, or until the time is over.
std::string read_until(int fd, int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  std::string out;
  char buffer[4096];
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd p{fd, POLLIN, 0};
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) < 0) return out;
    if (p.revents == 0) continue;
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) return out;
    out.append(buffer, static_cast<size_t>(n));
  }
}

// In processes of their own, because UCX changes a process by being loaded.
UcxMeasured measure_ucx() {
  const StoreServer store({"127.0.0.1", 0});
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0)
    return {.error = fmt::format("no pipe: {}", std::strerror(errno)), .version = {}, .transports = {}};
  const pid_t ranks[] = {start_rank(0, store.port(), pipe[1]), start_rank(1, store.port(), -1)};
  ::close(pipe[1]);
  const std::string answer = read_until(pipe[0], kProbeTimeoutMs);
  ::close(pipe[0]);
  for (const pid_t pid : ranks) {
    if (pid <= 0) continue;
    ::kill(pid, SIGKILL);  // the first has answered, or will not; the second has nothing to say
    ::waitpid(pid, nullptr, 0);
  }
  // UCX writes its own warnings before the answer.
  const size_t begin = answer.rfind("\n{") == std::string::npos ? 0 : answer.rfind("\n{") + 1;
  return ucx_measured_of(answer.substr(begin));
}

MeasuredSpeed measure_speed(const HostFacts& facts, int threads) {
  constexpr int64_t kMostBytes = int64_t{1} << 30, kLeastBytes = int64_t{64} << 20;
  MeasuredSpeed out{.threads = threads,
                    .read_bytes = std::clamp(facts.memory.usable_bytes() / 4, kLeastBytes, kMostBytes)};
  ThreadPool all(threads), one(1);
  out.read_bytes_per_s = read_bandwidth(all, static_cast<size_t>(out.read_bytes));
  out.read_bytes_per_s_one_thread =
      threads > 1 ? read_bandwidth(one, static_cast<size_t>(out.read_bytes)) : out.read_bytes_per_s;
  out.fma_flops_per_s = fma_peak(all);
  return out;
}

int usable_threads(const CpuFacts& cpu) {
  const int usable = cpu.quota ? std::min(cpu.usable, static_cast<int>(*cpu.quota)) : cpu.usable;
  return std::clamp(usable, 1, 1024);
}

// A folder that holds no servable model is a finding, not a wrong flag: the question was whether this machine can serve
// it.
void add_model(const DoctorFlags& flags, const HostFacts& facts, const MeasuredSpeed& speed,
               std::vector<Finding>& out) {
  try {
    const ModelConfig config = load_model_config(flags.model);
    CapacityRequest request{.usable_bytes = facts.memory.usable_bytes(),
                            .read_bytes_per_s = speed.read_bytes_per_s,
                            .fma_flops_per_s = speed.fma_flops_per_s};
    request.cache_bytes = facts.cpu.last_level_cache_bytes;
    request.kv_dtype = flags.kv_cache_dtype == "bfloat16" ? DType::kBF16 : DType::kF32;
    request.num_threads = flags.threads > 0 ? flags.threads : usable_threads(facts.cpu);
    request.max_num_seqs = flags.max_num_seqs;
    request.max_model_len = flags.max_model_len;
    if (flags.max_model_len > config.max_position)
      throw invalid_input("--max-model-len: expected at most the model's context of {} tokens, found {}; lower it",
                          config.max_position, flags.max_model_len);
    for (Finding& finding : check_capacity(config, request)) out.push_back(std::move(finding));
    if (std::filesystem::is_directory(flags.model)) {
      const auto source = open_checkpoint(flags.model);
      check_tensors(*source, config);
      out.push_back(
          {.section = "model",
           .name = "checkpoint",
           .text = fmt::format("{} of tensors, all that the configuration asks for", bytes_text(source->total_bytes())),
           .values = {{"bytes", source->total_bytes()}}});
    }
  } catch (const Error& error) {
    out.push_back({.section = "model",
                   .name = "model",
                   .status = FindingStatus::kProblem,
                   .text = error.what(),
                   .advice = fmt::format("cadre inspect {} says more of it", flags.model)});
  }
}

std::vector<Finding> examine(const DoctorFlags& flags) {
  const SystemFiles files(flags.root);
  const HostFacts facts = read_host_facts(files);
  std::vector<Finding> out;
  const auto add = [&](std::vector<Finding> findings) {
    for (Finding& finding : findings) out.push_back(std::move(finding));
  };
  MeasuredSpeed speed;
  add(check_processors(facts.cpu, vector_target()));
  add(check_memory(facts.memory));
  add(check_numa(facts.nodes));
  if (!flags.no_measure) {
    speed = measure_speed(facts, flags.threads > 0 ? flags.threads : usable_threads(facts.cpu));
    add(check_speed(speed, facts.cpu));
  }
  add(check_limits(facts));
  add(check_networks(facts));
  add(check_ports(facts, probe_port("127.0.0.1", flags.port > 0 ? flags.port : 8000, flags.port > 0)));
  if (!flags.no_measure) add(check_ucx(measure_ucx()));
  add(check_gpus(facts, probe_gpus(), is_built_with_cuda()));
  if (!flags.model.empty()) add_model(flags, facts, speed, out);
  return out;
}

int doctor(const DoctorFlags& flags) {
  if (flags.ucx_rank >= 0) return run_ucx_rank(flags);
  if (!flags.model.empty() && !std::filesystem::exists(flags.model))
    throw Error(ErrorKind::kNotFound,
                fmt::format("--model: expected a model folder or a config.json, found none at {}; check the path",
                            flags.model));
  const std::vector<Finding> findings = examine(flags);
  std::fputs((flags.as_json ? json::serialize(findings_json(findings)) + "\n" : findings_text(findings)).c_str(),
             stdout);
  return worst(findings) == FindingStatus::kProblem ? kExitFailed : kExitOk;
}

}  // namespace

void add_doctor(CLI::App& app, Run* run) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Examine this machine: what serves, what is in the way, what to do; with --model, what it can serve");
  auto f = std::make_shared<DoctorFlags>();
  command->add_option("--model", f->model,
                      "Model folder or config.json: weights against memory, KV cache, decode limit");
  command
      ->add_option("--kv-cache-dtype", f->kv_cache_dtype, "As for serve: auto (float32 on CPUs), float32 or bfloat16")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}))
      ->capture_default_str();
  command->add_option("--max-model-len", f->max_model_len, "As for serve; the model's context unless told")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command->add_option("--max-num-seqs", f->max_num_seqs, "As for serve")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}))
      ->capture_default_str();
  command
      ->add_option("--port", f->port,
                   "Port that has to be free; without, 8000 is looked at and a taken one is only noted")
      ->check(CLI::Range(1, 65535));
  command->add_option("--threads", f->threads, "Threads to measure with; as many as this process may use unless told")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--no-measure", f->no_measure,
                    "Read only: no bandwidth, no multiply-adds, no processes that exchange");
  command->add_flag("--json", f->as_json, "As JSON");
  command
      ->add_option("--root", f->root,
                   "Read /proc and /sys below this folder, for example one copied from another machine")
      ->check(CLI::ExistingDirectory);
  command->add_option("--ucx-rank", f->ucx_rank)->group("");
  command->add_option("--ucx-store", f->ucx_store)->group("");
  command->footer("Exit codes: 0 no problems (notes may be there); 1 at least one problem; 2 a flag or file is wrong.");
  command->callback([run, f] { *run = [f] { return doctor(*f); }; });
}

}  // namespace cadre::cli
