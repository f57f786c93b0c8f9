#include "eplb/planner.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eplb/load_series.h"
#include "eplb/model_plan.h"
#include "eplb/placement_file.h"

namespace cadre::eplb {
namespace {

bool mentions(std::string_view text, std::span<const std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

bool is_load(std::string_view text) {
  constexpr std::array<std::string_view, 3> kOfPlacements = {"\"physical_to_logical_map\"", "\"layer_list\"", "\"slot_to_expert\""};
  constexpr std::array<std::string_view, 5> kOfLoads = {"\"logical_count\"", "\"counts\"", "\"loads\"", "\"weight\"", "\"routes\""};
  return !mentions(text, kOfPlacements) && mentions(text, kOfLoads);
}

// Layers that a file names must be the model's; where it only has as many, they are those.
void match_layers(std::vector<int64_t>* found, std::span<const int64_t> wanted, std::string_view file) {
  if (std::ranges::equal(*found, wanted)) return;
  std::vector<int64_t> unnumbered(wanted.size());
  std::iota(unnumbered.begin(), unnumbered.end(), 0);
  if (*found != unnumbered)
    throw invalid_input("{}: expected the {} sparse layers of the model, {} to {}, found {} layers, {} to {}; give a file of this model", file, wanted.size(), wanted.front(), wanted.back(),
                        found->size(), found->empty() ? 0 : found->front(), found->empty() ? 0 : found->back());
  found->assign(wanted.begin(), wanted.end());
}

}  // namespace

Cluster cluster_of(const Layout& layout, const RouterConfig& router, int nodes) {
  return {.num_experts = router.num_experts, .ranks = layout.ep, .num_replicas = router.num_experts + layout.redundant_experts, .nodes = nodes, .groups = std::max<int64_t>(1, router.num_groups)};
}

std::vector<ExpertPlacement> read_initial_placements(const std::filesystem::path& path, std::string_view algorithm, std::span<const int64_t> layers, const Cluster& cluster) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const std::string what = path.string();
  if (!is_load(text)) {
    ModelPlacement placement = parse_placement(text, what, {.num_experts = cluster.num_experts, .ranks = cluster.ranks});
    const bool has_all = std::ranges::all_of(layers, [&](int64_t l) { return std::ranges::find(placement.layers, l) != placement.layers.end(); });
    if (!has_all) match_layers(&placement.layers, layers, what);
    return placement_of_layers(placement, layers, cluster).placements;
  }
  LoadSeries load = parse_load(text, what);
  if (load.num_experts != cluster.num_experts)
    throw invalid_input("{}: expected loads of the model's {} experts, found {}; give a file of this model", what, cluster.num_experts, load.num_experts);
  match_layers(&load.layers, layers, what);
  const std::vector<double> rows = load.sum(0, static_cast<int64_t>(load.steps.size()));
  return plan_model({.algorithm = parse_algorithm(algorithm), .layers = layers, .rows = rows, .cluster = cluster}).placement.placements;
}

Planner make_planner(std::string_view algorithm, const Layout& layout, const RouterConfig& router, int nodes) {
  const Cluster cluster = cluster_of(layout, router, nodes);
  check_cluster(cluster);
  return [cluster, kind = parse_algorithm(algorithm)](const LayerLoad& layer) {
    const std::vector<double> load(layer.rows.begin(), layer.rows.end());
    switch (kind) {
      case Algorithm::kDeepseek: return deepseek(load, cluster);
      case Algorithm::kDeepseekHierarchical: return deepseek_hierarchical(load, cluster);
      case Algorithm::kCadre: break;
    }
    const MoveRules rules{.rows_per_move = layer.rows_per_move, .reach_reference = layer.rows_per_move == 0};
    return cadre(load, cluster, &layer.current, rules).placement;
  };
}

}  // namespace cadre::eplb
