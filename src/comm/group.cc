#include "comm/group.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace cadre {
namespace {

// sums[i] += part[i]. In blocks of a fixed size, which compilers make vector code of at -O2 too.
void add_to(float* __restrict sums, const float* __restrict part, int64_t n) {
  constexpr int64_t kBlock = 16;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock)
    for (int64_t j = 0; j < kBlock; ++j) sums[i + j] += part[i + j];
  for (; i < n; ++i) sums[i] += part[i];
}

}  // namespace

Group::Group(std::string name, std::unique_ptr<Transport> transport, TrafficCounters* counters)
    : name_(std::move(name)), transport_(std::move(transport)), counters_(counters) {
  send_.reserve(static_cast<size_t>(size()));
  recv_.reserve(static_cast<size_t>(size()));
  parts_.reserve(static_cast<size_t>(size()));
}

void Group::count(Purpose purpose, std::span<const SendPart> send) {
  if (!counters_) return;
  TrafficCount& c = counters_->at(purpose.layer, purpose.traffic);
  ++c.calls;
  for (int d = 0; d < size(); ++d)
    if (d != rank()) c.bytes_sent += send[static_cast<size_t>(d)].bytes;
}

void Group::start(Purpose purpose, std::span<const SendPart> send, std::span<const RecvPart> recv) {
  CADRE_CHECK(static_cast<int>(send.size()) == size() && static_cast<int>(recv.size()) == size(), "{} and {} parts for {} ranks", send.size(), recv.size(), size());
  count(purpose, send);
  transport_->start(send, recv);
}

void Group::all_to_all(Purpose purpose, std::span<const SendPart> send, std::span<const RecvPart> recv) {
  start(purpose, send, recv);
  transport_->finish([&](int source, std::span<const std::byte> data) { check_size(source, data, recv[static_cast<size_t>(source)].bytes); });
}

// A transport takes less than there is room for; here every size is known.
void Group::check_size(int source, std::span<const std::byte> data, int64_t expected) const {
  CADRE_CHECK(static_cast<int64_t>(data.size()) == expected, "group {}: rank {} sends {} bytes, rank {} expects {}", name_, source, data.size(), rank(), expected);
}

// Exchanges send_ and recv_, all of `count` floats here, and leaves their sum in sums_: in memory of its own, as what comes
// out may be what this rank still sends from.
void Group::sum_parts(Purpose purpose, int64_t n) {
  sums_.resize(std::max(sums_.size(), static_cast<size_t>(n)));
  start(purpose, send_, recv_);
  transport_->finish([&](int source, std::span<const std::byte> data) {
    check_size(source, data, n * 4);
    const float* part = reinterpret_cast<const float*>(data.data());
    if (source == 0) std::copy_n(part, n, sums_.begin());
    else add_to(sums_.data(), part, n);
  });
}

void Group::barrier(Purpose purpose) {
  send_.assign(static_cast<size_t>(size()), {});
  recv_.assign(static_cast<size_t>(size()), {});
  all_to_all(purpose, send_, recv_);
}

void Group::all_gather(Purpose purpose, SendPart mine, std::span<const RecvPart> parts) {
  send_.assign(static_cast<size_t>(size()), mine);
  all_to_all(purpose, send_, parts);
}

void Group::reduce_scatter(Purpose purpose, const float* in, std::span<const int64_t> counts, float* out) {
  CADRE_CHECK(static_cast<int>(counts.size()) == size(), "{} counts for {} ranks", counts.size(), size());
  const int64_t mine = counts[static_cast<size_t>(rank())];
  send_.clear();
  recv_.assign(static_cast<size_t>(size()), {nullptr, mine * 4});
  for (const int64_t n : counts) {
    send_.push_back({reinterpret_cast<const std::byte*>(in), n * 4});
    in += n;
  }
  sum_parts(purpose, mine);
  std::copy_n(sums_.begin(), mine, out);
}

void Group::all_reduce(Purpose purpose, float* values, int64_t n) {
  send_.assign(static_cast<size_t>(size()), {reinterpret_cast<const std::byte*>(values), n * 4});
  recv_.assign(static_cast<size_t>(size()), {nullptr, n * 4});
  sum_parts(purpose, n);
  std::copy_n(sums_.begin(), n, values);
}

void Group::broadcast(Purpose purpose, int root, std::span<std::byte> data) {
  const int64_t bytes = static_cast<int64_t>(data.size());
  send_.assign(static_cast<size_t>(size()), rank() == root ? SendPart{data.data(), bytes} : SendPart{});
  recv_.assign(static_cast<size_t>(size()), {});
  if (rank() == root) send_[static_cast<size_t>(root)] = {};
  else recv_[static_cast<size_t>(root)] = {data.data(), bytes};
  all_to_all(purpose, send_, recv_);
}

}  // namespace cadre
