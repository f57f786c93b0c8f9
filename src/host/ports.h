// Whether a TCP port can be listened on now.
#pragma once

#include <optional>
#include <string>

#include "host/checks.h"

namespace cadre {

// nullopt: it can; else why not. host: a numeric IPv4 address.
std::optional<std::string> why_not_free(const std::string& host, int port);
// is_asked_for: a user wants this one, so that its being taken is a problem. Looks for the next free one nearby.
PortMeasured probe_port(const std::string& host, int port, bool is_asked_for);

}  // namespace cadre
