// JSON values as text for people as well as programs: shortest round-trip numbers without needless exponents, invalid
// UTF-8 replaced, never NaN or Infinity (they become null).
#pragma once

#include <string>

#include "base/json.h"

namespace cadre {

std::string json_text(const json::value& value);

}  // namespace cadre
