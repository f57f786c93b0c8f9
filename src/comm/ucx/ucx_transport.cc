#include "comm/ucx/ucx_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "comm/ucx/ucx_header.h"

namespace cadre {
namespace {

// So many messages to one peer wait within UCX; more would only take memory.
constexpr int kMaxInFlight = 4;
// Smaller parts go out in one piece at once or wait in flight; of larger ones a rest may stay in UCX's own buffers.
constexpr int64_t kMinFlushBytes = 8 << 10;

std::string group_key(const std::string& name, const std::vector<int>& members) {
  return fmt::format("{} {}", name, fmt::join(members, ","));
}

}  // namespace

UcxTransport::UcxTransport(std::shared_ptr<UcxHub> hub, const std::string& name, const std::vector<int>& members,
                           int rank, int64_t timeout_us)
    : hub_(std::move(hub)),
      name_(name),
      key_(group_key(name, members)),
      members_(members),
      rank_(rank),
      peer_ids_(members.size()),
      has_left_(members.size()),
      incoming_(members.size()),
      outgoing_(members.size()),
      recv_(members.size()),
      timeout_us_(timeout_us) {
  CADRE_CHECK(key_.size() <= UcxWorker::kMaxMessageBytes, "a name of {} bytes", key_.size());
  Lock lock(hub_->worker().mutex());
  id_ = hub_->next_group_id_++;
  hub_->groups_[id_] = this;
  try {
    meet(lock);
  } catch (...) {
    hub_->groups_.erase(id_);
    throw;
  }
  timeout_us_ = 0;
}

void UcxTransport::meet(Lock& lock) {
  peer_ids_[static_cast<size_t>(rank_)] = id_;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    hub_->worker().connect(peer(r));
    hub_->send(peer(r),
               {.kind = UcxHub::Header::kHello, .group_id = id_, .source = static_cast<uint32_t>(hub_->rank())},
               std::as_bytes(std::span(key_)));
    const auto early = std::find_if(hub_->early_hellos_.begin(), hub_->early_hellos_.end(),
                                    [&](const auto& h) { return h.source == peer(r) && h.key == key_; });
    if (early == hub_->early_hellos_.end()) continue;
    peer_ids_[static_cast<size_t>(r)] = early->group_id;
    hub_->early_hellos_.erase(early);
  }
  Deadline deadline = this->deadline();
  const auto first_silent = [&] {
    const auto it = std::find(peer_ids_.begin(), peer_ids_.end(), 0u);
    return it == peer_ids_.end() ? -1 : static_cast<int>(it - peer_ids_.begin());
  };
  wait(lock, deadline, first_silent, "did not come");
  wait(
      lock, deadline, [&] { return first_unsent(); }, "did not take the greeting");
}

UcxTransport::~UcxTransport() {
  if (is_open_) abort("left in the middle of an exchange");
  Lock lock(hub_->worker().mutex());
  hub_->groups_.erase(id_);
  if (lost_rank_ >= 0) return;
  for (int r = 0; r < size(); ++r)
    if (r != rank_)
      hub_->send(peer(r),
                 {.kind = UcxHub::Header::kLeave, .group_id = id_, .source = static_cast<uint32_t>(hub_->rank())}, {});
}

UcxTransport::Deadline UcxTransport::deadline() const {
  if (timeout_us_ <= 0) return {};
  const int64_t now_us = SteadyClock().now_us();
  return {.begun_us = now_us, .at_us = now_us + timeout_us_};
}

void UcxTransport::start(std::span<const SendPart> send, std::span<const RecvPart> recv) {
  CADRE_CHECK(static_cast<int>(send.size()) == size() && static_cast<int>(recv.size()) == size(),
              "{} and {} parts for {} ranks", send.size(), recv.size(), size());
  CADRE_CHECK(!is_open_, "group {}: an exchange is open already", name_);
  Lock lock(hub_->worker().mutex());
  std::copy(recv.begin(), recv.end(), recv_.begin());
  is_open_ = true;
  needs_flush_ = false;
  num_outgoing_ = 0;
  for (int r = 0; r < size(); ++r) {
    outgoing_[static_cast<size_t>(r)] = {send[static_cast<size_t>(r)], 0, r == rank_};
    if (r == rank_) continue;
    ++num_outgoing_;
    needs_flush_ |= send[static_cast<size_t>(r)].bytes >= kMinFlushBytes;
    // What came early lies in the stash and is copied when it is delivered.
    Incoming& in = incoming(r);
    if (in.has_begun)
      CADRE_CHECK(in.total <= recv_[static_cast<size_t>(r)].bytes,
                  "group {}, step {}: rank {} sends {} bytes, rank {} has room for {}", name_, step_, r, in.total, rank_,
                  recv_[static_cast<size_t>(r)].bytes);
  }
  if (lost_rank_ < 0) pump();
}

