// Ranks as threads of one process. Each thread is given one CommWorld; groups form when all their members have asked
// for them. The worlds may be used from one thread each and destroyed in any order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/transport.h"

namespace cadre {

struct InprocOptions {
  int64_t meet_timeout_us = 60'000'000;  // how long make_transport() waits for the other members; 0: for ever
};

// One CommWorld for each of num_ranks ranks, in order.
std::vector<std::unique_ptr<CommWorld>> make_inproc_worlds(int num_ranks, InprocOptions options = {});

}  // namespace cadre
