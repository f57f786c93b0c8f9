// What UCX offers on this machine, and how fast two processes exchange through it: what ranks as processes pay.
#pragma once

#include <string>

#include "comm/store.h"
#include "host/checks.h"

namespace cadre {

// This process is rank 0 or 1 of the two; both call. Rank 0's result has the figures. Throws Error and PeerLost.
UcxMeasured measure_ucx_pair(int rank, const StoreAddress& store);

// The result as a line of text, from the process that measured to the one that asked, and back. Text that is no such
// line becomes a result with an error.
std::string to_line(const UcxMeasured& measured);
UcxMeasured ucx_measured_of(const std::string& line);

// Transports by device in UCX's own words ("#  resource 3 : md 1 dev 2 flags -- tcp/eth0"), without those inside the
// process.
std::vector<std::string> parse_ucx_resources(const std::string& text);

}  // namespace cadre
