// One rank's end of UCX: connections to the other ranks, messages of at most kMaxMessageBytes to them, and waiting.
// Messages are copied into memory of its own before UCX sees them, so whatever happens to a peer, UCX never holds
// memory that belongs to a caller. All functions but wake() want the caller to hold mutex().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "comm/ucx/ucx_api.h"

namespace cadre {

struct UcxOptions {
  int64_t connect_timeout_us = 60'000'000;  // for the store, and for making a group
  int64_t close_timeout_us = 1'000'000;     // how long the end waits for peers to take what was sent
  std::string net_devices;                  // as UCX_NET_DEVICES; empty: that variable, or all
};

class UcxWorker {
 public:
  static constexpr size_t kMaxMessageBytes = 48 << 10;  // one segment of the TCP transport
  using Handler = std::function<void(std::span<const std::byte> header, std::span<const std::byte> data)>;

  // handler is called for each message, from within wait() and progress().
  UcxWorker(int num_peers, const UcxOptions& options, Handler handler);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;

  std::mutex& mutex() { return mutex_; }
  // What peers connect to.
  std::string address() const;
  void set_peer_address(int peer, std::string address);
  // How many ranks share this machine with this one: decides whether waiting spins.
  void set_ranks_here(int num_ranks);
  void connect(int peer);  // nothing when it is connected already

  // A message to a connected peer; dropped when the peer is dead.
  void send(int peer, std::span<const std::byte> header, std::span<const std::byte> data);
  int num_in_flight(int peer) const { return peers_[static_cast<size_t>(peer)].num_in_flight; }
  // Sees to it that what was sent leaves this process without further calls; counts as in flight until it has.
  void flush(int peer);
  // Why the connection to the peer is closed; null: it is not.
  const char* death(int peer) const { return peers_[static_cast<size_t>(peer)].death; }
  // Grows with every death; the cheap way to see that there is something to look at.
  uint64_t num_deaths() const { return num_deaths_; }

  bool progress() { return api_.ucp_worker_progress(worker_) != 0; }
  // Until is_done() or the deadline (of steady time; negative: none); false at the deadline. Lets go of the lock to
  // sleep.
  bool wait(std::unique_lock<std::mutex>& lock, int64_t deadline_us, FunctionRef<bool()> is_done);
  // Any thread, lock held or not: makes a wait() look again.
  void wake();

 private:
  struct Peer {
    UcxWorker* worker = nullptr;
    std::string address;
    ucp_ep_h endpoint = nullptr;
    int num_in_flight = 0;
    const char* death = nullptr;
  };
  struct Buffer {
    Peer* peer = nullptr;
    alignas(16) std::byte header[64];
    std::vector<std::byte> data;
  };
  void require(ucs_status_t status, const char* what) const;
  void create_worker(const UcxOptions& options);
  void mark_dead(Peer& peer, ucs_status_t status);
  Buffer* take_buffer();
  void close_endpoints();
  static ucs_status_t on_message(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t status, void* buffer);
  static void on_flushed(void* request, ucs_status_t status, void* peer);
  static void on_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  const UcxApi api_;
  std::mutex mutex_;
  Handler handler_;
  const int64_t close_timeout_us_;
  int num_spins_ = 0;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1, wake_fd_ = -1;
  std::vector<Peer> peers_;
  uint64_t num_deaths_ = 0;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Buffer*> free_buffers_;
};

}  // namespace cadre
