// What a model is, read from a published config.json (older and newer keys) into one normal form. Family differences end
// here as far as data can express them; a key that changes the result and is not served is refused, never ignored.
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

enum class Family { kDeepseekV2, kDeepseekV3, kQwen3Moe, kQwen2Moe, kMixtral, kOlmoe, kGlm4Moe, kGptOss, kQwen3, kLlama };

enum class RopeScaling { kNone, kLinear, kYarn, kLlama3 };

// Rotary position embedding. Frequencies follow Su et al. 2021; YaRN: Peng et al. 2023; llama3: the Llama 3.1 release.
struct RopeConfig {
  double theta = 10000.0;
  int64_t rotary_dim = 0;    // leading dims of a head that rotate (the rope part of an MLA head)
  bool interleaved = false;  // pairs (0,1),(2,3).. (DeepSeek) instead of (0,d/2),(1,d/2+1)..
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_max_position = 0;
  double beta_fast = 32.0, beta_slow = 1.0;             // yarn
  bool yarn_truncate = true;                            // round the correction range to whole dimensions
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double cos_sin_scale = 1.0;                           // yarn attention factor that multiplies cos and sin
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
  bool has_sinks = false;    // one learned logit per head joins the softmax (gpt-oss)
  double clip_qkv = 0.0;     // OLMoE: clamp q, k, v to [-clip, clip]; 0 = off
  double softmax_scale = 1.0;  // 1/sqrt(head_dim), times the YaRN mscale_all_dim term squared where the family applies it
  // MLA only (DeepSeek-V2, section 2.1)
  int64_t q_lora_rank = 0;   // 0: q_proj is one matrix
  int64_t kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  RopeConfig rope;
};

enum class RouterScore { kSoftmax, kSigmoid, kSoftmaxOfTopK };
enum class GroupScore { kNone, kMax, kSumOfTopTwo };

struct RouterConfig {
  RouterScore score = RouterScore::kSoftmax;
  int64_t num_experts = 0;  // E
  int64_t top_k = 0;        // K
  bool renormalize = false;  // weights divided by their sum
  double scaling_factor = 1.0;
  GroupScore group_score = GroupScore::kNone;
  int64_t num_groups = 1, topk_groups = 1;
  bool has_correction_bias = false;  // added for choosing, not for weighing (DeepSeek-V3)
  bool has_bias = false;             // part of the logits (gpt-oss)
};

enum class Activation { kSilu, kGptOssSwiglu };

struct MoeConfig {
  RouterConfig router;
  int64_t expert_intermediate = 0;  // F
  int64_t shared_intermediate = 0;  // width of all shared experts together; 0 = none
  bool shared_has_gate = false;     // sigmoid(x @ shared_expert_gate) scales the shared output (Qwen2-MoE)
  bool expert_bias = false;         // gpt-oss
};

struct LayerConfig {
  bool is_sparse = false;
  int64_t sliding_window = 0;  // keys visible to a query, itself included; 0 = all
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
  double swiglu_limit = 0.0;   // gpt-oss
  AttentionConfig attention;
  MoeConfig moe;               // num_experts 0: dense model
  std::vector<LayerConfig> layers;
  WeightQuant quant = WeightQuant::kNone;
  std::vector<std::string> unquantized_modules;  // patterns of modules_to_not_convert
  int64_t num_nextn_layers = 0;  // multi-token prediction layers in the checkpoint, not executed
  std::vector<int32_t> eos_ids;  // config.json and generation_config.json together
  std::optional<int32_t> bos_id;
};

// Throws Error: an architecture that is not served (with the list of served ones), a missing key, an impossible value,
// a key that changes the result and is not served.
ModelConfig parse_model_config(const json::object& config);

// Reads config.json (path: the file or its folder) and generation_config.json beside it (end-of-sequence ids).
ModelConfig load_model_config(const std::filesystem::path& path);

std::string_view family_name(Family family);  // "deepseek_v3", ...

}  // namespace cadre
