#include "eplb/placement_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "eplb/model_plan.h"
#include "tests/testing.h"

namespace cadre::eplb {
namespace {

std::string refusal(std::string_view text, const PlacementShape& shape = {}) {
  try {
    parse_placement(text, "p.json", shape);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(PlacementFile, OwnFormComesBack) {
  const ModelPlacement p{
      .layers = {3, 7},
      .placements = {ExpertPlacement(3, 2, {0, 1, 2, kEmptySlot}), ExpertPlacement(3, 2, {0, 1, 2, 1})}};
  EXPECT_EQ(parse_placement(to_json(p), "x"), p);
  EXPECT_EQ(parse_placement(to_json(p), "x", {.num_experts = 3, .ranks = 2}), p);
}

TEST(PlacementFile, ReadsSglangsMap) {
  const ModelPlacement p =
      parse_placement(R"({"physical_to_logical_map": [[0, 1, 2, 0], [2, 1, 0, 2]]})", "x", {.ranks = 2});
  EXPECT_EQ(p.layers, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(p.placements[1], ExpertPlacement(3, 2, {2, 1, 0, 2}));
  EXPECT_NE(refusal(R"({"physical_to_logical_map": [[0, 1]]})").find("--ranks"), std::string::npos);
}

TEST(PlacementFile, ReadsVllmAscendsMap) {
  CADRE_DATA_OR_SKIP(data);
  const ModelPlacement p = read_placement(data / "expert_load" / "vllm_ascend_expert_map.json");
  EXPECT_EQ(p.placements.at(0), ExpertPlacement(8, 2, {7, 2, 0, 3, 5, 6, 1, 4, 7, 2}));
}

TEST(PlacementFile, SaysWhatIsWrong) {
  const auto own = [](std::string_view slots, std::string_view more = "") {
    return fmt::format(
        R"({{"format": "cadre.expert_placement", "version": 1, "num_experts": 4, "ranks": 2, "slots_per_rank": 3, "layers": [{{"layer": 0, "slot_to_expert": {}}}{}]}})",
        slots, more);
  };
  EXPECT_EQ(refusal(own("[0, 1, 2, 3, 0, 1]")), "nothing was refused");
  const std::pair<std::string, const char*> cases[] = {
      {own("[0, 1, 2, 0, 1, 2]"), "found none for expert 3"},
      {own("[0, 1, 0, 2, 3, -1]"), "expert 0 twice on rank 0"},
      {own("[0, 1, 2, 3, 4, 0]"), "experts 0 to 3, found 4"},
      {own("[0, 1, 2, 3, -2, 0]"), "found -2"},
      {own("[0, 1, 2, 3, 0]"), "expected 6 slots"},
      {own("[0, 1, 2, 3, 0, \"1\"]"), "found the string"},
      {own("5"), "list"},
      {own("[0, 1, 2, 3, 0, 1]", R"(, {"layer": 0, "slot_to_expert": [0, 1, 2, 3, 0, 1]})"), "layer 0 twice"},
      {R"({"format": "cadre.expert_load"})", "cadre.expert_placement"},
      {R"({"layers": []})", "cadre eplb plan"},
      {"[]", "object"},
      {"{", "JSON"},
      {R"({"layer_list": [{"layer_id": 0, "device_list": [{"device_id": 0, "device_expert": [0, 1]}, {"device_id": 1, "device_expert": [2]}]}]})",
       "2 on device 0 and 1 on device 1"},
      {R"({"layer_list": [{"layer_id": 0, "device_list": [{"device_id": 0, "device_expert": [0]}, {"device_id": 0, "device_expert": [1]}]}]})",
       "device 0 twice"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_NE(refusal(text).find(expected), std::string::npos) << text << "\n" << refusal(text);
  EXPECT_NE(refusal(own("[0, 1, 2, 3, 0, 1]"), {.ranks = 4}).find("over 4 ranks"), std::string::npos);
  EXPECT_NE(refusal(own("[0, 1, 2, 3, 0, 1]"), {.num_experts = 8}).find("8 experts"), std::string::npos);
  // Where every rank has one, a second one is no fault.
  EXPECT_EQ(refusal(own("[0, 1, 0, 2, 3, 0]")), "nothing was refused");
}

TEST(ModelPlan, RefusesAPlacementOfAnotherShape) {
  const std::vector<int64_t> layers{1, 2};
  const Cluster c{.num_experts = 4, .ranks = 2, .num_replicas = 6};
  const ModelPlacement p = trivial_placement(layers, c);
  EXPECT_EQ(placement_of_layers(p, layers, c), p);
  EXPECT_THROW(placement_of_layers(p, std::vector<int64_t>{1, 3}, c), Error);
  EXPECT_THROW(placement_of_layers(p, layers, {.num_experts = 4, .ranks = 2, .num_replicas = 8}), Error);
}

}  // namespace
}  // namespace cadre::eplb
