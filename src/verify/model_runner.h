// Runs token sequences through a model step by step, without scheduler or sampler: every logit and every routing choice
// can be seen. On any layout: ranks are threads of this process. For proofs; serving goes through Engine.
#pragma once

#include <cstdint>
#include <functional>
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

// Rows of a sequence that lives on a data-parallel rank.
struct RankedRows {
  int dp_rank = 0;
  SequenceRows rows;
};

struct ModelRunnerOptions {
  ModelConfig config;
  std::function<std::unique_ptr<WeightSource>()> open_weights;  // called once a rank
  DecoderOptions decoder;                                       // groups is set by the runner
  Layout layout;
  int64_t num_blocks = 0;  // of 16 tokens, on each data-parallel rank
  uint64_t seed = 0;       // of the order in which blocks are given out
  int64_t timeout_us = 60'000'000;
};

class ModelRunner {
 public:
  // Loads the model on every rank. Throws what the first rank that failed threw.
  explicit ModelRunner(ModelRunnerOptions options);
  ~ModelRunner();
  ModelRunner(const ModelRunner&) = delete;

  const ModelConfig& config() const { return options_.config; }
  const Layout& layout() const { return options_.layout; }
  int64_t vocab_size() const { return options_.config.vocab_size; }
  int64_t max_batched_tokens() const { return options_.decoder.max_batched_tokens; }
  std::vector<BlockId> take_blocks(int dp_rank, int64_t num_tokens);
  void give_back(int dp_rank, const std::vector<BlockId>& blocks);

  // One step of all ranks; the logits of all rows asked for, [rows, vocab_size], in the order given. failed() says which
  // sequences met a NaN.
  std::vector<float> step(std::span<const RankedRows> sequences);
  const std::vector<uint8_t>& failed() const { return failed_; }

  // Logits at every position of one prompt on a data-parallel rank (others idle), given in chunks of this many tokens; 0: as
  // many as a step takes. Throws Error when the model meets a NaN.
  std::vector<float> prompt_logits(std::span<const int32_t> tokens, int64_t chunk, int dp_rank = 0);
  // The same for several prompts in one batch, prompt p on rank p modulo ranks: each step takes random numbers of rows of
  // them, in random order.
  std::vector<std::vector<float>> batch_logits(const std::vector<std::vector<int32_t>>& prompts, uint64_t seed);

  std::map<int64_t, SeenRoutes>& routes() { return routes_; }  // by layer
  // What a rank chose for its own rows in the last step, by layer.
  const std::map<int64_t, SeenRoutes>& last_routes(int world_rank) const;
  // From now on the experts of this layer are timed on the clock; what a rank's did in the last step.
  void watch_experts(int64_t layer, const Clock& clock);
  const ExpertWork& expert_work(int world_rank) const;
  // What a rank's groups have counted; null for one rank.
  TrafficCounters* counters(int world_rank);

 private:
  struct Rank;
  struct Threads;
  void load(int world_rank);
  void rank_loop(int world_rank);
  void run_all(const std::vector<StepInput>& inputs, const std::vector<StepOutput>& outputs);
  void stop();

  ModelRunnerOptions options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<Threads> threads_;        // null for one rank
  std::vector<std::vector<BlockId>> free_; // by data-parallel rank
  std::vector<uint8_t> failed_;
  std::map<int64_t, SeenRoutes> routes_;
};

}  // namespace cadre
