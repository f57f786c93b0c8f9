#include "comm/rank_groups.h"

#include <fmt/format.h>

#include <numeric>

#include "base/check.h"

namespace cadre {

RankGroups::RankGroups(CommWorld& comm, const Layout& l, int64_t num_layers)
    : layout(l), coords(l.coords(comm.rank())), counters(num_layers) {
  CADRE_CHECK(comm.size() == layout.world, "a world of {} ranks for a layout of {}", comm.size(), layout.world);
  if (layout.world == 1) return;
  std::vector<int> all(static_cast<size_t>(layout.world)), first;
  std::iota(all.begin(), all.end(), 0);
  world = std::make_unique<Group>("world", comm.make_transport("world", all), &counters);
  if (layout.attn_tp > 1) {
    const std::string name = fmt::format("attn_tp.{}", coords.attn_dp);
    attn_tp = std::make_unique<Group>(name, comm.make_transport(name, layout.attn_tp_members(coords.world)), &counters);
  }
  for (int dp = 0; dp < layout.attn_dp; ++dp) first.push_back(layout.leader_of(dp));
  if (layout.attn_dp > 1 && coords.attn_tp == 0 && coords.attn_cp == 0)
    leaders = std::make_unique<Group>("attn_dp", comm.make_transport("attn_dp", first), &counters);
}

Group* RankGroups::of(GroupKind kind) const {
  switch (kind) {
    case GroupKind::kNone:
      return nullptr;
    case GroupKind::kAttnTp:
      return attn_tp.get();
    case GroupKind::kDenseTp:  // either of the two it may equal (Layout::dense_tp)
      return layout.dense_tp == layout.world ? world.get() : attn_tp.get();
    case GroupKind::kWorld:
      return world.get();
  }
  return nullptr;
}

void RankGroups::set_timeout_us(int64_t us) {
  timeout_us = us;
  for (Group* g : {world.get(), attn_tp.get(), leaders.get()})
    if (g) g->transport().set_timeout_us(us);
}

void RankGroups::set_step(int64_t new_step) {
  step = new_step;
  for (Group* g : {world.get(), attn_tp.get(), leaders.get()})
    if (g) g->transport().set_step(step);
}

void RankGroups::abort(const std::string& reason) {
  for (Group* g : {world.get(), attn_tp.get(), leaders.get()})
    if (g) g->transport().abort(reason);
}

}  // namespace cadre
