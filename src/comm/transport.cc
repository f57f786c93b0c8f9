#include "comm/transport.h"

#include <fmt/format.h>

#include "base/check.h"

namespace cadre {

PeerLost::PeerLost(std::string group, int rank, int world_rank, int64_t step, const std::string& how)
    : std::runtime_error(
          fmt::format("group {}: expected rank {} to take part in step {}, found that it {}", group, world_rank, step, how)),
      group_(std::move(group)),
      rank_(rank),
      world_rank_(world_rank),
      step_(step) {}

int group_rank(const std::vector<int>& members, int world_rank, int world_size) {
  int found = -1;
  for (size_t i = 0; i < members.size(); ++i) {
    CADRE_CHECK(members[i] >= 0 && members[i] < world_size, "member {} of a world of {} ranks", members[i], world_size);
    for (size_t j = 0; j < i; ++j) CADRE_CHECK(members[i] != members[j], "rank {} is a member twice", members[i]);
    if (members[i] == world_rank) found = static_cast<int>(i);
  }
  CADRE_CHECK(found >= 0, "rank {} is no member of the group that it makes", world_rank);
  return found;
}

}  // namespace cadre
