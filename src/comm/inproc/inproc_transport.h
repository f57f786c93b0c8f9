// Transport between threads of one process: pointers are exchanged, parts are read where they lie. Nothing is allocated
// after construction. When finish() throws, no peer reads this rank's parts any more; between start() and finish() it
// takes abort() to say so.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "comm/inproc/inproc_group.h"

namespace cadre {

class InprocTransport final : public Transport {
 public:
  InprocTransport(std::shared_ptr<InprocGroup> group, int rank);
  ~InprocTransport() override;
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  void start(std::span<const SendPart> send, std::span<const RecvPart> recv) override;
  void finish(Receive receive) override;
  void set_timeout_us(int64_t timeout_us) override { timeout_us_ = timeout_us; }
  void set_step(int64_t step) override { step_ = step; }
  void abort(const std::string& reason) override;

 private:
  void close();
  void read_parts(Receive receive, InprocGroup::Wait& wait);
  void read_part(int source, const SendPart& part, Receive receive);

  std::shared_ptr<InprocGroup> group_;
  const int rank_;
  uint32_t exchange_ = 0;  // the one that is open, or the next
  std::vector<RecvPart> recv_;
  int64_t timeout_us_ = 0;
  int64_t step_ = 0;
  std::atomic<bool> is_open_{false};       // between start() and the end of finish()
  std::atomic<bool> is_finishing_{false};  // within finish()
};

}  // namespace cadre
