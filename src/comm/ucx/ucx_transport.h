// Transport between processes over UCX. A part travels in messages that carry the receiver's number of the group, the
// exchange and an offset; they may come before this rank begins the exchange. Nothing of a caller's memory is touched
// outside start() and finish(), nor after abort() or PeerLost.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "comm/ucx/ucx_worker.h"

namespace cadre {

class UcxTransport;

// The groups of one rank, and the messages for groups that it has not made yet.
class UcxHub {
 public:
  UcxHub(int rank, int size, const UcxOptions& options);
  UcxWorker& worker() { return worker_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  friend class UcxTransport;
  struct Header;
  struct Hello {
    int source;  // rank in the world
    uint32_t group_id;
    std::string key;
  };
  void handle(std::span<const std::byte> header, std::span<const std::byte> data);
  void handle_hello(Hello hello);
  void handle_abort(int source, uint32_t group_id, std::span<const std::byte> data);
  UcxTransport* find(int source, uint32_t group_id);
  void send(int peer, const Header& header, std::span<const std::byte> data);
  // To every peer: this rank is alive and waits for another one.
  void say_that_it_waits();

  const int rank_, size_;
  uint32_t next_group_id_ = 1;
  std::map<uint32_t, UcxTransport*> groups_;  // by this rank's number
  std::vector<Hello> early_hellos_;
  std::vector<int64_t> waited_at_us_;  // when each rank of the world last said that it waits, of steady time; -1: never
  UcxWorker worker_;
};

class UcxTransport final : public Transport {
 public:
  // Says hello to the other members and waits for theirs. Throws PeerLost.
  UcxTransport(std::shared_ptr<UcxHub> hub, const std::string& name, const std::vector<int>& members, int rank,
               int64_t timeout_us);
  ~UcxTransport() override;
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  void start(std::span<const SendPart> send, std::span<const RecvPart> recv) override;
  void finish(Receive receive) override;
  void set_timeout_us(int64_t timeout_us) override { timeout_us_ = timeout_us; }
  void set_step(int64_t step) override { step_ = step; }
  void abort(const std::string& reason) override;

 private:
  friend class UcxHub;
  using Lock = std::unique_lock<std::mutex>;
  // A part on its way in. Two per source, by the parity of the exchange: a peer that got this rank's part of exchange k
  // may already send k + 1, but not k + 2.
  struct Incoming {
    bool has_begun = false;
    uint32_t exchange = 0;
    int64_t total = 0, arrived = 0;
    std::byte* target = nullptr;   // `into` of the open exchange, or stash
    std::vector<std::byte> stash;  // kept for the next time
  };
  struct Outgoing {
    SendPart part;
    int64_t sent = 0;
    bool is_done = true;
  };
  void meet(Lock& lock);
  void take_message(int source, uint32_t exchange, int64_t total, int64_t offset, std::span<const std::byte> data);
  void begin_incoming(Incoming& in, int source, uint32_t exchange, int64_t total);
  bool is_complete(const Incoming& in) const { return in.has_begun && in.arrived == in.total; }
  Incoming& incoming(int source) { return incoming_[static_cast<size_t>(source)][exchange_ % 2]; }
  void pump();
  void deliver(int source, Receive receive, Lock& lock);
  int first_unsent();
  struct Deadline {
    int64_t begun_us = 0, at_us = -1;  // of steady time; -1: none
    bool has_said = false;             // half of it has passed, and the peers know
    bool had_grace = false;
  };
  // Waits until first_missing() is -1; who it names at the deadline, when its connection closes or when it leaves is
  // lost. One that said meanwhile that it waits itself is not: whoever waits for the lost one finds it at the same time and
  // tells, so the others allow one more timeout.
  void wait(Lock& lock, Deadline& deadline, FunctionRef<int()> first_missing, const char* late);
  bool is_over_at(Lock& lock, Deadline& deadline, FunctionRef<bool()> is_over, FunctionRef<int()> first_missing);
  void look_for_losses();
  void lose(int rank, const std::string& how);
  [[noreturn]] void throw_lost() const;
  int peer(int rank) const { return members_[static_cast<size_t>(rank)]; }
  Deadline deadline() const;

  std::shared_ptr<UcxHub> hub_;
  const std::string name_, key_;
  const std::vector<int> members_;
  const int rank_;
  uint32_t id_ = 0;
  std::vector<uint32_t> peer_ids_;  // each member's number of this group; 0: it has not said hello yet
  std::vector<bool> has_left_;
  std::vector<std::array<Incoming, 2>> incoming_;
  std::vector<Outgoing> outgoing_;
  int num_outgoing_ = 0;
  std::vector<RecvPart> recv_;
  uint32_t exchange_ = 0;
  bool is_open_ = false, needs_flush_ = false;
  uint64_t num_changes_ = 0, num_changes_seen_ = 0;  // members that said something other than data
  int lost_rank_ = -1;
  std::string lost_how_;
  int64_t timeout_us_;
  int64_t step_ = 0;
};

}  // namespace cadre
