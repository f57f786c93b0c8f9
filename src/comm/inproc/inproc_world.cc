#include "comm/inproc/inproc_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "comm/inproc/inproc_transport.h"

namespace cadre {
namespace {

// Where members of a group that is not complete yet wait for each other.
class MeetingPlace {
 public:
  MeetingPlace(int num_ranks, InprocOptions options) : options_(options), has_left_(static_cast<size_t>(num_ranks)), sleepers_(std::make_shared<InprocGroup::Sleepers>(num_ranks)) {}
  int size() const { return static_cast<int>(has_left_.size()); }

  std::shared_ptr<InprocGroup> meet(const std::string& name, const std::vector<int>& members, int me) {
    const Key key{name, members};
    std::unique_lock lock(mutex_);
    auto& pending = pending_[key];
    if (!pending) pending = std::make_shared<Meeting>(name, members, sleepers_);
    const std::shared_ptr<Meeting> meeting = pending;
    CADRE_CHECK(!meeting->is_here[static_cast<size_t>(me)], "group {}: rank {} asks for it twice at once", name, me);
    meeting->is_here[static_cast<size_t>(me)] = true;
    if (meeting->first_missing() < 0) {
      pending_.erase(key);  // the next group of this name is another one
      meeting->is_complete = true;
      changed_.notify_all();
      return meeting->group;
    }
    const auto is_decided = [&] { return meeting->is_complete || meeting->failed_rank >= 0 || fail_if_left(*meeting); };
    if (options_.meet_timeout_us == 0)
      changed_.wait(lock, is_decided);
    else if (!changed_.wait_until(
                 lock, std::chrono::steady_clock::now() + std::chrono::microseconds(options_.meet_timeout_us),
                 is_decided))
      meeting->fail(meeting->first_missing(), fmt::format("did not come within {} us", options_.meet_timeout_us));
    if (meeting->is_complete) return meeting->group;
    if (const auto it = pending_.find(key); it != pending_.end() && it->second == meeting) pending_.erase(it);
    changed_.notify_all();
    throw PeerLost(name, meeting->failed_rank, members[static_cast<size_t>(meeting->failed_rank)], 0, meeting->how);
  }

  void leave(int rank) {
    std::lock_guard lock(mutex_);
    has_left_[static_cast<size_t>(rank)] = true;
    changed_.notify_all();
  }

 private:
  using Key = std::pair<std::string, std::vector<int>>;
  struct Meeting {
    Meeting(const std::string& name, const std::vector<int>& m, std::shared_ptr<InprocGroup::Sleepers> sleepers)
        : members(m), is_here(m.size()), group(std::make_shared<InprocGroup>(name, m, std::move(sleepers))) {}
    int first_missing() const {
      const auto it = std::find(is_here.begin(), is_here.end(), false);
      return it == is_here.end() ? -1 : static_cast<int>(it - is_here.begin());
    }
    void fail(int rank, std::string why) {
      failed_rank = rank;
      how = std::move(why);
    }
    std::vector<int> members;
    std::vector<bool> is_here;
    std::shared_ptr<InprocGroup> group;
    bool is_complete = false;
    int failed_rank = -1;
    std::string how;
  };

  bool fail_if_left(Meeting& meeting) const {
    for (size_t i = 0; i < meeting.members.size(); ++i) {
      if (meeting.is_here[i] || !has_left_[static_cast<size_t>(meeting.members[i])]) continue;
      meeting.fail(static_cast<int>(i), "left");
      return true;
    }
    return false;
  }

  const InprocOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> has_left_;
  const std::shared_ptr<InprocGroup::Sleepers> sleepers_;
  std::map<Key, std::shared_ptr<Meeting>> pending_;
};

class InprocWorld final : public CommWorld {
 public:
  InprocWorld(std::shared_ptr<MeetingPlace> place, int rank) : place_(std::move(place)), rank_(rank) {}
  ~InprocWorld() override { place_->leave(rank_); }
  int rank() const override { return rank_; }
  int size() const override { return place_->size(); }
  std::unique_ptr<Transport> make_transport(const std::string& name, const std::vector<int>& members) override {
    const int me = group_rank(members, rank_, size());
    return std::make_unique<InprocTransport>(place_->meet(name, members, me), me);
  }

 private:
  std::shared_ptr<MeetingPlace> place_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<CommWorld>> make_inproc_worlds(int num_ranks, InprocOptions options) {
  CADRE_CHECK(num_ranks >= 1, "{} ranks", num_ranks);
  auto place = std::make_shared<MeetingPlace>(num_ranks, options);
  std::vector<std::unique_ptr<CommWorld>> worlds;
  for (int r = 0; r < num_ranks; ++r) worlds.push_back(std::make_unique<InprocWorld>(place, r));
  return worlds;
}

}  // namespace cadre
