// One layer's way from a placement to another: which rank sends which expert to whom, in pieces over several steps, and the
// switch at the end. Until then the layer computes with what it has, for arriving experts go to spare memory; the switch
// exchanges pointers and copies nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "moe/experts.h"
#include "parallel/expert_placement.h"
#include "parallel/layout.h"
#include "tensor/tensor.h"

namespace cadre::eplb {

struct Transfer {
  int32_t from_slot = 0, to_slot = 0;  // of the world
  int from = 0, to = 0;                // ranks of the expert-parallel group
  bool operator==(const Transfer&) const = default;
};

// What has to cross from rank to rank: one for each slot of `to` whose expert its rank does not hold in `from`. Senders are the
// nearest holders (ranks_per_node consecutive ranks are near; 0: all are), the least busy of them. By receiving slot.
std::vector<Transfer> plan_transfers(const ExpertPlacement& from, const ExpertPlacement& to, int ranks_per_node = 0);

// Memory for arriving experts of one slot size: at most as many slots as a layer has on this rank. Which memory that is
// changes with each switch.
class SpareSlots {
 public:
  SpareSlots(int64_t slot_bytes, int64_t num_slots);
  int64_t slot_bytes() const { return slot_bytes_; }
  std::byte* take();
  void give(std::byte* memory) { free_.push_back(memory); }

 private:
  int64_t slot_bytes_;
  Buffer memory_;
  std::vector<std::byte*> free_;
};

class LayerMove {
 public:
  // world: all ranks call send_piece() together. spares, experts outlive the object.
  LayerMove(const Layout& layout, int world_rank, ExpertPlacement from, ExpertPlacement to, Experts& experts, SpareSlots& spares, int ranks_per_node);

  const ExpertPlacement& target() const { return to_; }
  int64_t num_transfers() const { return static_cast<int64_t>(transfers_.size()); }
  // Slots that the busiest rank still sends or receives at once: what a piece costs it.
  int64_t slots_of_busiest() const { return slots_of_busiest_; }
  int64_t bytes_left_of_slot() const { return experts_.layout().slot_bytes - done_bytes_; }
  bool has_arrived() const { return transfers_.empty() || bytes_left_of_slot() == 0; }

  // The next `bytes` of every slot that moves. A collective.
  void send_piece(Group& world, int64_t bytes);
  // After all has arrived: slots hold what the target says.
  void switch_over();

 private:
  void plan_local();
  const Layout layout_;
  const RankCoords coords_;
  const ExpertPlacement from_, to_;
  Experts& experts_;
  SpareSlots& spares_;
  std::vector<Transfer> transfers_;
  std::vector<std::byte*> arriving_;  // by local slot: memory of an expert on its way; null: none
  int64_t slots_of_busiest_ = 0, done_bytes_ = 0;
  std::vector<std::vector<std::byte>> outgoing_;  // by ep rank
  std::vector<SendPart> send_;
  std::vector<RecvPart> recv_;
};

}  // namespace cadre::eplb
