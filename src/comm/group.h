// Collectives of a named group of ranks, built on Transport. Sums are float32 added in rank order, so every rank gets the
// same bits every time. Each call is counted by what it is for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "parallel/traffic.h"

namespace cadre {

// What the next collective is for.
struct Purpose {
  Traffic traffic = Traffic::kOther;
  int64_t layer = -1;
};

class Group {
 public:
  // counters may be null and must outlive the group.
  Group(std::string name, std::unique_ptr<Transport> transport, TrafficCounters* counters = nullptr);

  const std::string& name() const { return name_; }
  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  Transport& transport() { return *transport_; }

  void barrier(Purpose purpose = {});
  // parts[s] is filled with what rank s gave as mine (sizes must agree); parts[rank()] too.
  void all_gather(Purpose purpose, SendPart mine, std::span<const RecvPart> parts);
  // The same for one value of each rank: out[s].
  template <typename T>
  void all_gather_value(Purpose purpose, const T& mine, std::span<T> out) {
    parts_.clear();
    for (T& value : out) parts_.push_back({reinterpret_cast<std::byte*>(&value), sizeof(T)});
    all_gather(purpose, {reinterpret_cast<const std::byte*>(&mine), sizeof(T)}, parts_);
  }
  // send[d] to rank d, recv[s] from rank s.
  void all_to_all(Purpose purpose, std::span<const SendPart> send, std::span<const RecvPart> recv);
  // in: for each rank d in order counts[d] floats. out[0 .. counts[rank()]): the sum over ranks of their part for this
  // one, added in rank order. out may be in's own part.
  void reduce_scatter(Purpose purpose, const float* in, std::span<const int64_t> counts, float* out);
  // values[0 .. count): the sum over ranks, added in rank order. One exchange: for few values.
  void all_reduce(Purpose purpose, float* values, int64_t count);
  // data of rank root to all; all know its size.
  void broadcast(Purpose purpose, int root, std::span<std::byte> data);

  // The open halves of all_to_all: other work may run between.
  void start(Purpose purpose, std::span<const SendPart> send, std::span<const RecvPart> recv);
  void finish(Transport::Receive receive) { transport_->finish(receive); }

 private:
  void count(Purpose purpose, std::span<const SendPart> send);
  void check_size(int source, std::span<const std::byte> data, int64_t expected) const;
  void sum_parts(Purpose purpose, int64_t count);
  std::string name_;
  std::unique_ptr<Transport> transport_;
  TrafficCounters* counters_;
  std::vector<SendPart> send_;
  std::vector<RecvPart> recv_, parts_;
  std::vector<float> sums_;
};

// An exchange with other work between its halves. When that work throws, peers may be reading the buffers of this rank:
// the destructor then aborts the group before they go. Declare it after the buffers.
class OpenExchange {
 public:
  OpenExchange(Group& group, Purpose purpose, std::span<const SendPart> send, std::span<const RecvPart> recv) : group_(group) {
    group_.start(purpose, send, recv);
  }
  ~OpenExchange() {
    if (!is_finished_) group_.transport().abort("failed between the halves of an exchange");
  }
  OpenExchange(const OpenExchange&) = delete;
  OpenExchange& operator=(const OpenExchange&) = delete;
  void finish(Transport::Receive receive) {
    is_finished_ = true;
    group_.finish(receive);
  }

 private:
  Group& group_;
  bool is_finished_ = false;
};

}  // namespace cadre
