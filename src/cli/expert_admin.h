// The API's hold on the experts of a deployment: its balancer and its recorder.
#pragma once

#include <memory>

#include "dp/deployment.h"
#include "server/expert_admin.h"

namespace cadre::cli {

// Null for dense models. The deployment outlives the result.
std::shared_ptr<ExpertAdmin> expert_admin(const Deployment& deployment);

}  // namespace cadre::cli
