// The one primitive under every collective: each rank of a group hands each other rank some bytes and takes what they
// hand it. Ranks are threads of a process (inproc) or processes (ucx); code above does not know which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/function_ref.h"

namespace cadre {

// A rank of a group did not answer: it closed its connection, said that it gives up, or let the deadline pass. Groups
// that lost a rank are never used again; survivors make new ones. Caught by the step loop only. After a deadline it
// is a rank that did not wait for another one itself.
class PeerLost : public std::runtime_error {
 public:
  // rank: in the group; world_rank, its place in the deployment, is what the sentence names.
  PeerLost(std::string group, int rank, int world_rank, int64_t step, const std::string& how);
  const std::string& group() const { return group_; }
  int rank() const { return rank_; }  // in the group; the first one missing
  int world_rank() const { return world_rank_; }
  int64_t step() const { return step_; }

 private:
  std::string group_;
  int rank_, world_rank_;
  int64_t step_;
};

struct SendPart {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
};

// into: where the bytes shall lie; null: anywhere, they are looked at once. bytes: at most so many come (the sender's own
// count says how many); collectives whose sizes are known give them exactly.
struct RecvPart {
  std::byte* into = nullptr;
  int64_t bytes = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Begins an exchange: send[d] goes to rank d, recv[s] comes from rank s (at most its bytes); both have
  // size() parts, the own one included. Returns without waiting for peers. What send and recv point to stays untouched
  // until finish() returns. At most one exchange is open at a time; all ranks call in the same order.
  virtual void start(std::span<const SendPart> send, std::span<const RecvPart> recv) = 0;

  // Waits for the exchange that is open; calls receive(source, bytes) for each source in ascending order, own one
  // included, with the bytes where `into` said or anywhere (valid during the call only). Returns when the send buffers
  // may be reused. Throws PeerLost, after which only abort() and destruction are left; the buffers are the caller's again
  // then too. receive must not wait for other ranks; what it throws ends the group.
  using Receive = FunctionRef<void(int source, std::span<const std::byte> data)>;
  virtual void finish(Receive receive) = 0;

  // Deadline of each finish() from now on; 0: none (waiting for work may take for ever).
  virtual void set_timeout_us(int64_t timeout_us) = 0;
  // The step that errors name.
  virtual void set_step(int64_t step) = 0;
  // Any thread: this rank gives up. Peers that wait for it, or will, get PeerLost at once. Called by the rank's own thread
  // between start() and finish(), it also gives the buffers back: whoever throws there aborts first (OpenExchange does).
  virtual void abort(const std::string& reason) = 0;
};

// All ranks of a deployment, from the point of view of one of them.
class CommWorld {
 public:
  virtual ~CommWorld() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // A group of these world ranks, in this order; this rank is one of them. Every member calls with the same arguments, in
  // the same order of calls. Throws PeerLost.
  virtual std::unique_ptr<Transport> make_transport(const std::string& name, const std::vector<int>& members) = 0;
};

// Where world_rank stands in members. A bug when it does not, when a member is there twice or is outside the world.
int group_rank(const std::vector<int>& members, int world_rank, int world_size);

}  // namespace cadre
