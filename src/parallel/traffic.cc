#include "parallel/traffic.h"

namespace cadre {

const char* traffic_name(Traffic traffic) {
  static constexpr const char* kNames[kNumTraffic] = {"step", "attention_gather", "attention_reduce", "row_norm", "dense_gather", "dense_reduce",
                                                      "moe_gather", "moe_reduce", "dispatch_counts", "dispatch", "combine", "other"};
  return kNames[static_cast<size_t>(traffic)];
}

}  // namespace cadre
