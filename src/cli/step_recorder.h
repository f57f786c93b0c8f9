// What the steps of a running deployment held and took, as replay/cost.h weighs them.
#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "dp/controller.h"
#include "replay/cost.h"

namespace cadre::cli {

class StepRecorder {
 public:
  explicit StepRecorder(const Clock& clock) : clock_(clock) {}
  // Before the first step.
  void set_num_ranks(int num_ranks);
  // The recorder outlives the deployment.
  StepObserver observer();

  // Steps that were over when this is called, in order, but for the last one. A step lasts until the next begins, as
  // the tokens of whoever decodes on see it, or, before a pause, until its own end.
  std::vector<replay::MeasuredStep> steps() const;
  void clear();

 private:
  struct Step {
    std::vector<replay::StepShape> shapes;
    int num_begun = 0, num_ended = 0;
    int64_t begins_us = 0, ends_us = 0;  // the first rank's begin, the last one's end
  };
  void begin(int rank, std::span<const ScheduledRows> rows);
  void end(int rank);

  const Clock& clock_;
  mutable std::mutex mutex_;
  int num_ranks_ = 0;
  std::deque<Step> steps_;
  std::vector<size_t> next_;  // of each rank, by index from the first step
};

}  // namespace cadre::cli
