// Runs token sequences through a model step by step, without scheduler or sampler: every logit and every routing choice
// can be seen. For proofs; serving goes through Engine.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_store.h"
#include "models/decoder.h"

namespace cadre {

// What one sparse layer chose, for the rows of all steps since the last clear: [rows, top_k].
struct SeenRoutes {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

class ModelRunner {
 public:
  // A cache of num_blocks blocks of 16 tokens, given out in an order drawn from seed.
  ModelRunner(std::unique_ptr<Decoder> model, int64_t num_blocks, uint64_t seed);

  Decoder& model() { return *model_; }
  std::vector<BlockId> take_blocks(int64_t num_tokens);
  void give_back(const std::vector<BlockId>& blocks);

  // One step; the logits of all rows asked for, [rows, vocab_size]. failed() says which sequences met a NaN.
  std::vector<float> step(std::span<const SequenceRows> sequences);
  const std::vector<uint8_t>& failed() const { return failed_; }

  // Logits at every position of one prompt, given in chunks of this many tokens; 0: as many as a step takes.
  // Throws Error when the model meets a NaN.
  std::vector<float> prompt_logits(std::span<const int32_t> tokens, int64_t chunk);
  // The same for several prompts in one batch: each step takes random numbers of rows of them, in random order.
  std::vector<std::vector<float>> batch_logits(const std::vector<std::vector<int32_t>>& prompts, uint64_t seed);

  std::map<int64_t, SeenRoutes>& routes() { return routes_; }  // by layer

 private:
  std::unique_ptr<Decoder> model_;
  KvStore kv_;
  std::vector<BlockId> free_;
  std::vector<uint8_t> failed_;
  std::map<int64_t, SeenRoutes> routes_;
};

}  // namespace cadre
