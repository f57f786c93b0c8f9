// Multi-head latent attention (DeepSeek-V2, section 2.1). The cache holds per token only the normalised latent and the
// rotated shared key: kv_lora_rank + qk_rope_head_dim values. Rows of decoding run in the absorbed form: queries are
// taken into the latent space by W_UK, outputs out of it by W_UV. Prompt rows run in the expanded form: keys and values of
// each head are made from the latents once for all rows of the step (fewer multiplications a pair of positions).
#pragma once

#include <vector>

#include "attention/attention_step.h"
#include "attention/rope.h"
#include "config/model_config.h"
#include "kernels/linear.h"

namespace cadre {

struct MlaWeights {
  Linear q;                        // q_lora_rank == 0: hidden -> heads * head_dim
  Linear q_a, q_b;                 // else hidden -> q_lora_rank -> heads * head_dim
  std::vector<float> q_a_norm;
  Linear kv_a;                     // hidden -> kv_lora_rank + rope
  std::vector<float> kv_a_norm;
  std::vector<PackedMatrix> w_uk_t;  // per head [kv_lora_rank, nope]: query to latent
  std::vector<PackedMatrix> w_uv;    // per head [v_head_dim, kv_lora_rank]: latent to value
  std::vector<PackedMatrix> w_uk;    // per head [nope, kv_lora_rank]: latent to key
  // The latents, which are the input of kv_b, are rounded to FP8: once, as they enter the cache, so that the absorbed and the
  // expanded form see the same.
  bool rounds_latents = false;
  Linear o;
  int64_t bytes() const;  // of memory
};

struct MlaWorkspace {
  // hidden: of inputs to round to FP8; 0: none are.
  MlaWorkspace(const AttentionConfig& config, int64_t max_rows, int num_threads, int64_t max_position, int64_t hidden);
  std::vector<float> rounded;                      // [max_rows, hidden]
  std::vector<float> q_a, q, kv_a, attention_out;  // [max_rows, ..]
  std::vector<float> q_latent, out_latent;         // [kChunkRows, heads, kv_lora_rank]
  std::vector<float> per_thread;                   // transposed query and output of one task
  int64_t per_thread_floats;
  std::vector<float> latents;          // [context, kv_lora_rank] of the sequence being expanded
  std::vector<float> expanded;         // per thread: keys and values of one head, in tiles
  int64_t expanded_floats;
};

// Whether the row at `position` of a prompt of `num_prompt_tokens` runs in the expanded form.
bool mla_row_is_expanded(int64_t position, int64_t num_prompt_tokens);

int64_t mla_block_bytes(const AttentionConfig& config, DType kv_dtype);

class MlaAttention {
 public:
  MlaAttention(const AttentionConfig& config, const Rope& rope, DType kv_dtype, MlaWeights weights);
  // x, out: [rows, hidden]. Appends the rows' latents to the cache, then attends.
  void forward(const AttentionStep& step, const float* x, float* out, MlaWorkspace& w) const;
  const MlaWeights& weights() const { return weights_; }

 private:
  void project(const AttentionStep& step, const float* x, MlaWorkspace& w) const;
  void store_row(const AttentionStep& step, int64_t row, MlaWorkspace& w) const;
  // The first num_rows rows of a sequence's group.
  void attend_expanded(const AttentionStep& step, const RowGroup& group, int64_t num_rows, MlaWorkspace& w) const;
  void attend_expanded_head(const AttentionStep& step, const RowGroup& group, int64_t num_rows, int64_t head, float* scratch, MlaWorkspace& w) const;
  void attend_absorbed(const AttentionStep& step, int64_t first_row, int64_t num_rows, MlaWorkspace& w) const;
  void attend_heads(const AttentionStep& step, int64_t row, int64_t row_in_chunk, int64_t head_group, float* scratch, MlaWorkspace& w) const;

  const AttentionConfig& config_;
  const Rope& rope_;
  DType kv_dtype_;
  MlaWeights weights_;
};

}  // namespace cadre
