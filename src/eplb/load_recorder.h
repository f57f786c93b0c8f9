// Records which experts rows chose, from when it is told to start until it is told to stop: sums, a record of each step, or the
// routes of sampled rows. One object a rank; the records of all ranks come together on world rank 0, step by step while it
// records, so that nothing needs a step to be read. Ranks agree because what rank 0 wants goes with each step
// (StepInput::order). Rows that are computed are counted once, by the rank whose they are; there are no others (no padding,
// no warm-up).
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace cadre::eplb {

// Names as SGLang's --expert-distribution-recorder-mode has them.
enum class RecorderMode : uint8_t {
  kStat = 1,  // sums over steps
  kPerPass,   // one record a step
  kPerToken,  // the routes of every n-th row
};
std::string_view name_of(RecorderMode mode);
// Throws Error with the names there are.
RecorderMode parse_recorder_mode(std::string_view name);

struct RecorderOptions {
  int64_t num_experts = 0, top_k = 0;
  std::vector<int64_t> layers;        // the sparse ones, by their places in the model
  int world_rank = 0, world_size = 1;
  int64_t max_rows = 0;               // of this rank in a step
  int64_t max_bytes = 512ll << 20;    // of records; when they are full, it stops
};

struct RecorderStatus {
  bool is_recording = false, is_full = false;
  RecorderMode mode = RecorderMode::kStat;  // of what is held
  int64_t sample_every = 1, num_steps = 0;
  std::vector<int64_t> rows_of_rank;        // rows (sampled ones in kPerToken) of each world rank
  std::vector<int64_t> counts;              // [layers, experts], of all ranks
};

class LoadRecorder {
 public:
  // world: null for one rank; outlives the object.
  LoadRecorder(RecorderOptions options, Group* world);

  // Any thread of world rank 0's process. start() forgets what is held; sample_every is for kPerToken.
  void start(RecorderMode mode, int64_t sample_every = 1);
  void stop();
  RecorderStatus status() const;
  // What is held, in our form of load files (docs/eplb.md): each rank's part of a step is a line of its own.
  std::string dump() const;
  std::span<const int64_t> layers() const { return options_.layers; }
  int64_t num_experts() const { return options_.num_experts; }

  // World rank 0, before a step: what all ranks are to do in it. 0: not record.
  int64_t order() const { return order_; }
  // The step's thread, around each step: begin, choices of this rank's rows by layer, end. end_step() is a collective where
  // the order is not 0.
  void begin_step(int64_t order);
  bool is_recording_step() const { return step_order_ != 0; }
  void record(int64_t layer, std::span<const int32_t> ids);
  void end_step();

 private:
  struct Record {  // of kPerPass and kPerToken
    int64_t step = 0;
    int rank = 0;
    std::vector<std::byte> data;  // as it was sent
  };
  void take(int source, std::span<const std::byte> data);
  size_t index(int64_t layer, int64_t expert) const { return static_cast<size_t>(layer * options_.num_experts + expert); }
  size_t num_counts() const { return options_.layers.size() * static_cast<size_t>(options_.num_experts); }

  const RecorderOptions options_;
  Group* const world_;
  std::vector<int64_t> idx_of_layer_;  // among options_.layers, by layer of the model; -1: dense
  std::atomic<int64_t> order_ = 0;

  // Of the step.
  int64_t step_order_ = 0, rows_before_ = 0, step_rows_ = 0;
  std::vector<std::byte> message_;
  std::vector<SendPart> send_;
  std::vector<RecvPart> recv_;

  mutable std::mutex mutex_;  // guards what follows: rank 0's
  int64_t held_order_ = 0, num_steps_ = 0, bytes_ = 0;
  bool is_full_ = false;
  std::vector<int64_t> rows_of_rank_, counts_;  // counts: [ranks, layers, experts]
  std::vector<Record> records_;
};

}  // namespace cadre::eplb
