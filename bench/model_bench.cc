// Decode and prefill speed of a model against this machine's limits: bytes and FLOPs per token next to time.
//   model_bench (--model DIR | --dummy CONFIG.json) [--threads N] [--context N] [--activation-dtype float32|fp8] [--quantization none|bfloat16|int8|int4]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "config/bytes.h"
#include "kernels/cpu/machine.h"
#include "models/quantization.h"
#include "models/decoder.h"

namespace cadre {
namespace {

struct Active {
  double weight_bytes_dense = 0;   // read by every step whatever its rows
  double expert_bytes_all = 0;     // all routed experts
  double parameters_per_token = 0;
};

// Bytes of a weight in memory; quantised ones with their scales.
double bytes_of(const TensorSpec& t, std::optional<WeightFormat> quantization) {
  const double count = static_cast<double>(num_elements(t.shape));
  if (!quantization || t.shape.size() < 2 || t.kind == TensorKind::kRouter || t.kind == TensorKind::kEmbedding) return count * static_cast<double>(dtype_bytes(t.dtype));
  switch (*quantization) {
    case WeightFormat::kInt8: return count * 8.25 / 8;
    case WeightFormat::kInt4: return count * 4.5 / 8;
    case WeightFormat::kF32: return count * 4;
    default: return count * 2;
  }
}

Active active_weights(const ModelConfig& c, std::optional<WeightFormat> quantization) {
  Active a;
  const double share = c.moe.router.num_experts ? static_cast<double>(c.moe.router.top_k) / static_cast<double>(c.moe.router.num_experts) : 0;
  for (const TensorSpec& t : checkpoint_tensors(c)) {
    if (t.kind == TensorKind::kNextN) continue;
    const double bytes = bytes_of(t, quantization), parameters = static_cast<double>(t.parameters());
    if (t.kind == TensorKind::kRoutedExpert) a.expert_bytes_all += bytes, a.parameters_per_token += parameters * share;
    else if (t.kind != TensorKind::kEmbedding || c.tie_word_embeddings) a.weight_bytes_dense += bytes, a.parameters_per_token += parameters;
  }
  return a;
}

// Distinct experts that `rows` tokens are expected to use, as a share of all (independent uniform routing).
double expert_share(const ModelConfig& c, double rows) {
  if (c.moe.router.num_experts == 0) return 0;
  return 1 - std::pow(1 - static_cast<double>(c.moe.router.top_k) / static_cast<double>(c.moe.router.num_experts), rows);
}

class Runner {
 public:
  Runner(const ModelConfig& config, WeightSource& source, int threads, int64_t context, DType activations, std::optional<WeightFormat> quantization)
      : config_(config),
        model_(config, source, {.max_batched_tokens = 512, .num_threads = threads, .compute_mode = ComputeMode::kFast, .activation_dtype = activations, .quantization = quantization}), context_(context),
        blocks_per_sequence_((context + 16 + 512) / 16 + 1), kv_(model_.kv_layout(), blocks_per_sequence_ * 32),
        logits_(static_cast<size_t>(32 * config.vocab_size)), failed_(32) {}

  // Seconds of one step: `sequences` sequences of `rows` rows each from position `start`.
  double step_seconds(int64_t sequences, int64_t rows, int64_t start) {
    std::vector<int32_t> tokens(static_cast<size_t>(sequences * rows));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * 7919 + static_cast<size_t>(start) * 31 + 17) % static_cast<size_t>(config_.vocab_size));
    std::vector<BlockId> blocks(static_cast<size_t>(sequences * blocks_per_sequence_));
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<BlockId>(i);
    std::vector<SequenceRows> input;
    for (int64_t s = 0; s < sequences; ++s)
      input.push_back({std::span(tokens).subspan(static_cast<size_t>(s * rows), static_cast<size_t>(rows)), start,
                       std::span(blocks).subspan(static_cast<size_t>(s * blocks_per_sequence_), static_cast<size_t>(blocks_per_sequence_)), 1, start == 0 ? rows : 0});
    const auto begin = std::chrono::steady_clock::now();
    model_.forward({input}, kv_, {logits_, {failed_.data(), input.size()}});
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  double median_seconds(int64_t sequences, int64_t rows, int64_t start, int repeats) {
    std::vector<double> all;
    step_seconds(sequences, rows, start);
    for (int i = 0; i < repeats; ++i) all.push_back(step_seconds(sequences, rows, start));
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }
  int64_t context() const { return context_; }

