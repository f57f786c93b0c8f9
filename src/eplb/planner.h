// The balancer's planner from an algorithm of balance.h.
#pragma once

#include <string_view>

#include "config/model_config.h"
#include "eplb/balancer.h"
#include "parallel/layout.h"

namespace cadre::eplb {

// algorithm: a name of balance.h. nodes: of equally many expert-parallel ranks each.
Planner make_planner(std::string_view algorithm, const Layout& layout, const RouterConfig& router, int nodes);

}  // namespace cadre::eplb
