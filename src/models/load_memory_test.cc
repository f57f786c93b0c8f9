// Peak resident memory while a checkpoint is loaded, against its size on disk.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "models/decoder.h"
#include "tests/testing.h"

namespace cadre {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasShadowMemory = true;
#else
constexpr bool kHasShadowMemory = false;
#endif

int64_t status_bytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(key, 0) == 0) return std::stoll(line.substr(key.size())) * 1024;
  return -1;
}

// Writes a checkpoint of seeded random weights; returns its bytes.
int64_t write_checkpoint(const std::filesystem::path& dir, const ModelConfig& config) {
  const auto source = make_dummy_weights(config, 3);
  json::object header;
  uint64_t at = 0;
  const auto names = source->names();
  for (const std::string& name : names) {
    const TensorInfo info = source->info(name);
    const uint64_t bytes = static_cast<uint64_t>(num_elements(info.shape)) * dtype_bytes(info.dtype);
    header[name] = {{"dtype", dtype_name(info.dtype)}, {"shape", json::value_from(info.shape)}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  const std::string text = json::serialize(header);
  const uint64_t length = text.size();
  std::ofstream out(dir / "model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << text;
  for (const std::string& name : names) {
    const StoredTensor t = source->tensor(name);
    out.write(reinterpret_cast<const char*>(t.bytes.data()), static_cast<std::streamsize>(t.bytes.size()));
    source->release(name);
  }
  return static_cast<int64_t>(at);
}

void expect_modest_peak(const char* config_text) {
  if (kHasShadowMemory) GTEST_SKIP() << "a sanitizer's own memory would be measured";
  const testing::TempDir dir;
  const ModelConfig config = parse_model_config(parse_json(config_text, "config").get_object());
  const int64_t bytes = write_checkpoint(dir.path(), config);
  {
    std::ofstream reset("/proc/self/clear_refs");
    reset << "5";  // the peak starts from now
    if (!reset.flush()) GTEST_SKIP() << "cannot reset the peak of resident memory here";
  }
  const int64_t before = status_bytes("VmRSS:");
  const auto source = open_checkpoint(dir.path());
  check_tensors(*source, config);
  const Decoder model(config, *source, {.max_batched_tokens = 16});
  const int64_t peak = status_bytes("VmHWM:") - before;
  std::printf("checkpoint %.1f MB, peak %.1f MB (%.3f x)\n", static_cast<double>(bytes) / 1e6, static_cast<double>(peak) / 1e6,
              static_cast<double>(peak) / static_cast<double>(bytes));
  EXPECT_LE(static_cast<double>(peak), 1.15 * static_cast<double>(bytes));
  EXPECT_GE(peak, bytes / 2) << "the weights were not read: the measurement means nothing";
}

TEST(LoadMemory, Bfloat16MoePeaksBelow115Percent) {
  expect_modest_peak(R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 16000, "hidden_size": 512,
    "intermediate_size": 512, "moe_intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 64, "num_experts": 48, "num_experts_per_tok": 4, "norm_topk_prob": true, "hidden_act": "silu",
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})");
}

TEST(LoadMemory, Fp8LatentAttentionMoePeaksBelow115Percent) {
  expect_modest_peak(R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 8192, "hidden_size": 1024,
    "intermediate_size": 2048, "moe_intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
    "n_shared_experts": 1, "n_routed_experts": 32, "routed_scaling_factor": 2.5, "kv_lora_rank": 128, "q_lora_rank": 256,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4,
    "first_k_dense_replace": 1, "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu",
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false, "moe_layer_freq": 1,
    "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
    "weight_block_size": [128, 128]}})");
}

}  // namespace
}  // namespace cadre
