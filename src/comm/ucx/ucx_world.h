// Ranks as processes, on one host or several, over UCX (TCP, or RDMA where there is one). A rank whose process ends is
// missed at once, one that is stopped at the deadline; neither ends the others. A rank that is lost does not come back
// into this world.
#pragma once

#include <memory>

#include "comm/store.h"
#include "comm/transport.h"
#include "comm/ucx/ucx_worker.h"

namespace cadre {

// Exchanges addresses with the other ranks through the store, which is not needed afterwards. Throws Error when they do
// not all come within options.connect_timeout_us.
std::unique_ptr<CommWorld> make_ucx_world(int rank, int size, const StoreAddress& store,
                                          const UcxOptions& options = {});

}  // namespace cadre
