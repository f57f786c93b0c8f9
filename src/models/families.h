// How each family names and shapes the tensors of a layer. One file per family; each reads as the architecture.
#pragma once

#include <string>

#include "models/decoder.h"

namespace cadre {

LayerWeights load_deepseek_layer(WeightLoader& loader, int64_t layer);   // V2, V2-Lite, V3, R1, V3.1, Kimi-K2
LayerWeights load_qwen_moe_layer(WeightLoader& loader, int64_t layer);   // Qwen2-MoE, Qwen3-MoE
LayerWeights load_mixtral_layer(WeightLoader& loader, int64_t layer);
LayerWeights load_olmoe_layer(WeightLoader& loader, int64_t layer);
LayerWeights load_glm4_moe_layer(WeightLoader& loader, int64_t layer);
LayerWeights load_gpt_oss_layer(WeightLoader& loader, int64_t layer);
LayerWeights load_dense_layer(WeightLoader& loader, int64_t layer);      // Qwen3, Llama

// What the families share.
std::string layer_prefix(int64_t layer);                                   // "model.layers.7."
GqaWeights load_gqa(WeightLoader& loader, const std::string& prefix);      // prefix: "...self_attn."
GatedMlp load_mlp(WeightLoader& loader, const std::string& prefix, int64_t intermediate, const Part& part);  // gate_proj, up_proj, down_proj
// This rank's routed experts, stored one by one: prefix + id + "." + names of gate, up, down.
Experts load_experts(WeightLoader& loader, const std::string& prefix, const char* gate, const char* up, const char* down);
LayerWeights with_norms(WeightLoader& loader, int64_t layer, LayerWeights weights);  // adds the two norms

}  // namespace cadre
