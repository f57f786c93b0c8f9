// A model as the engine sees it: rows of sequences in, logits out, the KV cache in between. An implementation computes
// each row from that sequence alone: batch mates never change a result (in the reference compute mode to the bit,
// whatever the chunking).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kv/kv_store.h"

namespace cadre {

// The rows of one sequence in one step: `tokens` at positions start_position .. start_position + tokens.size() - 1.
// KV of all earlier positions is in the cache already. blocks[i] holds positions 16 i .. 16 i + 15 and covers all
// positions up to the last row.
struct SequenceRows {
  std::span<const int32_t> tokens;
  int64_t start_position = 0;
  std::span<const BlockId> blocks;
  // Logits are produced for the last num_logit_rows rows (0: none, as for all but the last chunk of a prompt).
  int64_t num_logit_rows = 1;
  // Length of the sequence's prompt: rows before it may take a form of attention that is faster for many rows. The
  // choice depends on this and the position alone, so chunking cannot change a result. 0: every row as in decoding.
  int64_t num_prompt_tokens = 0;
};

struct StepInput {
  std::span<const SequenceRows> sequences;  // at most max_batched_tokens rows together
  // Rows of every data-parallel rank in this step, as the ranks agreed; empty where there is but one. All ranks then take
  // the step together, those without rows too.
  std::span<const int64_t> dp_rows;
  // Model::order() of world rank 0 before the step: what it asks of all ranks in it.
  int64_t order = 0;
};

// logits: [sum of num_logit_rows, vocab_size] row-major float32, in the order of the sequences.
// sequence_failed[i] is set to 1 when sequence i met a NaN in a router score or a logit: its rows are void, the other
// sequences' are not.
struct StepOutput {
  std::span<float> logits;
  std::span<uint8_t> sequence_failed;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_position() const = 0;        // context length in tokens
  virtual int64_t max_batched_tokens() const = 0;  // rows of one step its workspaces were built for
  virtual KvLayout kv_layout() const = 0;
  // Of the expert placement: the same on all ranks before each step.
  virtual int64_t placement_generation() const { return 0; }
  // What this rank, if it is world rank 0, asks of all ranks in the next step; 0: nothing.
  virtual int64_t order() const { return 0; }
  // Runs one step. All tokens are in [0, vocab_size). Does not allocate after the first call of each size class.
  virtual void forward(const StepInput& input, KvStore& kv, const StepOutput& output) = 0;
};

}  // namespace cadre
