// Names that nobody guesses and nobody counts.
#pragma once

#include <string>

namespace cadre {

// 24 random hexadecimal digits from the system's entropy. Any thread.
std::string random_id();

}  // namespace cadre
