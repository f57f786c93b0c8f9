#include "cli/step_recorder.h"

#include <algorithm>

#include "replay/cluster.h"

namespace cadre::cli {
namespace {

// Between two steps without a pause lie microseconds of bookkeeping; what is longer was waiting.
constexpr int64_t kPauseUs = 200;

}  // namespace

void StepRecorder::set_num_ranks(int num_ranks) {
  const std::lock_guard lock(mutex_);
  num_ranks_ = num_ranks;
  next_.assign(static_cast<size_t>(num_ranks), 0);
}

StepObserver StepRecorder::observer() {
  return {.begins = [this](int rank, std::span<const ScheduledRows> rows) { begin(rank, rows); },
          .ends = [this](int rank) { end(rank); }};
}

void StepRecorder::begin(int rank, std::span<const ScheduledRows> rows) {
  const replay::StepShape shape = replay::shape_of(rows);
  const int64_t now_us = clock_.now_us();
  const std::lock_guard lock(mutex_);
  const size_t at = next_[static_cast<size_t>(rank)];
  if (at == steps_.size())
    steps_.push_back({.shapes = std::vector<replay::StepShape>(static_cast<size_t>(num_ranks_)), .begins_us = now_us});
  Step& step = steps_[at];
  step.shapes[static_cast<size_t>(rank)] = shape;
  ++step.num_begun;
}

void StepRecorder::end(int rank) {
  const int64_t now_us = clock_.now_us();
  const std::lock_guard lock(mutex_);
  Step& step = steps_[next_[static_cast<size_t>(rank)]++];
  ++step.num_ended;
  step.ends_us = std::max(step.ends_us, now_us);
}

std::vector<replay::MeasuredStep> StepRecorder::steps() const {
  const std::lock_guard lock(mutex_);
  std::vector<replay::MeasuredStep> out;
  for (size_t i = 0; i < steps_.size() && steps_[i].num_ended == num_ranks_; ++i) {
    const Step& step = steps_[i];
    int64_t ends_us = step.ends_us;
    if (i + 1 < steps_.size() && steps_[i + 1].begins_us - step.ends_us < kPauseUs)
      ends_us = std::max(ends_us, steps_[i + 1].begins_us);
    out.push_back({step.shapes, static_cast<double>(std::max<int64_t>(ends_us - step.begins_us, 1))});
  }
  return out;
}

void StepRecorder::clear() {
  const std::lock_guard lock(mutex_);
  steps_.clear();
  std::fill(next_.begin(), next_.end(), size_t{0});
}

}  // namespace cadre::cli