 private:
  const ModelConfig& config_;
  Decoder model_;
  int64_t context_, blocks_per_sequence_;
  KvStore kv_;
  std::vector<float> logits_;
  std::vector<uint8_t> failed_;
};

void report(const char* name, Runner& runner, const ModelConfig& c, std::optional<WeightFormat> quantization, double bandwidth, double peak) {
  const Active a = active_weights(c, quantization);
  const double kv = static_cast<double>(kv_bytes_per_token(c, DType::kF32));
  std::printf("%s: %.1f MFLOP a token, %.1f MB of dense weights, %.1f MB of routed experts, %.0f bytes of KV a token\n", name,
              2 * a.parameters_per_token / 1e6, a.weight_bytes_dense / 1e6, a.expert_bytes_all / 1e6, kv);
  const auto line = [&](const char* phase, int64_t sequences, int64_t rows, int64_t start, int repeats) {
    const double s = runner.median_seconds(sequences, rows, start, repeats), tokens = static_cast<double>(sequences * rows);
    const double bytes = a.weight_bytes_dense + a.expert_bytes_all * expert_share(c, tokens) + kv * static_cast<double>(sequences * (start + rows));
    const double flops = 2 * a.parameters_per_token * tokens;
    std::printf("  %-8s batch %2lld x %3lld rows at %4lld: %9.1f tokens/s  %8.3f ms a step  %7.2f GB/s (%3.0f %% of read bandwidth)  %7.1f GFLOP/s (%3.0f %% of FMA peak)\n",
                phase, static_cast<long long>(sequences), static_cast<long long>(rows), static_cast<long long>(start), tokens / s, s * 1e3, bytes / s / 1e9,
                100 * bytes / s / bandwidth, flops / s / 1e9, 100 * flops / s / peak);
  };
  for (const int64_t batch : {1, 4, 16, 32}) line("decode", batch, 1, runner.context(), batch == 1 ? 15 : 7);
  for (const int64_t rows : {128, 512}) line("prefill", 1, rows, 0, 3);
}

int run(int argc, char** argv) {
  std::string model, dummy, activations = "float32", quantization = "none";
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int64_t context = 64;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--model")) model = argv[i + 1];
    else if (!std::strcmp(argv[i], "--dummy")) dummy = argv[i + 1];
    else if (!std::strcmp(argv[i], "--threads")) threads = std::atoi(argv[i + 1]);
    else if (!std::strcmp(argv[i], "--context")) context = std::atoll(argv[i + 1]);
    else if (!std::strcmp(argv[i], "--activation-dtype")) activations = argv[i + 1];
    else if (!std::strcmp(argv[i], "--quantization")) quantization = argv[i + 1];
  }
  if (model.empty() == dummy.empty() || threads < 1 || context < 0 || (activations != "float32" && activations != "fp8")) {
    std::fprintf(stderr, "usage: model_bench (--model DIR | --dummy CONFIG.json) [--threads N] [--context N] [--activation-dtype float32|fp8] [--quantization none|bfloat16|int8|int4]\n");
    return 2;
  }
  const ModelConfig config = load_model_config(model.empty() ? dummy : model);
  const auto source = model.empty() ? make_dummy_weights(config, 1) : open_checkpoint(model);
  ThreadPool pool(threads);
  const double bandwidth = read_bandwidth(pool), peak = fma_peak(pool);
  std::printf("machine: %d threads, %.1f GB/s read bandwidth, %.1f GFLOP/s float32 FMA peak\n", threads, bandwidth / 1e9, peak / 1e9);
  Runner runner(config, *source, threads, std::min(context, config.max_position - 600), activations == "fp8" ? DType::kF8E4M3 : DType::kF32, parse_quantization(quantization));
  report(model.empty() ? dummy.c_str() : model.c_str(), runner, config, parse_quantization(quantization), bandwidth, peak);
  return 0;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  try {
    return cadre::run(argc, argv);
  } catch (const cadre::Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 2;
  }
}