// Hands messages to UCX, a few per peer at a time, beginning with the rank after this one so that not all send to rank
// 0.
void UcxTransport::pump() {
  for (int i = 1; i < size() && num_outgoing_ > 0; ++i) {
    const int r = (rank_ + i) % size();
    Outgoing& out = outgoing_[static_cast<size_t>(r)];
    while (!out.is_done && hub_->worker().num_in_flight(peer(r)) < kMaxInFlight) {
      const int64_t bytes = std::min<int64_t>(out.part.bytes - out.sent, UcxWorker::kMaxMessageBytes);
      hub_->send(peer(r),
                 {.kind = UcxHub::Header::kData,
                  .group_id = peer_ids_[static_cast<size_t>(r)],
                  .source = static_cast<uint32_t>(rank_),
                  .exchange = exchange_,
                  .total = out.part.bytes,
                  .offset = out.sent},
                 {out.part.data + out.sent, static_cast<size_t>(bytes)});
      out.sent += bytes;
      if (out.sent < out.part.bytes) continue;
      out.is_done = true;
      --num_outgoing_;
      if (out.part.bytes >= kMinFlushBytes) hub_->worker().flush(peer(r));
    }
  }
}

void UcxTransport::take_message(int source, uint32_t exchange, int64_t total, int64_t offset,
                                std::span<const std::byte> data) {
  if (lost_rank_ >= 0) return;
  Incoming& in = incoming_[static_cast<size_t>(source)][exchange % 2];
  if (!in.has_begun) begin_incoming(in, source, exchange, total);
  const int64_t bytes = static_cast<int64_t>(data.size());
  CADRE_CHECK(in.exchange == exchange && in.total == total && offset >= 0 && bytes <= total - offset,
              "group {}: rank {} sends bytes {} to {} of {} in exchange {}, expected {} in {}", name_, source, offset,
              offset + bytes, total, exchange, in.total, in.exchange);
  if (bytes > 0) std::memcpy(in.target + offset, data.data(), data.size());
  in.arrived += bytes;
}

void UcxTransport::begin_incoming(Incoming& in, int source, uint32_t exchange, int64_t total) {
  in.has_begun = true;
  in.exchange = exchange;
  in.total = total;
  in.arrived = 0;
  const RecvPart& want = recv_[static_cast<size_t>(source)];
  const bool is_awaited = is_open_ && exchange == exchange_;
  if (is_awaited)
    CADRE_CHECK(total <= want.bytes, "group {}, step {}: rank {} sends {} bytes, rank {} has room for {}", name_, step_,
                source, total, rank_, want.bytes);
  if (is_awaited && want.into) {
    in.target = want.into;
    return;
  }
  if (static_cast<int64_t>(in.stash.size()) < total) in.stash.resize(static_cast<size_t>(total));
  in.target = in.stash.data();
}

void UcxTransport::finish(Receive receive) {
  CADRE_CHECK(is_open_, "group {}: no exchange is open", name_);
  Lock lock(hub_->worker().mutex());
  try {
    Deadline deadline = this->deadline();
    num_changes_seen_ = 0;  // who was not needed any more in the last exchange may be in this one
    for (int source = 0; source < size(); ++source) {
      if (source != rank_) {
        const auto missing = [&] {
          for (int r = source; r < size(); ++r)
            if (r != rank_ && !is_complete(incoming(r))) return r;
          return -1;
        };
        // Done with this source is enough; but who is missing may be any later one that is known to be lost.
        wait(
            lock, deadline, [&] { return is_complete(incoming(source)) ? -1 : missing(); }, "did not come");
      }
      deliver(source, receive, lock);
    }
    wait(
        lock, deadline, [&] { return first_unsent(); }, "did not take what is sent to it");
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    lose(rank_, "failed in the middle of an exchange");
    is_open_ = false;
    throw;
  }
  for (int r = 0; r < size(); ++r) incoming(r).has_begun = false;
  ++exchange_;
  is_open_ = false;
}

