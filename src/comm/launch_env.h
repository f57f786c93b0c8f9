// Which rank this process is, as the program that started it says in environment variables: Cadre's own launcher,
// mpirun (Open MPI, MPICH and others with PMI), Slurm, or the names torchrun uses.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "comm/store.h"

namespace cadre {

struct LaunchEnv {
  std::string launcher;  // "cadre", "open mpi", "pmi", "slurm", "torchrun"
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank;  // among the ranks of this host
  // Where rank 0 serves the store; nothing when the launcher does not say and a flag has to. Port 0: not said either.
  std::optional<StoreAddress> store;
};

using Environment = std::map<std::string, std::string>;
// The variables of this process.
Environment process_environment();

// Nothing when no launcher left its mark. The first that did is taken, in the order above; CADRE_STORE adds the store
// to any. Throws Error when variables are half set, are no numbers or do not fit each other.
std::optional<LaunchEnv> read_launch_env(const Environment& environment);

}  // namespace cadre
