// The API's hold on the balancer of a deployment.
#pragma once

#include <memory>

#include "dp/deployment.h"
#include "server/expert_admin.h"

namespace cadre::cli {

// Null where experts do not move. The deployment outlives the result.
std::shared_ptr<ExpertAdmin> expert_admin(const Deployment& deployment);

}  // namespace cadre::cli
