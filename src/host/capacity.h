// What this machine can serve of a model: whether the weights fit, how many tokens the KV cache holds, and how fast
// decoding can be at best. By the engine's own byte functions, for one rank that has the machine to itself.
#pragma once

#include <optional>
#include <vector>

#include "config/model_config.h"
#include "host/finding.h"
#include "tensor/dtype.h"

namespace cadre {

struct CapacityRequest {
  int64_t usable_bytes = 0;                          // memory
  double read_bytes_per_s = 0, fma_flops_per_s = 0;  // 0: not measured
  int64_t cache_bytes = 0;                           // of the processors' last level; 0: not known
  DType kv_dtype = DType::kF32;
  int64_t max_num_batched_tokens = 512;
  int64_t num_threads = 1;
  int64_t max_num_seqs = 64;  // as `cadre serve` is started
  int64_t max_model_len = 0;  // 0: the model's context
};
std::vector<Finding> check_capacity(const ModelConfig& config, const CapacityRequest& request);

// Bytes that a decode step of so many sequences, each with so much in the cache, reads at least: all that every token
// needs, the experts that independent uniform routing wants, the cache. And its multiply-adds, counted two each.
struct DecodeStep {
  double bytes = 0, flops = 0;
};
DecodeStep decode_step(const ModelConfig& config, int64_t kv_bytes_per_token, int64_t num_sequences, int64_t context);

}  // namespace cadre
