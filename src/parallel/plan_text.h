// A layer plan for people and for programs.
#pragma once

#include <string>

#include "base/json.h"
#include "parallel/layer_plan.h"

namespace cadre {

// "FULL: all-gather over world, reduce-scatter over world, which owns the sum"
std::string half_text(const HalfPlan& half);
json::object half_json(const HalfPlan& half);

}  // namespace cadre