void UcxTransport::deliver(int source, Receive receive, Lock& lock) {
  const RecvPart& want = recv_[static_cast<size_t>(source)];
  const std::byte* data = source == rank_ ? outgoing_[static_cast<size_t>(source)].part.data : incoming(source).target;
  const int64_t bytes = source == rank_ ? outgoing_[static_cast<size_t>(source)].part.bytes : incoming(source).total;
  CADRE_CHECK(bytes <= want.bytes, "group {}, step {}: rank {} sends {} bytes, rank {} has room for {}", name_, step_,
              source, bytes, rank_, want.bytes);
  lock.unlock();
  if (want.into && bytes > 0) {
    if (want.into != data) std::memcpy(want.into, data, static_cast<size_t>(bytes));
    data = want.into;
  }
  receive(source, {data, static_cast<size_t>(bytes)});
  lock.lock();
}

int UcxTransport::first_unsent() {
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || hub_->worker().death(peer(r))) continue;
    if (!outgoing_[static_cast<size_t>(r)].is_done || hub_->worker().num_in_flight(peer(r)) > 0) return r;
  }
  return -1;
}

bool UcxTransport::is_over_at(Lock& lock, Deadline& deadline, FunctionRef<bool()> is_over, FunctionRef<int()> first_missing) {
  UcxWorker& worker = hub_->worker();
  if (deadline.at_us < 0) return worker.wait(lock, -1, is_over);
  if (!deadline.has_said) {
    if (worker.wait(lock, deadline.at_us - timeout_us_ / 2, is_over)) return true;
    deadline.has_said = true;
    hub_->say_that_it_waits();
  }
  if (worker.wait(lock, deadline.at_us, is_over)) return true;
  if (deadline.had_grace || hub_->waited_at_us_[static_cast<size_t>(peer(first_missing()))] < deadline.begun_us) return false;
  deadline.had_grace = true;
  deadline.at_us += timeout_us_;
  return worker.wait(lock, deadline.at_us, is_over);
}

void UcxTransport::wait(Lock& lock, Deadline& deadline, FunctionRef<int()> first_missing, const char* late) {
  const auto is_over = [&] {
    if (num_outgoing_ > 0 && lost_rank_ < 0) pump();
    if (first_missing() < 0) return true;
    look_for_losses();
    return lost_rank_ >= 0;
  };
  if (!is_over_at(lock, deadline, is_over, first_missing))
    lose(first_missing(), fmt::format("{} within {} us", late, timeout_us_));
  if (lost_rank_ >= 0 && first_missing() >= 0) throw_lost();
}

void UcxTransport::look_for_losses() {
  if (lost_rank_ >= 0) return;
  const uint64_t num_changes = num_changes_ + hub_->worker().num_deaths() + 1;
  if (num_changes == num_changes_seen_) return;
  num_changes_seen_ = num_changes;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const char* death = hub_->worker().death(peer(r));
    if (!death && !has_left_[static_cast<size_t>(r)]) continue;
    // One that ended after its part had arrived, or its greeting, is missed only by the next exchange.
    const bool is_needed = is_open_ ? !is_complete(incoming(r)) : peer_ids_[static_cast<size_t>(r)] == 0;
    if (is_needed) return lose(r, death ? fmt::format("closed its connection ({})", death) : "left the group");
  }
}

void UcxTransport::lose(int rank, const std::string& how) {
  if (lost_rank_ >= 0) return;
  lost_rank_ = rank;
  lost_how_ = how;
  std::string text(sizeof(int32_t), '\0');
  std::memcpy(text.data(), &rank, sizeof(int32_t));
  text += how.substr(0, 1024);
  for (int r = 0; r < size(); ++r)
    if (r != rank_)
      hub_->send(peer(r),
                 {.kind = UcxHub::Header::kAbort, .group_id = id_, .source = static_cast<uint32_t>(hub_->rank())},
                 std::as_bytes(std::span(text)));
  while (hub_->worker().progress()) {
  }
}

void UcxTransport::throw_lost() const { throw PeerLost(name_, lost_rank_, peer(lost_rank_), step_, lost_how_); }

void UcxTransport::abort(const std::string& reason) {
  Lock lock(hub_->worker().mutex());
  lose(rank_, "gave up: " + reason);
  hub_->worker().wake();
}

}  // namespace cadre
