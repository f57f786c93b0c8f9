// What the API asks of whoever places the experts of a running model; the routes /expert_placement and their like. The
// server knows neither placements nor balancers: bodies and answers are JSON of theirs.
#pragma once

#include <string>

#include "base/json.h"

namespace cadre {

class ExpertAdmin {
 public:
  virtual ~ExpertAdmin() = default;
  // GET /expert_placement: the placement in force and what the balancer has done.
  virtual json::object placement() const = 0;
  // PUT /expert_placement: takes effect in steps to come. Throws Error for what cannot be a placement of this model.
  virtual json::object place(const std::string& body) = 0;
};

}  // namespace cadre
