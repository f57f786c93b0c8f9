// What a model is, read from a published config.json (older and newer keys) into one normal form. Family differences
// end here as far as data can express them. A missing key means what the family's published configuration class says,
// except the sizes, which must be there. A key that changes the result and is not served is refused, never ignored:
// keys that nobody here reads pass only when their value is off (null, false, 0, empty), when they are known to be
// harmless (training, generation defaults, bookkeeping), or when nothing in their name speaks of a model's arithmetic.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tensor/dtype.h"

namespace cadre {

enum class Family {
  kDeepseekV2,
  kDeepseekV3,
  kQwen3Moe,
  kQwen2Moe,
  kMixtral,
  kOlmoe,
  kGlm4Moe,
  kGptOss,
  kQwen3,
  kLlama
};

enum class RopeScaling { kNone, kLinear, kYarn, kLlama3 };

// Rotary position embedding. Frequencies follow Su et al. 2021; YaRN: Peng et al. 2023; llama3: the Llama 3.1 release.
struct RopeConfig {
  double theta = 10000.0;
  int64_t rotary_dim = 0;    // leading dims of a head that rotate (the rope part of an MLA head)
  bool interleaved = false;  // pairs (0,1),(2,3).. (DeepSeek) instead of (0,d/2),(1,d/2+1)..
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_max_position = 0;
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  bool yarn_truncate = true;                             // round the correction range to whole dimensions
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double cos_sin_scale = 1.0;                            // yarn attention factor that multiplies cos and sin
  bool operator==(const RopeConfig&) const = default;
};

enum class AttentionKind { kGqa, kMla };
enum class QkNorm { kNone, kPerHead, kAllHeads };  // RMS norm over head_dim (Qwen3), over all heads' dims (OLMoE)

struct AttentionConfig {
  AttentionKind kind = AttentionKind::kGqa;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // MLA: equal to num_heads, the cache holds one latent
  int64_t head_dim = 0;      // GQA: of q, k and v. MLA: qk_nope_head_dim + qk_rope_head_dim
  bool qkv_bias = false, o_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool has_sinks = false;  // one learned logit per head joins the softmax (gpt-oss)
  double clip_qkv = 0.0;   // OLMoE: clamp q, k, v to [-clip, clip]; 0 = off
  // 1/sqrt(head_dim), times the YaRN mscale_all_dim term squared where the family applies it
  double softmax_scale = 1.0;
  // MLA only (DeepSeek-V2, section 2.1)
  int64_t q_lora_rank = 0;  // 0: q_proj is one matrix
  int64_t kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  double latent_norm_eps = 1e-6;  // of q_a_layernorm and kv_a_layernorm: a constant of the family, not rms_norm_eps
  RopeConfig rope;
  bool operator==(const AttentionConfig&) const = default;
};

enum class RouterScore { kSoftmax, kSigmoid, kSoftmaxOfTopK };
enum class GroupScore { kNone, kMax, kSumOfTopTwo };

struct RouterConfig {
  RouterScore score = RouterScore::kSoftmax;
  int64_t num_experts = 0;   // E
  int64_t top_k = 0;         // K
  bool renormalize = false;  // weights divided by their sum
  double scaling_factor = 1.0;
  GroupScore group_score = GroupScore::kNone;
  int64_t num_groups = 1, topk_groups = 1;
  bool has_correction_bias = false;  // added for choosing, not for weighing (DeepSeek-V3)
  bool has_bias = false;             // part of the logits (gpt-oss)
  bool operator==(const RouterConfig&) const = default;
};

enum class Activation { kSilu, kGptOssSwiglu };

struct MoeConfig {
  RouterConfig router;
  int64_t expert_intermediate = 0;  // F
  int64_t shared_intermediate = 0;  // width of all shared experts together; 0 = none
  bool shared_has_gate = false;     // sigmoid(x @ shared_expert_gate) scales the shared output (Qwen2-MoE)
  bool expert_bias = false;         // gpt-oss
  bool operator==(const MoeConfig&) const = default;
};

struct LayerConfig {
  bool is_sparse = false;
  int64_t sliding_window = 0;  // keys visible to a query, itself included; 0 = all
  bool operator==(const LayerConfig&) const = default;
};

enum class WeightQuant { kNone, kFp8Block, kMxfp4 };

struct ModelConfig {
  Family family = Family::kLlama;
  std::string model_type, architecture;
  int64_t vocab_size = 0, hidden_size = 0, num_layers = 0;
  int64_t dense_intermediate = 0;
  int64_t max_position = 0;  // context length
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  DType dtype = DType::kBF16;  // of unquantised weights
  Activation activation = Activation::kSilu;
  double swiglu_limit = 0.0;  // gpt-oss
  AttentionConfig attention;
  MoeConfig moe;  // num_experts 0: dense model
  std::vector<LayerConfig> layers;
  WeightQuant quant = WeightQuant::kNone;
  bool has_power_of_two_scales = false;          // FP8 scales, of activations too (scale_fmt ue8m0)
  std::vector<std::string> unquantized_modules;  // patterns of modules_to_not_convert
  int64_t num_nextn_layers = 0;                  // multi-token prediction layers in the checkpoint, not executed
  std::vector<int32_t> eos_ids;                  // config.json and generation_config.json together
  std::optional<int32_t> bos_id;
  bool operator==(const ModelConfig&) const = default;
};

// Throws Error: an architecture that is not served (with the list of served ones), a missing key, an impossible value,
// a key that changes the result and is not served.
ModelConfig parse_model_config(const json::object& config);

// Reads config.json (path: the file or its folder) and generation_config.json beside it (end-of-sequence ids).
ModelConfig load_model_config(const std::filesystem::path& path);

std::string_view family_name(Family family);  // "deepseek_v3", ...

}  // namespace cadre
