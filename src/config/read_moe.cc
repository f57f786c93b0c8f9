#include "base/error.h"
#include "config/read_parts.h"

namespace cadre {
namespace {

// DeepSeek-V2 routes by softmax, V3 (and GLM-4.5, which took it over) by sigmoid with a correction bias.
void read_grouped_router(const JsonObject& config, const FamilyTraits& traits, RouterConfig& router) {
  const bool v2 = traits.family == Family::kDeepseekV2, v3 = traits.family == Family::kDeepseekV3;
  router.scaling_factor = config.maybe_number("routed_scaling_factor").value_or(v3 ? 2.5 : 1.0);
  if (!(router.scaling_factor > 0 && router.scaling_factor <= 1e6))
    throw invalid_input(
        "config.json: expected 'routed_scaling_factor' above 0 and at most 1000000, found {}; correct it",
        router.scaling_factor);
  router.num_groups = config.maybe_integer("n_group", 1, kMaxExperts).value_or(v3 ? 8 : 1);
  router.topk_groups = config.maybe_integer("topk_group", 1, kMaxExperts).value_or(v3 ? 4 : 1);
  if (v2) {
    expect_string(config, "scoring_func", {"softmax"}, "DeepSeek-V2 routes by softmax");
    expect_string(config, "topk_method", {"greedy", "group_limited_greedy"},
                  "other routing methods are not served for DeepSeek-V2");
    expect_boolean(config, "norm_topk_prob", false, "implementations disagree on its meaning for DeepSeek-V2");
    router.renormalize = false;
    if (config.maybe_string("topk_method").value_or("greedy") == "greedy")
      router.num_groups = router.topk_groups = 1;
    else
      router.group_score = GroupScore::kMax;
  } else {
    expect_string(config, "scoring_func", {"sigmoid"}, "this family routes by sigmoid");
    expect_string(config, "topk_method", {"noaux_tc"}, "other routing methods are not served for this family");
    router.score = RouterScore::kSigmoid;
    router.has_correction_bias = true;
    router.group_score = GroupScore::kSumOfTopTwo;
  }
}

void check_groups(const RouterConfig& router) {
  if (router.num_experts % router.num_groups != 0)
    throw invalid_input(
        "config.json: expected 'n_group' to divide the number of experts, found {} groups of {} experts; correct them",
        router.num_groups, router.num_experts);
  if (router.topk_groups > router.num_groups)
    throw invalid_input("config.json: expected 'topk_group' at most 'n_group', found {} of {}; correct them",
                        router.topk_groups, router.num_groups);
  const int64_t group_size = router.num_experts / router.num_groups;
  if (router.top_k > router.topk_groups * group_size)
    throw invalid_input(
        "config.json: expected the {} chosen groups of {} experts to hold the {} experts of a token, found too few; "
        "correct 'num_experts_per_tok', 'topk_group' or 'n_group'",
        router.topk_groups, group_size, router.top_k);
  if (router.num_groups > 1 && router.group_score == GroupScore::kSumOfTopTwo && group_size < 2)
    throw invalid_input(
        "config.json: expected groups of at least 2 experts, whose best two score the group, found {} groups of 1; "
        "correct 'n_group'",
        router.num_groups);
}

void read_router(const JsonObject& config, const FamilyTraits& traits, RouterConfig& router) {
  router.renormalize = traits.norm_topk_prob;
  if (traits.family != Family::kMixtral && traits.family != Family::kGptOss)
    router.renormalize = config.maybe_boolean("norm_topk_prob").value_or(traits.norm_topk_prob);
  switch (traits.family) {
    case Family::kDeepseekV2:
    case Family::kDeepseekV3:
    case Family::kGlm4Moe: read_grouped_router(config, traits, router); break;
    case Family::kGptOss:
      router.score = RouterScore::kSoftmaxOfTopK;
      router.has_bias = true;
      break;
    default: break;
  }
  if (router.top_k > router.num_experts)
    throw invalid_input(
        "config.json: expected 'num_experts_per_tok' at most the number of experts, found {} of {}; correct it",
        router.top_k, router.num_experts);
  check_groups(router);
  if (router.num_groups == 1) router.group_score = GroupScore::kNone;
}

void read_shared_expert(const JsonObject& config, const FamilyTraits& traits, MoeConfig& moe) {
  switch (traits.family) {
    case Family::kDeepseekV2:
    case Family::kDeepseekV3:
    case Family::kGlm4Moe: {
      const int64_t absent =
          config.raw().contains("n_shared_experts") ? 0 : (traits.family == Family::kDeepseekV2 ? 2 : 1);
      const int64_t num_shared = config.maybe_integer("n_shared_experts", 0, kMaxExperts).value_or(absent);
      moe.shared_intermediate = num_shared * moe.expert_intermediate;
      break;
    }
    case Family::kQwen2Moe:
      moe.shared_intermediate = config.maybe_integer("shared_expert_intermediate_size", 1, kMaxWidth).value_or(5632);
      moe.shared_has_gate = true;
      break;
    case Family::kQwen3Moe:
      if (config.maybe_integer("shared_expert_intermediate_size", 0, kMaxWidth).value_or(0) != 0)
        throw unsupported(
            "config.json: expected no shared expert in qwen3_moe, found 'shared_expert_intermediate_size' {}; choose "
            "another checkpoint",
            *config.maybe_integer("shared_expert_intermediate_size", 0, kMaxWidth));
      break;
    default: break;
  }
  if (moe.shared_intermediate > kMaxWidth)
    throw invalid_input(
        "config.json: expected shared experts at most {} wide together, found {}; correct 'n_shared_experts'",
        kMaxWidth, moe.shared_intermediate);
}

int64_t required_alias(const JsonObject& config, std::initializer_list<std::string_view> keys, int64_t min,
                       int64_t max) {
  if (const auto value = aliased_integer(config, keys, min, max)) return *value;
  return config.integer(*keys.begin(), min, max);  // says what is missing
}

}  // namespace

void read_moe(const JsonObject& config, const FamilyTraits& traits, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  RouterConfig& router = moe.router;
  switch (traits.family) {
    case Family::kQwen3:
    case Family::kLlama: return;
    case Family::kDeepseekV2:
    case Family::kDeepseekV3:
    case Family::kGlm4Moe:
      router.num_experts =
          required_alias(config, {"n_routed_experts", "num_experts", "num_local_experts"}, 1, kMaxExperts);
      break;
    case Family::kMixtral:
    case Family::kGptOss:
      router.num_experts = required_alias(config, {"num_local_experts", "num_experts"}, 1, kMaxExperts);
      break;
    case Family::kQwen3Moe:
    case Family::kQwen2Moe:
    case Family::kOlmoe:
      router.num_experts = required_alias(config, {"num_experts", "num_local_experts"}, 1, kMaxExperts);
      break;
  }
  router.top_k = traits.family == Family::kGptOss
                     ? required_alias(config, {"num_experts_per_tok", "experts_per_token"}, 1, kMaxExperts)
                     : config.integer("num_experts_per_tok", 1, kMaxExperts);
  const bool one_width =
      traits.family == Family::kMixtral || traits.family == Family::kOlmoe || traits.family == Family::kGptOss;
  moe.expert_intermediate = config.integer(one_width ? "intermediate_size" : "moe_intermediate_size", 1, kMaxWidth);
  read_router(config, traits, router);
  read_shared_expert(config, traits, moe);
  if (traits.family == Family::kGptOss) {
    moe.expert_bias = true;
    model.activation = Activation::kGptOssSwiglu;
    model.swiglu_limit = config.maybe_number("swiglu_limit").value_or(7.0);
    if (!(model.swiglu_limit > 0))
      throw invalid_input("config.json: expected 'swiglu_limit' above 0, found {}; correct it", model.swiglu_limit);
    if (const auto alpha = config.maybe_number("swiglu_alpha"); alpha && *alpha != 1.702)
      throw unsupported("config.json: expected 'swiglu_alpha' 1.702, found {}; choose another checkpoint", *alpha);
  }
}

}  // namespace cadre
