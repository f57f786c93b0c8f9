// What a request says of the data-parallel rank it wants: the fields data_parallel_rank and bootstrap_room of its body, and
// the header X-Data-Parallel-Rank, which means the same as the first.
#pragma once

#include "base/json.h"
#include "dp/routing.h"
#include "server/http_types.h"

namespace cadre {

inline constexpr const char* kRankHeader = "X-Data-Parallel-Rank";

// Throws Error (kInvalidInput, with param): out of range, or two places that differ. null and an empty header are absent.
RoutingWish read_routing_wish(const JsonObject& body, const HttpHeaders& headers, int num_ranks);

}  // namespace cadre
