// The groups of ranks that running a layout needs, and this rank's traffic counters.
#pragma once

#include <memory>

#include "comm/group.h"
#include "parallel/layer_plan.h"
#include "parallel/layout.h"

namespace cadre {

struct RankGroups {
  // A collective: every rank of the world calls. Groups of one rank are not made.
  RankGroups(CommWorld& comm, const Layout& layout, int64_t num_layers);

  // The group behind a plan's collective; null for one rank.
  Group* of(GroupKind kind) const;
  // Each wait ends in PeerLost after this long; 0: never.
  void set_timeout_us(int64_t us);
  void set_step(int64_t new_step);
  // Any thread: peers that wait for this rank stop waiting.
  void abort(const std::string& reason);

  Layout layout;
  RankCoords coords;
  int64_t timeout_us = 0;
  int64_t step = 0;  // which errors name
  TrafficCounters counters;
  std::unique_ptr<Group> world, attn_tp, leaders;  // leaders: rank 0 of each attention group, null on the others
};

}  // namespace cadre
