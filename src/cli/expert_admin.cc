#include "cli/expert_admin.h"

#include "base/error.h"
#include "eplb/placement_file.h"

namespace cadre::cli {
namespace {

class BalancerAdmin final : public ExpertAdmin {
 public:
  explicit BalancerAdmin(eplb::Balancer& balancer) : balancer_(balancer) {}

  json::object placement() const override {
    const eplb::BalancerStats s = balancer_.stats();
    const auto layers = balancer_.layers();
    json::object out = parse_json(eplb::to_json({{layers.begin(), layers.end()}, balancer_.placements()}), "placement").as_object();
    out["generation"] = s.generation;
    out["balancedness"] = s.balancedness;
    out["steps"] = s.num_steps;
    out["rebalances"] = s.num_rebalances;
    out["layers_switched"] = s.num_layers_switched;
    out["plans_refused"] = s.num_refused;
    out["moved_slots"] = s.moved_slots;
    out["moved_bytes"] = s.moved_bytes;
    out["stall_seconds"] = static_cast<double>(s.stall_us) * 1e-6;
    return out;
  }

  json::object place(const std::string& body) override {
    const auto now = balancer_.placements();
    eplb::ModelPlacement wanted = eplb::parse_placement(body, "request", {.num_experts = now[0].num_experts(), .ranks = now[0].ep()});
    if (!std::equal(wanted.layers.begin(), wanted.layers.end(), balancer_.layers().begin(), balancer_.layers().end()))
      throw invalid_input("request: expected a placement for each sparse layer of the model ({} of them), found {} layers; GET /expert_placement shows which", now.size(), wanted.layers.size());
    balancer_.request(std::move(wanted.placements));
    return {{"accepted", true}, {"generation", balancer_.stats().generation}};
  }

 private:
  eplb::Balancer& balancer_;
};

}  // namespace

std::shared_ptr<ExpertAdmin> expert_admin(const Deployment& deployment) {
  if (!deployment.balancer()) return nullptr;
  return std::make_shared<BalancerAdmin>(*deployment.balancer());
}

}  // namespace cadre::cli
