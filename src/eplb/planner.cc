#include "eplb/planner.h"

#include "eplb/balance.h"

namespace cadre::eplb {

Planner make_planner(std::string_view algorithm, const Layout& layout, const RouterConfig& router, int nodes) {
  const Cluster cluster{.num_experts = router.num_experts, .ranks = layout.ep, .num_replicas = router.num_experts + layout.redundant_experts, .nodes = nodes,
                        .groups = std::max<int64_t>(1, router.num_groups)};
  check_cluster(cluster);
  return [cluster, kind = parse_algorithm(algorithm)](int64_t, std::span<const int64_t> rows, const ExpertPlacement& current) {
    const std::vector<double> load(rows.begin(), rows.end());
    switch (kind) {
      case Algorithm::kDeepseek: return deepseek(load, cluster);
      case Algorithm::kDeepseekHierarchical: return deepseek_hierarchical(load, cluster);
      case Algorithm::kCadre: break;
    }
    return cadre(load, cluster, &current).placement;
  };
}

}  // namespace cadre::eplb
