#include "eplb/layer_move.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace cadre::eplb {
namespace {

bool holds(std::span<const int32_t> experts, int32_t expert) { return std::find(experts.begin(), experts.end(), expert) != experts.end(); }

}  // namespace

std::vector<Transfer> plan_transfers(const ExpertPlacement& from, const ExpertPlacement& to, int ranks_per_node) {
  CADRE_CHECK(from.ep() == to.ep() && from.num_slots() == to.num_slots() && from.num_experts() == to.num_experts(), "placements of other shapes");
  std::vector<Transfer> out;
  std::vector<int64_t> sends(static_cast<size_t>(from.ep()));
  const auto node_of = [&](int rank) { return ranks_per_node > 0 ? rank / ranks_per_node : 0; };
  for (int32_t slot = 0; slot < to.num_slots(); ++slot) {
    const int32_t expert = to.slot_to_expert()[static_cast<size_t>(slot)];
    const int rank = to.rank_of_slot(slot);
    if (expert == kEmptySlot || holds(from.experts_of(rank), expert)) continue;
    const auto cost = [&](int32_t source) {
      const int sender = from.rank_of_slot(source);
      return std::tuple(node_of(sender) != node_of(rank), sends[static_cast<size_t>(sender)], sender, source);
    };
    const auto sources = from.expert_to_slots(expert);
    const int32_t best = *std::min_element(sources.begin(), sources.end(), [&](int32_t a, int32_t b) { return cost(a) < cost(b); });
    const int sender = from.rank_of_slot(best);
    ++sends[static_cast<size_t>(sender)];
    out.push_back({best, slot, sender, rank});
  }
  return out;
}

SpareSlots::SpareSlots(int64_t slot_bytes, int64_t num_slots) : slot_bytes_(slot_bytes), memory_(static_cast<size_t>(slot_bytes * num_slots)) {
  for (int64_t s = 0; s < num_slots; ++s) free_.push_back(memory_.data() + s * slot_bytes);
}

std::byte* SpareSlots::take() {
  CADRE_CHECK(!free_.empty(), "more experts arrive than a layer has slots");
  std::byte* memory = free_.back();
  free_.pop_back();
  return memory;
}

LayerMove::LayerMove(const Layout& layout, int world_rank, ExpertPlacement from, ExpertPlacement to, Experts& experts, SpareSlots& spares, int ranks_per_node)
    : layout_(layout), coords_(layout.coords(world_rank)), from_(std::move(from)), to_(std::move(to)), experts_(experts), spares_(spares),
      transfers_(plan_transfers(from_, to_, ranks_per_node)), arriving_(static_cast<size_t>(to_.slots_per_rank())),
      outgoing_(static_cast<size_t>(layout.ep)), send_(static_cast<size_t>(layout.world)), recv_(send_.size()) {
  CADRE_CHECK(spares.slot_bytes() == experts.layout().slot_bytes && experts.num_slots() == to_.slots_per_rank(), "spare slots of another layer");
  std::vector<int64_t> sends(static_cast<size_t>(layout.ep)), receives(sends);
  for (const Transfer& t : transfers_) {
    ++sends[static_cast<size_t>(t.from)];
    ++receives[static_cast<size_t>(t.to)];
    if (t.to == coords_.ep) arriving_[static_cast<size_t>(to_.local_slot(t.to_slot))] = spares_.take();
  }
  if (!transfers_.empty()) slots_of_busiest_ = std::max(*std::max_element(sends.begin(), sends.end()), *std::max_element(receives.begin(), receives.end()));
}

void LayerMove::send_piece(Group& world, int64_t bytes) {
  bytes = std::min(bytes, bytes_left_of_slot());
  for (auto& out : outgoing_) out.clear();
  std::vector<int64_t> incoming(static_cast<size_t>(layout_.ep));
  for (const Transfer& t : transfers_) {
    if (t.to == coords_.ep) incoming[static_cast<size_t>(t.from)] += bytes;
    if (t.from != coords_.ep) continue;
    const std::byte* from = experts_.slot(from_.local_slot(t.from_slot)) + done_bytes_;
    auto& out = outgoing_[static_cast<size_t>(t.to)];
    out.insert(out.end(), from, from + bytes);
  }
  // Ranks that split an expert's width hold the same slots; each moves its own part.
  for (int rank = 0; rank < layout_.world; ++rank) {
    const RankCoords other = layout_.coords(rank);
    const bool is_twin = other.moe_tp == coords_.moe_tp;
    const auto& out = outgoing_[static_cast<size_t>(other.ep)];
    send_[static_cast<size_t>(rank)] = is_twin ? SendPart{out.data(), static_cast<int64_t>(out.size())} : SendPart{};
    recv_[static_cast<size_t>(rank)] = {nullptr, is_twin ? incoming[static_cast<size_t>(other.ep)] : 0};
  }
  world.start({Traffic::kOther, -1}, send_, recv_);
  world.finish([&](int source, std::span<const std::byte> data) {
    const RankCoords other = layout_.coords(source);
    size_t at = 0;
    for (const Transfer& t : transfers_) {
      if (t.to != coords_.ep || t.from != other.ep || other.moe_tp != coords_.moe_tp) continue;
      CADRE_CHECK(at + static_cast<size_t>(bytes) <= data.size(), "{} bytes of experts from rank {}", data.size(), source);
      std::memcpy(arriving_[static_cast<size_t>(to_.local_slot(t.to_slot))] + done_bytes_, data.data() + at, static_cast<size_t>(bytes));
      at += static_cast<size_t>(bytes);
    }
    CADRE_CHECK(at == data.size(), "{} bytes of experts from rank {}, {} expected", data.size(), source, at);
  });
  done_bytes_ += bytes;
}

void LayerMove::switch_over() {
  const auto old = from_.experts_of(coords_.ep), now = to_.experts_of(coords_.ep);
  const size_t num_slots = old.size();
  std::vector<std::byte*> before(num_slots), after(num_slots);
  std::vector<bool> is_kept(num_slots);
  for (size_t s = 0; s < num_slots; ++s) before[s] = experts_.slot(static_cast<int64_t>(s));
  // An expert that stays in its slot keeps its memory, then those that change slots on this rank take theirs along.
  for (size_t s = 0; s < num_slots; ++s)
    if (now[s] != kEmptySlot && now[s] == old[s]) after[s] = before[s], is_kept[s] = true;
  for (size_t s = 0; s < num_slots; ++s) {
    if (after[s] || now[s] == kEmptySlot) continue;
    if (arriving_[s]) {
      after[s] = arriving_[s];
      continue;
    }
    size_t t = 0;
    while (t < num_slots && (old[t] != now[s] || is_kept[t])) ++t;
    if (t < num_slots) {
      after[s] = before[t], is_kept[t] = true;
      continue;
    }
    // A second replica on one rank: planners make none, a hand may.
    after[s] = spares_.take();
    std::memcpy(after[s], before[static_cast<size_t>(std::find(old.begin(), old.end(), now[s]) - old.begin())], static_cast<size_t>(spares_.slot_bytes()));
  }
  std::vector<std::byte*> rest;
  for (size_t s = 0; s < num_slots; ++s)
    if (!is_kept[s]) rest.push_back(before[s]);
  for (size_t s = 0; s < num_slots; ++s) {
    if (!after[s]) after[s] = rest.back(), rest.pop_back();  // empty slots have memory too
    experts_.set_slot(static_cast<int64_t>(s), after[s]);
  }
  for (std::byte* memory : rest) spares_.give(memory);
}

}  // namespace cadre::eplb
