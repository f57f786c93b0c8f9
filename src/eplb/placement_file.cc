#include "eplb/placement_file.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"

namespace cadre::eplb {
namespace {

using SlotsOfLayer = std::map<int64_t, std::vector<int32_t>>;

struct Reader {
  std::string what;
  PlacementShape shape;
  SlotsOfLayer slots;

  void set_ranks(int64_t found) {
    if (found < 1 || found > 1 << 16)
      throw invalid_input("{}: expected 1 to {} ranks, found {}; correct it", what, 1 << 16, found);
    if (shape.ranks != 0 && shape.ranks != found)
      throw invalid_input("{}: expected a placement over {} ranks, found one over {}; plan for the ranks there are",
                          what, shape.ranks, found);
    shape.ranks = static_cast<int>(found);
  }
  void set_experts(int64_t found) {
    if (shape.num_experts != 0 && shape.num_experts != found)
      throw invalid_input("{}: expected {} experts, found {}; is it of this model?", what, shape.num_experts, found);
    shape.num_experts = found;
  }
  void add(int64_t layer, std::vector<int32_t> of_layer) {
    if (!slots.emplace(layer, std::move(of_layer)).second)
      throw invalid_input("{}: expected each layer once, found layer {} twice; remove one", what, layer);
  }
};

void append(const Reader& reader, int64_t layer, const json::value& value, std::vector<int32_t>* slots) {
  if (!value.is_array())
    throw invalid_input("{}: layer {}: expected a list of the slots' experts, found {}; correct it", reader.what, layer,
                        describe(value));
  for (const json::value& e : value.get_array()) {
    if (!e.is_int64() || e.get_int64() < kEmptySlot || e.get_int64() >= 1 << 16)
      throw invalid_input("{}: layer {}: expected the id of an expert, or -1 for an empty slot, found {}; correct it",
                          reader.what, layer, describe(e));
    slots->push_back(static_cast<int32_t>(e.get_int64()));
  }
}

const json::array& list(const Reader& reader, const JsonObject& object, std::string_view key) {
  const json::array* found = object.maybe_array(key);
  if (!found || found->empty())
    throw invalid_input("{}: expected a list '{}', found {}; is it a placement?", reader.what, key,
                        found ? "an empty one" : "none");
  return *found;
}

JsonObject entry(const Reader& reader, const json::value& value) {
  if (!value.is_object())
    throw invalid_input("{}: expected an object for each layer and device, found {}; correct it", reader.what,
                        describe(value));
  return {value.get_object(), reader.what};
}

void read_own(Reader* reader, const JsonObject& object) {
  if (object.string("format") != "cadre.expert_placement")
    throw invalid_input("{}: expected the format cadre.expert_placement, found {}; give a placement", reader->what,
                        cadre::quoted(object.string("format")));
  object.integer("version", 1, 1);
  reader->set_ranks(object.integer("ranks", 1, 1 << 16));
  reader->set_experts(object.integer("num_experts", 1, 1 << 16));
  const int64_t slots_per_rank = object.integer("slots_per_rank", 1, 1 << 16);
  for (const json::value& value : list(*reader, object, "layers")) {
    const JsonObject layer = entry(*reader, value);
    const int64_t id = layer.integer("layer", 0, 1 << 20);
    std::vector<int32_t> slots;
    const json::value* found = layer.find("slot_to_expert");
    append(*reader, id, found ? *found : json::value(), &slots);
    if (static_cast<int64_t>(slots.size()) != reader->shape.ranks * slots_per_rank)
      throw invalid_input("{}: layer {}: expected {} slots, {} on each of {} ranks, found {}; correct them",
                          reader->what, id, reader->shape.ranks * slots_per_rank, slots_per_rank, reader->shape.ranks,
                          slots.size());
    reader->add(id, std::move(slots));
  }
}

// vLLM-Ascend's expert map: devices with the experts of each.
void read_devices(Reader* reader, const JsonObject& object) {
  for (const json::value& value : list(*reader, object, "layer_list")) {
    const JsonObject layer = entry(*reader, value);
    const int64_t id = layer.integer("layer_id", 0, 1 << 20);
    const json::array& devices = list(*reader, layer, "device_list");
    reader->set_ranks(static_cast<int64_t>(devices.size()));
    if (const auto count = layer.maybe_integer("device_count", 1, 1 << 16);
        count && *count != static_cast<int64_t>(devices.size()))
      throw invalid_input("{}: layer {}: expected {} devices, found {}; correct device_count or the list", reader->what,
                          id, *count, devices.size());
    std::vector<std::vector<int32_t>> of_device(devices.size());
    std::vector<bool> is_seen(devices.size());
    for (const json::value& device_value : devices) {
      const JsonObject device = entry(*reader, device_value);
      const size_t rank = static_cast<size_t>(device.integer("device_id", 0, static_cast<int64_t>(devices.size()) - 1));
      if (is_seen[rank])
        throw invalid_input("{}: layer {}: expected each device once, found device {} twice; correct it", reader->what,
                            id, rank);
      is_seen[rank] = true;
      const json::value* experts = device.find("device_expert");
      append(*reader, id, experts ? *experts : json::value(), &of_device[rank]);
    }
    std::vector<int32_t> slots;
    for (size_t rank = 0; rank < of_device.size(); ++rank) {
      if (of_device[rank].size() != of_device[0].size())
        throw invalid_input(
            "{}: layer {}: expected as many slots on every device, found {} on device 0 and {} on device {}; make them "
            "equal",
            reader->what, id, of_device[0].size(), of_device[rank].size(), rank);
      slots.insert(slots.end(), of_device[rank].begin(), of_device[rank].end());
    }
    reader->add(id, std::move(slots));
  }
}

// SGLang's: [layers][slots].
void read_physical(Reader* reader, const JsonObject& object) {
  if (reader->shape.ranks == 0)
    throw invalid_input(
        "{}: expected to be told over how many ranks physical_to_logical_map is, found nothing; say so with --ranks",
        reader->what);
  const json::array& layers = list(*reader, object, "physical_to_logical_map");
  for (size_t l = 0; l < layers.size(); ++l) {
    std::vector<int32_t> slots;
    append(*reader, static_cast<int64_t>(l), layers[l], &slots);
    reader->add(static_cast<int64_t>(l), std::move(slots));
  }
}

// A replica that adds nothing, while a rank has none of its expert.
void refuse_doubled(const Reader& reader, int64_t layer, const ExpertPlacement& placement) {
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    const auto slots = placement.expert_to_slots(e);
    int distinct = 1, doubled = -1;
    for (size_t i = 1; i < slots.size(); ++i) {
      const bool same = placement.rank_of_slot(slots[i]) == placement.rank_of_slot(slots[i - 1]);
      distinct += !same;
      if (same && doubled < 0) doubled = placement.rank_of_slot(slots[i]);
    }
    if (doubled >= 0 && distinct < placement.ep())
      throw invalid_input(
          "{}: layer {}: expected the replicas of an expert on ranks of their own, found expert {} twice on rank {}; "
          "move one to a rank without it",
          reader.what, layer, e, doubled);
  }
}

ModelPlacement finished(Reader&& reader) {
  int32_t most = -1;
  size_t num_slots = 0;
  for (const auto& [layer, slots] : reader.slots)
    for (const int32_t e : slots) most = std::max(most, e);
  if (reader.shape.num_experts == 0) reader.shape.num_experts = most + 1;
  ModelPlacement out;
  for (auto& [layer, slots] : reader.slots) {
    if (num_slots == 0) num_slots = slots.size();
    if (slots.size() != num_slots)
      throw invalid_input("{}: expected {} slots in every layer, found {} in layer {}; make them equal", reader.what,
                          num_slots, slots.size(), layer);
    out.layers.push_back(layer);
    try {
      out.placements.emplace_back(reader.shape.num_experts, reader.shape.ranks, std::move(slots));
    } catch (const Error& error) {
      throw invalid_input("{}: layer {}: {}", reader.what, layer, error.what());
    }
    refuse_doubled(reader, layer, out.placements.back());
  }
  return out;
}

}  // namespace

