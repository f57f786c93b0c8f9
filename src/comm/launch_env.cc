#include "comm/launch_env.h"

#include <unistd.h>

#include <charconv>
#include <string_view>

#include "base/error.h"

namespace cadre {
namespace {

const std::string* find(const Environment& environment, const std::string& name) {
  const auto it = environment.find(name);
  return it == environment.end() || it->second.empty() ? nullptr : &it->second;
}

int number(const Environment& environment, const std::string& name, int max) {
  const std::string& text = *find(environment, name);
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > max)
    throw invalid_input("{}: expected a whole number from 0 to {}, found {}", name, max, quoted(text));
  return value;
}

struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
};
constexpr Names kLaunchers[] = {
    {"cadre", "CADRE_RANK", "CADRE_WORLD_SIZE", "CADRE_LOCAL_RANK"},
    {"open mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
};

// The first host of a Slurm node list: "node[03-05,9],login" is node03.
std::string first_of_node_list(const std::string& list) {
  const size_t open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", open);
  if (end == std::string::npos)
    throw invalid_input("SLURM_NODELIST: expected hosts like node[1-3], found {}", quoted(list));
  const size_t close = list.find(']', end);
  const size_t suffix_end = close == std::string::npos ? close : list.find_first_of(",", close);
  if (close == std::string::npos)
    throw invalid_input("SLURM_NODELIST: expected a closing bracket, found {}", quoted(list));
  return list.substr(0, open) + list.substr(open + 1, end - open - 1) +
         list.substr(close + 1, suffix_end == std::string::npos ? suffix_end : suffix_end - close - 1);
}

std::optional<StoreAddress> store_of(const Environment& environment, std::string_view launcher) {
  if (const std::string* store = find(environment, "CADRE_STORE")) return parse_store_address(*store);
  const std::string* host = find(environment, "MASTER_ADDR");
  const std::string* port = find(environment, "MASTER_PORT");
  if (launcher == "torchrun" && (!host || !port))
    throw invalid_input(
        "RANK and WORLD_SIZE are set: expected MASTER_ADDR and MASTER_PORT beside them, found {}; set both, or "
        "CADRE_STORE=host:port",
        host ? "no port" : "no host");
  // Slurm and mpirun scripts often set these two as well.
  if (host && port) return StoreAddress{*host, number(environment, "MASTER_PORT", 65535)};
  if (launcher != "slurm") return std::nullopt;
  if (const std::string* address = find(environment, "SLURM_LAUNCH_NODE_IPADDR")) return StoreAddress{*address, 0};
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (const std::string* list = find(environment, name)) return StoreAddress{first_of_node_list(*list), 0};
  return std::nullopt;
}

}  // namespace

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    if (const size_t equals = text.find('='); equals != std::string_view::npos)
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::optional<LaunchEnv> read_launch_env(const Environment& environment) {
  constexpr int kMaxRanks = 1 << 20;
  for (const Names& names : kLaunchers) {
    const bool has_rank = find(environment, names.rank), has_size = find(environment, names.size);
    if (!has_rank && !has_size) continue;
    // Inside a Slurm allocation the number of tasks is set for the batch script too, which is no rank.
    if (!has_rank && std::string_view(names.launcher) == "slurm") continue;
    if (!has_rank || !has_size)
      throw invalid_input("{}: expected {} and {} both set, found only {}; set the other or unset it", names.launcher,
                          names.rank, names.size, has_rank ? names.rank : names.size);
    LaunchEnv launch{.launcher = names.launcher,
                     .rank = number(environment, names.rank, kMaxRanks),
                     .size = number(environment, names.size, kMaxRanks)};
    if (launch.rank >= launch.size)
      throw invalid_input("{}: expected a rank below {} = {}, found {}", names.rank, names.size, launch.size,
                          launch.rank);
    if (find(environment, names.local_rank)) launch.local_rank = number(environment, names.local_rank, kMaxRanks);
    launch.store = store_of(environment, names.launcher);
    return launch;
  }
  return std::nullopt;
}

}  // namespace cadre
