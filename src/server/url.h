// The parts of a request target (RFC 9112, section 3.2) that a server needs.
#pragma once

#include <string>
#include <string_view>

namespace cadre {

// Splits "/a%20b?x=1" or "http://host/a%20b?x=1" into path "/a b" and query "x=1". False when it is neither, or when
// the path has a bad escape or an escaped NUL.
bool split_target(std::string_view target, std::string* path, std::string* query);

}  // namespace cadre
