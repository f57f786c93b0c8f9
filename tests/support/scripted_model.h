// A model of bytes for tests: vocabulary 256 bytes and special tokens (ByteTokenizer's ids). What it answers depends only
// on the tokens of its sequence, read back from the KV cache, where every row leaves its token, position and a hash of
// all before it: a scheduler or block bug changes the answer or is thrown as a cache error.
//
// A prompt may hold a script, the last one counts; the answer begins right after it (or after the tail of a chat
// template's generation prompt):
//   <<say TEXT>>   answers TEXT, then the end id      <<loop TEXT>>  answers TEXT again and again
//   <<nan>>        NaN logits instead of a token      <<fail>>       marks its sequence failed
//   <<throw>>      throws out of forward
// Inside TEXT, \n is a line end, \\ a backslash and \xNN the byte NN. nan, fail and throw may follow some text:
// <<say abc\!nan>> answers "abc" first. Without a script the next token comes from the hash, logits in [-4, 4).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"

namespace cadre::testing {

// What a test may look at while the engine that owns the model runs on the same thread.
struct ScriptedModelLog {
  struct Part {
    int64_t start = 0, num_rows = 0, num_logit_rows = 0;
    uint64_t prefix_hash = 0;  // of all tokens up to the last row
  };
  bool records_steps = false;
  std::vector<std::vector<Part>> steps;
  int64_t num_steps = 0, num_rows = 0;
};

struct ScriptedModelOptions {
  int64_t vocab_size = 258;
  int32_t end_id = 257;
  int64_t max_position = 4096;
  int64_t max_batched_tokens = 2048;
  int64_t num_layers = 1;                           // layers whose caches are all written and read back
  // Answers without a script end where the hash says so, on average after this many tokens; 0: never.
  int64_t mean_answer_tokens = 0;
  float scripted_logit = 30;                        // of the scripted token; the others are in [-4, 4)
  std::string answer_marker = "\nassistant: ";      // skipped between a script and its answer
  std::function<void(const StepInput&)> before_forward;  // may block: a test holds a step open with it
};

class ScriptedModel final : public Model {
 public:
  explicit ScriptedModel(ScriptedModelOptions options = {}, std::shared_ptr<ScriptedModelLog> log = nullptr);

  int64_t vocab_size() const override { return options_.vocab_size; }
  int64_t max_position() const override { return options_.max_position; }
  int64_t max_batched_tokens() const override { return options_.max_batched_tokens; }
  KvLayout kv_layout() const override;
  void forward(const StepInput& input, KvStore& kv, const StepOutput& output) override;

  // The logits after a prefix, without engine and cache: the oracle of tests. Throws and fails as forward would:
  // returns false for a sequence that fails.
  bool logits_after(std::span<const int32_t> prefix, std::span<float> logits) const;

 private:
  struct Slot {
    int32_t token = 0;
    int32_t position_plus_1 = 0;  // 0: never written
    uint64_t hash = 0;            // of all tokens up to this one
  };
  static Slot& slot_at(KvStore& kv, int64_t layer, const SequenceRows& rows, int64_t position);
  void write_row(const SequenceRows& rows, int64_t position, KvStore& kv) const;
  void check_cache(const SequenceRows& rows, int64_t position, KvStore& kv);

  ScriptedModelOptions options_;
  std::shared_ptr<ScriptedModelLog> log_;
  std::vector<int32_t> prefix_;  // read back from the cache
};

}  // namespace cadre::testing
