// Placements as files: our own form, which `cadre eplb plan` writes, and those of other engines. Says what is wrong
// with one; never returns a placement that lacks an expert or has one twice on a rank while another rank has none of
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/expert_placement.h"

namespace cadre::eplb {

struct ModelPlacement {
  std::vector<int64_t> layers;              // ids in the model, ascending
  std::vector<ExpertPlacement> placements;  // of each; all of one shape

  bool operator==(const ModelPlacement&) const = default;
};

// What the reader knows beforehand; 0 where it does not. SGLang's form does not say how many ranks there are.
struct PlacementShape {
  int64_t num_experts = 0;
  int ranks = 0;
};

// Throws Error: expected, found, what to do.
ModelPlacement read_placement(const std::filesystem::path& file, const PlacementShape& shape = {});
ModelPlacement parse_placement(std::string_view text, std::string_view what, const PlacementShape& shape = {});

// {"format": "cadre.expert_placement", "version": 1, "num_experts", "ranks", "slots_per_rank",
//  "layers": [{"layer": id, "slot_to_expert": [ranks * slots_per_rank, -1 where empty]}]}
std::string to_json(const ModelPlacement& placement);

}  // namespace cadre::eplb
