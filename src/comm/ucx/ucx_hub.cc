#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "comm/ucx/ucx_header.h"

namespace cadre {

UcxHub::UcxHub(int rank, int size, const UcxOptions& options)
    : rank_(rank),
      size_(size),
      waited_at_us_(static_cast<size_t>(size), -1),
      worker_(size, options,
              [this](std::span<const std::byte> header, std::span<const std::byte> data) { handle(header, data); }) {}

void UcxHub::send(int peer, const Header& header, std::span<const std::byte> data) {
  worker_.send(peer, std::as_bytes(std::span(&header, 1)), data);
}

void UcxHub::say_that_it_waits() {
  std::vector<bool> is_told(static_cast<size_t>(size_));
  is_told[static_cast<size_t>(rank_)] = true;
  for (const auto& [id, group] : groups_)
    for (const int peer : group->members_) {
      if (is_told[static_cast<size_t>(peer)] || worker_.death(peer)) continue;
      is_told[static_cast<size_t>(peer)] = true;
      send(peer, {.kind = Header::kWaits, .source = static_cast<uint32_t>(rank_)}, {});
    }
}

UcxTransport* UcxHub::find(int source, uint32_t group_id) {
  for (auto& [id, group] : groups_) {
    const auto member = std::find(group->members_.begin(), group->members_.end(), source);
    if (member != group->members_.end() &&
        group->peer_ids_[static_cast<size_t>(member - group->members_.begin())] == group_id)
      return group;
  }
  return nullptr;
}

// Messages for groups that this rank has given up are dropped; so is what no rank of this version sends.
void UcxHub::handle(std::span<const std::byte> bytes, std::span<const std::byte> data) {
  Header header;
  if (bytes.size() != sizeof header) return;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.kind == Header::kData) {
    const auto group = groups_.find(header.group_id);
    if (group == groups_.end() || header.source >= group->second->members_.size()) return;
    return group->second->take_message(static_cast<int>(header.source), header.exchange, header.total, header.offset,
                                       data);
  }
  const int source = static_cast<int>(header.source);
  if (header.kind == Header::kHello)
    handle_hello({source, header.group_id, std::string(reinterpret_cast<const char*>(data.data()), data.size())});
  else if (header.kind == Header::kAbort)
    handle_abort(source, header.group_id, data);
  else if (header.kind == Header::kWaits) {
    if (source >= 0 && source < size_) waited_at_us_[static_cast<size_t>(source)] = SteadyClock().now_us();
  } else if (UcxTransport* group = find(source, header.group_id)) {
    ++group->num_changes_;
    group->has_left_[static_cast<size_t>(std::find(group->members_.begin(), group->members_.end(), source) -
                                         group->members_.begin())] = true;
  }
}

void UcxHub::handle_hello(Hello hello) {
  for (auto& [id, group] : groups_) {
    if (group->key_ != hello.key) continue;
    const auto member = std::find(group->members_.begin(), group->members_.end(), hello.source);
    if (member == group->members_.end()) continue;
    uint32_t& peer_id = group->peer_ids_[static_cast<size_t>(member - group->members_.begin())];
    if (peer_id != 0 || group->lost_rank_ >= 0) continue;
    peer_id = hello.group_id;
    return;
  }
  early_hellos_.push_back(std::move(hello));
}

void UcxHub::handle_abort(int source, uint32_t group_id, std::span<const std::byte> data) {
  std::erase_if(early_hellos_, [&](const Hello& h) { return h.source == source && h.group_id == group_id; });
  UcxTransport* group = find(source, group_id);
  int32_t rank = -1;
  if (!group || data.size() < sizeof rank) return;
  std::memcpy(&rank, data.data(), sizeof rank);
  if (group->lost_rank_ >= 0 || rank < 0 || rank >= group->size()) return;
  group->lost_rank_ = rank;
  group->lost_how_.assign(reinterpret_cast<const char*>(data.data()) + sizeof rank, data.size() - sizeof rank);
}

}  // namespace cadre
