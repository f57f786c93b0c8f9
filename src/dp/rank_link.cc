#include "dp/rank_link.h"

#include <algorithm>

#include "base/error.h"
#include "dp/wire.h"

namespace cadre {
namespace {

Frame frame_of(LinkFrame type, WireWriter& out) { return {static_cast<uint8_t>(type), out.take()}; }

}  // namespace

FramedRankLink::FramedRankLink(int fd)
    : link_(std::make_unique<FrameLink>(fd, [this](Frame&& frame) { receive(std::move(frame)); }, [this](const std::string& how) { lost_(how); })) {}

FramedRankLink::~FramedRankLink() { link_.reset(); }

void FramedRankLink::start(std::function<void(const RankReport&)> reported, std::function<void(const std::string&)> lost) {
  reported_ = std::move(reported);
  lost_ = std::move(lost);
  link_->start();
}

void FramedRankLink::submit(uint64_t handle, const GenerationRequest& request, DeltaSink sink) {
  {
    const std::lock_guard lock(mutex_);
    open_[handle] = std::make_shared<Open>(Open{std::move(sink), std::vector<uint8_t>(static_cast<size_t>(request.n), 1)});
  }
  WireWriter out;
  out.put(handle);
  put_request(out, request);
  link_->send(frame_of(LinkFrame::kSubmit, out));
}

void FramedRankLink::cancel(uint64_t handle) {
  WireWriter out;
  out.put(handle);
  link_->send(frame_of(LinkFrame::kCancel, out));
}

void FramedRankLink::wake(int64_t num_wakes) {
  WireWriter out;
  out.put(num_wakes);
  link_->send(frame_of(LinkFrame::kWake, out));
}

void FramedRankLink::stop() { link_->send({static_cast<uint8_t>(LinkFrame::kStop), {}}); }

void FramedRankLink::receive(Frame&& frame) {
  WireReader in(frame.bytes);
  switch (static_cast<LinkFrame>(frame.type)) {
    case LinkFrame::kDelta: {
      const uint64_t handle = in.get<uint64_t>();
      Delta delta = get_delta(in);
      in.expect_end();
      return deliver(handle, std::move(delta));
    }
    case LinkFrame::kReport: return reported_(in.get<RankReport>());
    default: throw Error(ErrorKind::kInternal, fmt::format("a message of kind {} from a rank; run the same build on all of them", frame.type));
  }
}

void FramedRankLink::deliver(uint64_t handle, Delta&& delta) {
  std::shared_ptr<Open> open;
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(handle);
    if (found == open_.end() || static_cast<size_t>(delta.choice_idx) >= found->second->is_open.size()) return;
    open = found->second;
    if (delta.finish) {
      open->is_open[static_cast<size_t>(delta.choice_idx)] = 0;
      if (std::none_of(open->is_open.begin(), open->is_open.end(), [](uint8_t o) { return o != 0; })) open_.erase(found);
    }
  }
  if (open->sink) open->sink(std::move(delta));
}

void FramedRankLink::fail_all(const std::string& message) {
  std::map<uint64_t, std::shared_ptr<Open>> failed;
  {
    const std::lock_guard lock(mutex_);
    std::swap(failed, open_);
  }
  for (const auto& [handle, open] : failed)
    for (size_t c = 0; c < open->is_open.size(); ++c) {
      if (!open->is_open[c] || !open->sink) continue;
      Delta delta;
      delta.choice_idx = static_cast<int32_t>(c);
      delta.finish = FinishReason::kError;
      delta.error = message;
      open->sink(std::move(delta));
    }
}

}  // namespace cadre
