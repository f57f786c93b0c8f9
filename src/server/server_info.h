// What GET /server_info tells: the layout, the limits, and what every data-parallel rank is doing.
#pragma once

#include <string>

#include "base/json.h"
#include "dp/controller.h"
#include "server/api_request.h"

namespace cadre {

json::object server_info(const std::string& version, const ServedModel& model, const Controller& controller, bool is_draining);

}  // namespace cadre