ModelPlacement parse_placement(std::string_view text, std::string_view what, const PlacementShape& shape) {
  Reader reader{.what = std::string(what), .shape = shape};
  const json::value document = parse_json(text, what);
  if (!document.is_object())
    throw invalid_input("{}: expected a placement, an object, found {}; write one with cadre eplb plan", what,
                        describe(document));
  const JsonObject object(document.get_object(), reader.what);
  if (object.has("format"))
    read_own(&reader, object);
  else if (object.has("layer_list"))
    read_devices(&reader, object);
  else if (object.has("physical_to_logical_map"))
    read_physical(&reader, object);
  else
    throw invalid_input(
        "{}: expected a placement (format, layer_list or physical_to_logical_map), found none of these keys; write one "
        "with cadre eplb plan",
        what);
  return finished(std::move(reader));
}

ModelPlacement read_placement(const std::filesystem::path& file, const PlacementShape& shape) {
  return parse_placement(json::serialize(parse_json_file(file)), file.filename().string(), shape);
}

std::string to_json(const ModelPlacement& placement) {
  const ExpertPlacement& first = placement.placements.at(0);
  std::string out = fmt::format(
      "{{\"format\": \"cadre.expert_placement\", \"version\": 1, \"num_experts\": {}, \"ranks\": {}, "
      "\"slots_per_rank\": {}, \"layers\": [\n",
      first.num_experts(), first.ep(), first.slots_per_rank());
  for (size_t l = 0; l < placement.layers.size(); ++l) {
    const auto slots = placement.placements[l].slot_to_expert();
    out += fmt::format("  {{\"layer\": {}, \"slot_to_expert\": {}}}{}\n", placement.layers[l],
                       json::serialize(json::array(slots.begin(), slots.end())),
                       l + 1 < placement.layers.size() ? "," : "");
  }
  return out + "]}\n";
}

}  // namespace cadre::eplb
