// A picture of how even the ranks' loads are: one cell for each layer and rank, before and after, as an SVG.
#pragma once

#include <span>
#include <string>

#include "eplb/placement_file.h"

namespace cadre::eplb {

// `rows`: [layers, experts], of the layers of both placements.
std::string heat_map_svg(const ModelPlacement& before, const ModelPlacement& after, std::span<const double> rows);

}  // namespace cadre::eplb
