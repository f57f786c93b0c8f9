#include "comm/inproc/inproc_transport.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace cadre {

InprocTransport::InprocTransport(std::shared_ptr<InprocGroup> group, int rank)
    : group_(std::move(group)), rank_(rank), recv_(static_cast<size_t>(group_->size())) {}

InprocTransport::~InprocTransport() {
  if (is_open_) abort("left in the middle of an exchange");
  group_->leave(rank_);
}

void InprocTransport::start(std::span<const SendPart> send, std::span<const RecvPart> recv) {
  CADRE_CHECK(static_cast<int>(send.size()) == size() && static_cast<int>(recv.size()) == size(),
              "{} and {} parts for {} ranks", send.size(), recv.size(), size());
  CADRE_CHECK(!is_open_, "group {}: an exchange is open already", group_->name());
  std::copy(send.begin(), send.end(), group_->slot(rank_).send[exchange_ % 2].begin());
  std::copy(recv.begin(), recv.end(), recv_.begin());
  is_open_.store(true, std::memory_order_release);
  group_->advance(rank_);
}

void InprocTransport::finish(Receive receive) {
  CADRE_CHECK(is_open_, "group {}: no exchange is open", group_->name());
  is_finishing_.store(true, std::memory_order_release);
  InprocGroup::Wait wait{.rank = rank_, .timeout_us = timeout_us_, .step = step_};
  try {
    read_parts(receive, wait);
    group_->advance(rank_);
    const std::vector<SendPart>& send = group_->slot(rank_).send[exchange_ % 2];
    for (int d = 0; d < size(); ++d)
      if (d != rank_ && send[static_cast<size_t>(d)].bytes > 0)
        group_->wait_for(d, ProgressWord::consumed(exchange_), wait);
  } catch (...) {
    // A peer's loss, or receive threw: either way this rank cannot end the exchange, and its caller is about to free
    // what peers may be reading.
    group_->end_read(rank_);
    group_->lose(rank_, "failed in the middle of an exchange");
    group_->await_readers(rank_);
    close();
    throw;
  }
  ++exchange_;
  close();
}

void InprocTransport::close() {
  is_finishing_.store(false, std::memory_order_release);
  is_open_.store(false, std::memory_order_release);
}

void InprocTransport::read_parts(Receive receive, InprocGroup::Wait& wait) {
  for (int source = 0; source < size(); ++source) {
    const SendPart* part = &group_->slot(source).send[exchange_ % 2][static_cast<size_t>(rank_)];
    if (source == rank_) {
      read_part(source, *part, receive);
      continue;
    }
    group_->wait_for(source, ProgressWord::posted(exchange_), wait);
    group_->begin_read(rank_, source, step_);
    read_part(source, *part, receive);
    group_->end_read(rank_);
  }
}

void InprocTransport::read_part(int source, const SendPart& part, Receive receive) {
  const RecvPart& want = recv_[static_cast<size_t>(source)];
  CADRE_CHECK(part.bytes <= want.bytes, "group {}, step {}: rank {} sends {} bytes, rank {} has room for {}",
              group_->name(), step_, source, part.bytes, rank_, want.bytes);
  const std::byte* data = part.data;
  if (want.into && part.bytes > 0) {
    if (want.into != data) std::memcpy(want.into, data, static_cast<size_t>(part.bytes));
    data = want.into;
  }
  receive(source, {data, static_cast<size_t>(part.bytes)});
}

void InprocTransport::abort(const std::string& reason) {
  group_->lose(rank_, "gave up: " + reason);
  // finish() waits itself when it ends; waiting here for it, from within receive, could be for ever.
  if (is_open_ && !is_finishing_) group_->await_readers(rank_);
}

}  // namespace cadre
