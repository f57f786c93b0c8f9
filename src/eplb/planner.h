// The balancer's planner from an algorithm of balance.h, and where experts are before it has planned.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "config/model_config.h"
#include "eplb/balance.h"
#include "eplb/balancer.h"
#include "parallel/layout.h"

namespace cadre::eplb {

// algorithm: a name of balance.h. nodes: of equally many expert-parallel ranks each.
Planner make_planner(std::string_view algorithm, const Layout& layout, const RouterConfig& router, int nodes);

// A layer's experts on the ranks of a layout. nodes: of equally many expert-parallel ranks each.
Cluster cluster_of(const Layout& layout, const RouterConfig& router, int nodes);

// One placement for each sparse layer (`layers`: their places in the model, in order), from a file: a placement in any form of
// placement_file.h, or a load in any form of load_series.h, for which `algorithm` plans afresh. Layers of files that do not
// number theirs are the sparse ones in order. Throws Error for a file of another model or layout.
std::vector<ExpertPlacement> read_initial_placements(const std::filesystem::path& file, std::string_view algorithm, std::span<const int64_t> layers, const Cluster& cluster);

}  // namespace cadre::eplb
