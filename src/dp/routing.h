// Which data-parallel rank gets a request. Pure bookkeeping: no threads, no clock, the same choices for the same calls.
//
// Ranks tell their load in snapshots, which may come late, twice or out of order. Every assignment to a rank has a number;
// a snapshot says up to which number the rank had taken assignments in when it counted. The router's view of a rank is its
// newest snapshot and, on top, the assignments with later numbers: a burst between two snapshots spreads, and once all
// snapshots are there the view is the truth, whatever happened on the way.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cadre {

// Names as in SGLang.
enum class LoadBalance : uint8_t {
  kRoundRobin,            // in turn
  kTotalRequests,         // the fewest sequences, running or waiting; equals take turns
  kTotalTokens,           // the fewest tokens, in the KV cache or to be computed; then as total_requests
  kFollowBootstrapRoom,   // the request's room modulo the number of ranks
};
std::string_view load_balance_name(LoadBalance method);
std::string load_balance_names();                                // all, for messages
std::optional<LoadBalance> load_balance_of(std::string_view name);  // nullopt: no such method

struct RankLoad {
  int64_t num_requests = 0;  // sequences: every choice of a request is one
  int64_t num_tokens = 0;    // known tokens of all of them: resident in the KV cache, or still to be computed
  bool operator==(const RankLoad&) const = default;
};

struct LoadSnapshot {
  uint64_t sequence = 0;   // from 1, grows with every snapshot of the rank
  uint64_t num_taken = 0;  // of the assignments to the rank, the first so many are in `load`, or over
  RankLoad load;
};

// What a request says of where it goes.
struct RoutingWish {
  std::optional<int64_t> rank;  // this one and no other; goes before every method
  std::optional<int64_t> room;  // bootstrap_room, not negative
};

class Router {
 public:
  Router(LoadBalance method, int num_ranks);

  // Throws Error (kInvalidInput, kUnavailable) for a wish that route() could not fulfil now.
  void check(const RoutingWish& wish) const;

  struct Assignment {
    int rank = 0;
    uint64_t number = 0;  // of the rank's assignments, from 1
  };
  // Chooses a rank and counts `load` on it. Throws as check() does.
  Assignment route(const RoutingWish& wish, const RankLoad& load);

  // False when a snapshot as new or newer has been here: nothing changes then.
  bool update(int rank, const LoadSnapshot& snapshot);
  // From here on the rank gets nothing.
  void remove(int rank);

  RankLoad load(int rank) const;     // as the router sees it
  RankLoad pending(int rank) const;  // the part that no snapshot has
  uint64_t num_assigned(int rank) const;
  bool is_removed(int rank) const;
  LoadBalance method() const { return method_; }
  int num_ranks() const { return static_cast<int>(ranks_.size()); }

 private:
  struct Rank {
    LoadSnapshot snapshot;
    std::deque<RankLoad> later;  // assignments snapshot.num_taken + 1, + 2, ...
    RankLoad pending;            // their sum
    uint64_t num_assigned = 0;
    bool is_removed = false;
  };
  int choose(const RoutingWish& wish);
  int next_in_turn();

  LoadBalance method_;
  std::vector<Rank> ranks_;
  int turn_ = 0;  // the rank that is first among equals
};

}  // namespace cadre
