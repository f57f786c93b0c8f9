#include "config/family.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/error.h"

namespace cadre {
namespace {

// Defaults: the configuration classes of Hugging Face transformers, 4.57 and 5.
constexpr std::array kFamilies = {
    FamilyTraits{
        Family::kDeepseekV2, "deepseek_v2", "DeepseekV2ForCausalLM", 1e-6, 2048, 1e4, 0, 0, false,
        "attention_bias mlp_bias q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim qk_head_dim "
        "n_routed_experts num_experts n_shared_experts moe_intermediate_size num_experts_per_tok n_group topk_group "
        "topk_method scoring_func norm_topk_prob routed_scaling_factor first_k_dense_replace moe_layer_freq"},
    FamilyTraits{Family::kDeepseekV3, "deepseek_v3", "DeepseekV3ForCausalLM", 1e-6, 4096, 1e4, 0, 0, true,
                 "attention_bias mlp_bias q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim "
                 "qk_head_dim n_routed_experts num_experts num_local_experts n_shared_experts moe_intermediate_size "
                 "num_experts_per_tok n_group topk_group topk_method scoring_func norm_topk_prob routed_scaling_factor "
                 "first_k_dense_replace moe_layer_freq num_nextn_predict_layers num_mtp_layers rope_interleave"},
    FamilyTraits{Family::kQwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM", 1e-6, 32768, 1e4, 4, 0, false,
                 "attention_bias qkv_bias use_qk_norm use_sliding_window sliding_window max_window_layers num_experts "
                 "num_local_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size "
                 "norm_topk_prob decoder_sparse_step mlp_only_layers"},
    FamilyTraits{Family::kQwen2Moe, "qwen2_moe", "Qwen2MoeForCausalLM", 1e-6, 32768, 1e4, 16, 0, false,
                 "qkv_bias use_sliding_window sliding_window max_window_layers num_experts num_local_experts "
                 "num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size norm_topk_prob "
                 "decoder_sparse_step mlp_only_layers"},
    FamilyTraits{Family::kMixtral, "mixtral", "MixtralForCausalLM", 1e-5, 131072, 1e6, 8, 0, true,
                 "sliding_window num_local_experts num_experts num_experts_per_tok"},
    FamilyTraits{Family::kOlmoe, "olmoe", "OlmoeForCausalLM", 1e-5, 4096, 1e4, 0, 0, false,
                 "attention_bias clip_qkv num_experts num_local_experts num_experts_per_tok norm_topk_prob"},
    FamilyTraits{Family::kGlm4Moe, "glm4_moe", "Glm4MoeForCausalLM", 1e-5, 131072, 1e4, 8, 0, true,
                 "attention_bias use_qk_norm n_routed_experts num_experts num_local_experts n_shared_experts "
                 "moe_intermediate_size num_experts_per_tok n_group topk_group topk_method scoring_func norm_topk_prob "
                 "routed_scaling_factor first_k_dense_replace num_nextn_predict_layers num_mtp_layers"},
    FamilyTraits{Family::kGptOss, "gpt_oss", "GptOssForCausalLM", 1e-5, 131072, 1.5e5, 8, 64, false,
                 "attention_bias sliding_window num_local_experts num_experts num_experts_per_tok experts_per_token "
                 "swiglu_limit swiglu_alpha"},
    FamilyTraits{Family::kQwen3, "qwen3", "Qwen3ForCausalLM", 1e-6, 32768, 1e4, 32, 128, false,
                 "attention_bias use_sliding_window sliding_window max_window_layers"},
    FamilyTraits{Family::kLlama, "llama", "LlamaForCausalLM", 1e-6, 2048, 1e4, 0, 0, false, "attention_bias mlp_bias"},
};

// Kimi K2 is DeepSeek-V3's architecture under a model_type of its own.
constexpr std::string_view kKimiK2 = "kimi_k2";

Error unknown_architecture(std::string_view found) {
  std::string known;
  for (const FamilyTraits& t : kFamilies) {
    known += known.empty() ? "" : ", ";
    known += t.architecture;
  }
  return unsupported(
      "config.json: expected one of the served architectures ({}), found {}; choose a checkpoint of one of these",
      known, found);
}

const FamilyTraits* by_model_type(std::string_view model_type) {
  if (model_type == kKimiK2) model_type = "deepseek_v3";
  const auto it =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const auto& t) { return t.model_type == model_type; });
  return it == kFamilies.end() ? nullptr : &*it;
}

const FamilyTraits* by_architecture(std::string_view architecture) {
  const auto it =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const auto& t) { return t.architecture == architecture; });
  return it == kFamilies.end() ? nullptr : &*it;
}

}  // namespace

std::span<const FamilyTraits> all_families() { return kFamilies; }

const FamilyTraits& family_traits(Family family) {
  const auto it = std::find_if(kFamilies.begin(), kFamilies.end(), [&](const auto& t) { return t.family == family; });
  CADRE_CHECK(it != kFamilies.end());
  return *it;
}

std::string_view family_name(Family family) { return family_traits(family).model_type; }

const FamilyTraits& identify_family(const JsonObject& config) {
  const auto model_type = config.maybe_string("model_type");
  const json::array* architectures = config.maybe_array("architectures");
  std::optional<std::string> architecture;
  if (architectures && !architectures->empty()) {
    const json::value& first = architectures->front();
    if (architectures->size() != 1 || !first.is_string())
      throw invalid_input("config.json: expected 'architectures' to hold one name, found {}; name the one to serve",
                          describe(*config.find("architectures")));
    architecture = std::string(std::string_view(first.get_string()));
  }
  if (!model_type && !architecture)
    throw invalid_input(
        "config.json: expected 'model_type' or 'architectures' to say what the model is, found neither; use the "
        "config.json that the checkpoint was published with");

  const FamilyTraits* from_type = model_type ? by_model_type(*model_type) : nullptr;
  const FamilyTraits* from_architecture = architecture ? by_architecture(*architecture) : nullptr;
  if (architecture && !from_architecture)
    throw unknown_architecture(
        model_type ? fmt::format("{} (model_type {})", cadre::quoted(*architecture), cadre::quoted(*model_type))
                   : cadre::quoted(*architecture));
  if (model_type && !from_type) throw unknown_architecture(fmt::format("model_type {}", cadre::quoted(*model_type)));
  if (from_type && from_architecture && from_type != from_architecture)
    throw invalid_input(
        "config.json: expected 'model_type' and 'architectures' to name one model, found {} and {}; correct the one "
        "that is wrong",
        cadre::quoted(*model_type), cadre::quoted(*architecture));
  return from_type ? *from_type : *from_architecture;
}

}  // namespace cadre
