// Ranks as processes: who this process is, as its launcher says, and its connections to the others.
#pragma once

#include <memory>

#include "comm/launch_env.h"
#include "dp/deployment.h"

namespace cadre::cli {

// The place that a launcher gave this process; nothing when there is none, or only one rank.
std::optional<LaunchEnv> launched_place();

// Meets the other ranks of the layout. Throws Error when the launcher started another number of ranks than the layout
// has, or a rank does not come.
std::shared_ptr<ProcessRank> join_ranks(const LaunchEnv& env, const Layout& layout);

}  // namespace cadre::cli
