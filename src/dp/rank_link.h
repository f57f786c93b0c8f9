// The controller's end of a data-parallel rank that runs in another process: commands go out, answers and statistics come
// back. FramedRankLink speaks it over a connection.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "dp/frame_link.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace cadre {

// What a rank tells after each decision, step and pause.
struct RankReport {
  EngineStats stats;
  uint64_t num_taken = 0;   // submissions that have reached its engine
  int64_t num_wakes = 0;    // it has heard of
  uint8_t is_paused = 0;
};

enum class LinkFrame : uint8_t { kHello = 1, kSubmit, kCancel, kWake, kStop, kDelta, kReport };

class RankLink {
 public:
  virtual ~RankLink() = default;
  // reported and lost run on a thread of the link, without locks of the controller held.
  virtual void start(std::function<void(const RankReport&)> reported, std::function<void(const std::string&)> lost) = 0;
  virtual void submit(uint64_t handle, const GenerationRequest& request, DeltaSink sink) = 0;
  virtual void cancel(uint64_t handle) = 0;
  virtual void wake(int64_t num_wakes) = 0;
  virtual void stop() = 0;
  // Ends every open request with this error.
  virtual void fail_all(const std::string& message) = 0;
};

class FramedRankLink final : public RankLink {
 public:
  explicit FramedRankLink(int fd);
  ~FramedRankLink() override;
  void start(std::function<void(const RankReport&)> reported, std::function<void(const std::string&)> lost) override;
  void submit(uint64_t handle, const GenerationRequest& request, DeltaSink sink) override;
  void cancel(uint64_t handle) override;
  void wake(int64_t num_wakes) override;
  void stop() override;
  void fail_all(const std::string& message) override;

 private:
  struct Open {
    DeltaSink sink;
    std::vector<uint8_t> is_open;  // by choice
  };
  void receive(Frame&& frame);
  void deliver(uint64_t handle, Delta&& delta);

  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Open>> open_;  // guarded by mutex_
  std::function<void(const RankReport&)> reported_;
  std::function<void(const std::string&)> lost_;
  std::unique_ptr<FrameLink> link_;  // last: its threads use the others
};

}  // namespace cadre
