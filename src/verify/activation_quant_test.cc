// Activations in FP8 (`--activation-dtype fp8`) on whole models: on any layout the narrow wire costs no bit; where no sum is
// split, one rank's logits come out to the bit; what the mode does to answers stays within bounds; what cannot be is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "config/tensor_spec.h"
#include "models/activation_dtype.h"
#include "tests/testing.h"
#include "verify/verify_model.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

fs::path demo() { return testing::source_dir() / "models" / "demo"; }
fs::path reference(const std::string& name) { return testing::source_dir() / "tests" / "reference" / name; }

Layout layout(int dp, int attn_tp, int ep, ExchangeKind exchange = ExchangeKind::kNone) {
  Layout l;
  l.attn_dp = dp, l.attn_tp = attn_tp, l.world = dp * attn_tp;
  l.ep = ep, l.moe_tp = l.world / ep, l.dense_tp = attn_tp;
  l.exchange = exchange;
  return l;
}

struct Mode {
  DType activations = DType::kF8E4M3;
  bool fp8_dispatch = false;
  const char* moe_backend = "auto";
  ComputeMode compute = ComputeMode::kFast;
};

std::unique_ptr<ModelRunner> make_runner(const fs::path& dir, const Layout& l, const Mode& mode) {
  return std::make_unique<ModelRunner>(ModelRunnerOptions{
      .config = load_model_config(dir), .open_weights = [dir] { return open_checkpoint(dir); },
      .decoder = {.max_batched_tokens = 256, .compute_mode = mode.compute, .fp8_dispatch = mode.fp8_dispatch, .activation_dtype = mode.activations, .moe_backend = mode.moe_backend},
      .layout = l, .num_blocks = 64, .seed = testing::seed()});
}

// Of four prompts in one batch, prompt p on rank p modulo ranks.
std::vector<std::vector<float>> logits(const fs::path& dir, const Layout& l, const Mode& mode) {
  const ReferenceSet set(dir);
  std::vector<std::vector<int32_t>> prompts;
  const auto runner = make_runner(dir, l, mode);
  for (const std::string& name : set.prompts()) {
    prompts.push_back(set.read(name, runner->vocab_size()).tokens);
    prompts.back().resize(std::min<size_t>(prompts.back().size(), 70));
    if (prompts.size() == 4) break;
  }
  return runner->batch_logits(prompts, testing::seed());
}

double largest_difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double worst = 0;
  for (size_t p = 0; p < a.size(); ++p)
    for (size_t i = 0; i < a[p].size(); ++i) worst = std::max(worst, std::abs(static_cast<double>(a[p][i]) - static_cast<double>(b[p][i])));
  return worst;
}

double rms_difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double squares = 0, values = 0;
  for (size_t p = 0; p < a.size(); ++p)
    for (size_t i = 0; i < a[p].size(); ++i) squares += std::pow(static_cast<double>(a[p][i]) - static_cast<double>(b[p][i]), 2), ++values;
  return std::sqrt(squares / values);
}

constexpr ExchangeKind kExchanges[] = {ExchangeKind::kAllGatherReduceScatter, ExchangeKind::kAllToAll, ExchangeKind::kAllToAllLowLatency, ExchangeKind::kAuto};

TEST(ActivationQuant, AnFp8WireCostsNoBitOnAnyLayoutAndExchange) {
  SCOPED_TRACE(testing::seed());
  const auto one = logits(demo(), {}, {});
  for (const Layout& base : {layout(2, 1, 2), layout(4, 1, 4), layout(2, 2, 4), layout(3, 1, 3)})
    for (const ExchangeKind exchange : kExchanges)
      for (const CombineOrder combine : {CombineOrder::kExact, CombineOrder::kPerRank}) {
        Layout l = base;
        l.exchange = exchange;
        l.combine = combine;
        l.placement = testing::seed() % 2 ? PlacementStrategy::kRoundRobin : PlacementStrategy::kLinear;
        if (combine == CombineOrder::kPerRank && (exchange == ExchangeKind::kAllToAllLowLatency || exchange == ExchangeKind::kAuto)) continue;
        SCOPED_TRACE(fmt::format("dp {} tp {} ep {} {} {}", l.attn_dp, l.attn_tp, l.ep, exchange_name(exchange), combine == CombineOrder::kExact ? "exact" : "per rank"));
        const auto wide = logits(demo(), l, {}), narrow = logits(demo(), l, {.fp8_dispatch = true});
        EXPECT_TRUE(wide == narrow) << largest_difference(wide, narrow);
        if (l.attn_tp == 1 && combine == CombineOrder::kExact) {
          EXPECT_TRUE(wide == one) << largest_difference(wide, one);
        } else {
          // A sum split otherwise may land a value on the other side of a rounding border.
          EXPECT_LE(rms_difference(wide, one), 0.1);
        }
      }
}

// The wire alone rounds what experts see: without the mode it does change answers, so the test above shows something.
TEST(ActivationQuant, WithoutTheModeAnFp8WireChangesLogits) {
  const Layout l = layout(2, 1, 2, ExchangeKind::kAllToAll);
  const auto wide = logits(demo(), l, {.activations = DType::kF32});
  EXPECT_TRUE(wide == logits(demo(), {}, {.activations = DType::kF32}));
  EXPECT_FALSE(wide == logits(demo(), l, {.activations = DType::kF32, .fp8_dispatch = true}));
}

// What the mode does to answers, over prompts and the reference's greedy continuations.
struct Effect {
  double rms_logit_error = 0, logit_spread = 0, max_logit_error = 0;
  double mean_divergence = 0;  // of the next token's distributions, in nats (Kullback and Leibler 1951)
  double same_best = 0;        // share of positions
  int64_t num_positions = 0;
};

Effect effect_of_mode(const fs::path& dir, const Mode& mode) {
  const ReferenceSet set(dir);
  const auto plain = make_runner(dir, {}, {.activations = DType::kF32}), rounded = make_runner(dir, {}, mode);
  const size_t vocab = static_cast<size_t>(plain->vocab_size());
  Effect e;
  double squares = 0, spread = 0;
  for (const std::string& name : set.prompts()) {
    const ReferencePrompt p = set.read(name, plain->vocab_size());
    std::vector<int32_t> tokens = p.tokens;
    tokens.insert(tokens.end(), p.greedy.begin(), p.greedy.end());
    const auto a = plain->prompt_logits(tokens, 0), b = rounded->prompt_logits(tokens, 0);
    for (size_t at = 0; at < a.size(); at += vocab) {
      const auto log_sum = [&](const std::vector<float>& v) {
        double sum = 0;
        for (size_t i = at; i < at + vocab; ++i) sum += std::exp(static_cast<double>(v[i]));
        return std::log(sum);
      };
      double mean = 0;
      for (size_t i = at; i < at + vocab; ++i) mean += a[i] / static_cast<double>(vocab);
      const double log_a = log_sum(a), log_b = log_sum(b);
      for (size_t i = at; i < at + vocab; ++i) {
        const double error = static_cast<double>(a[i]) - static_cast<double>(b[i]);
        squares += error * error;
        spread += (a[i] - mean) * (a[i] - mean);
        e.max_logit_error = std::max(e.max_logit_error, std::abs(error));
        e.mean_divergence += std::exp(a[i] - log_a) * (error - log_a + log_b);
      }
      const auto best = [&](const std::vector<float>& v) { return std::max_element(v.begin() + static_cast<std::ptrdiff_t>(at), v.begin() + static_cast<std::ptrdiff_t>(at + vocab)) - v.begin(); };
      e.same_best += best(a) == best(b);
      ++e.num_positions;
    }
  }
  const double positions = static_cast<double>(e.num_positions), values = positions * static_cast<double>(vocab);
  e.rms_logit_error = std::sqrt(squares / values);
  e.logit_spread = std::sqrt(spread / values);
  e.mean_divergence /= positions;
  e.same_best /= positions;
  return e;
}

TEST(ActivationQuant, ChangesLogitsWithinBounds) {
  const Effect e = effect_of_mode(demo(), {});
  const std::string text = fmt::format("rms error {:.3f} of {:.3f}, largest {:.3f}, divergence {:.4f}, best token the same in {:.1f} % of {} positions", e.rms_logit_error, e.logit_spread,
                                       e.max_logit_error, e.mean_divergence, 100 * e.same_best, e.num_positions);
  RecordProperty("effect", text);
  EXPECT_GT(e.rms_logit_error, 0.01 * e.logit_spread) << text;
  EXPECT_LT(e.rms_logit_error, 0.12 * e.logit_spread) << text;
  EXPECT_LT(e.mean_divergence, 0.03) << text;
  EXPECT_GT(e.same_best, 0.93) << text;
}

// The fast forms against the scalar definition of every product and rounding.
TEST(ActivationQuant, TheReferenceExpertsGiveTheSameBits) {
  for (const fs::path& dir : {demo(), reference("deepseek_v3_fp8")}) EXPECT_TRUE(logits(dir, {}, {}) == logits(dir, {}, {.moe_backend = "cpu_reference"})) << dir;
}

// Latents are rounded as they enter the cache, so both forms of latent attention multiply the same values.
TEST(ActivationQuant, PromptsInEitherFormAgree) {
  for (const fs::path& dir : {demo(), reference("deepseek_v3_fp8")}) {
    const auto reference_run = make_runner(dir, {}, {.compute = ComputeMode::kReference}), fast = make_runner(dir, {}, {});
    const ReferenceSet set(dir);
    std::vector<int32_t> tokens = set.read("3", fast->vocab_size()).tokens;
    const auto greedy = set.read("3", fast->vocab_size()).greedy;
    tokens.insert(tokens.end(), greedy.begin(), greedy.end());
    const auto a = reference_run->prompt_logits(tokens, 0), b = fast->prompt_logits(tokens, 0);
    double squares = 0, all = 0;
    for (size_t i = 0; i < a.size(); ++i) squares += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2), all += std::pow(static_cast<double>(a[i]), 2);
    // Sums in another order move some values over a rounding border; unequal inputs would differ by whole steps everywhere.
    EXPECT_LE(squares, 4e-4 * all) << dir << " " << std::sqrt(squares / all);
  }
}

TEST(ActivationQuant, ChunksAndBatchMatesChangeNoBit) {
  for (const fs::path& dir : {demo(), reference("deepseek_v3_fp8")}) {
    const auto runner = make_runner(dir, {}, {});
    const ModelReport report = verify_model(*runner, ReferenceSet(dir), rounded_activation_bounds(), testing::seed());
    EXPECT_TRUE(report.passed()) << report_text(report);
    EXPECT_FALSE(verify_model(*runner, ReferenceSet(dir), {}, testing::seed()).passed()) << "the references are of another mode";
  }
}

std::unique_ptr<WeightSource> dummy(const ModelConfig& config) { return make_dummy_weights(config, 7); }

ModelConfig with_quantization(const std::string& name, json::value quantization) {
  json::object config = parse_json_file(reference(name) / "config.json").as_object();
  config["quantization_config"] = std::move(quantization);
  return parse_model_config(config);
}

json::object fp8_blocks() { return {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", json::array{128, 128}}}; }

std::vector<float> dummy_logits(const ModelConfig& config, DType activations) {
  ModelRunner runner({.config = config, .open_weights = [&] { return dummy(config); }, .decoder = {.max_batched_tokens = 64, .activation_dtype = activations}, .num_blocks = 8});
  std::vector<int32_t> tokens(40);
  Rng rng(3, 1);
  for (int32_t& t : tokens) t = static_cast<int32_t>(rng.below(static_cast<uint32_t>(config.vocab_size)));
  return runner.prompt_logits(tokens, 0);
}

// Each kind of product by itself: with its weights alone in FP8 the mode changes answers, with none in FP8 it changes no bit.
TEST(ActivationQuant, EveryProductWithFp8WeightsRoundsAndNoOther) {
  const struct {
    const char* name;
    std::vector<std::string> products;
  } kModels[] = {
      {"deepseek_v3", {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "layers.0.mlp.gate_proj", "layers.0.mlp.up_proj", "layers.0.mlp.down_proj",
                       "shared_experts.gate_proj", "shared_experts.up_proj", "shared_experts.down_proj", "mlp.experts"}},
      {"deepseek_v2_lite", {"q_proj", "kv_a_proj_with_mqa", "mlp.experts"}},
      {"qwen2_moe", {"q_proj", "k_proj", "v_proj", "o_proj", "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj", "mlp.experts"}},
      {"glm4_moe", {"q_proj", "k_proj", "v_proj", "o_proj", "shared_experts.down_proj", "mlp.experts"}},
      {"mixtral", {"o_proj", "block_sparse_moe.experts"}},
      {"olmoe", {"q_proj", "mlp.experts"}},
      {"qwen3", {"v_proj", "gate_proj", "up_proj", "down_proj"}},
  };
  for (const auto& [name, products] : kModels) {
    json::object quantization = fp8_blocks();
    quantization["modules_to_not_convert"] = json::array{"model"};
    const ModelConfig none = with_quantization(name, quantization);
    EXPECT_TRUE(dummy_logits(none, DType::kF32) == dummy_logits(none, DType::kF8E4M3)) << name;
    const auto tensors = checkpoint_tensors(with_quantization(name, fp8_blocks()));
    for (const std::string& product : products) {
      json::array others;
      for (const TensorSpec& t : tensors)
        if (t.dtype == DType::kF8E4M3 && t.name.find(product) == std::string::npos) others.push_back(json::string(t.name.substr(0, t.name.rfind('.'))));
      quantization["modules_to_not_convert"] = others;
      const ModelConfig one = with_quantization(name, quantization);
      EXPECT_FALSE(dummy_logits(one, DType::kF32) == dummy_logits(one, DType::kF8E4M3)) << name << ": " << product;
    }
  }
}

std::string refusal(const ModelConfig& config, const Layout& l) {
  try {
    check_activation_dtype(config, l, DType::kF8E4M3);
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

TEST(ActivationQuant, RefusesWhatItCannotCompute) {
  const auto expect = [](const std::string& text, const char* part) { EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part; };
  expect(refusal(load_model_config(reference("llama")), {}), "found no quantisation");
  expect(refusal(load_model_config(reference("gpt_oss_mxfp4")), {}), "found MXFP4");
  EXPECT_NO_THROW(check_activation_dtype(load_model_config(reference("llama")), layout(1, 2, 1), DType::kF32));
  const ModelConfig demo_config = load_model_config(demo()), small = load_model_config(reference("deepseek_v3_fp8"));
  EXPECT_EQ(refusal(demo_config, layout(2, 2, 4)), "");
  EXPECT_EQ(refusal(small, layout(4, 1, 4)), "");
  expect(refusal(small, layout(1, 2, 2)), "o_proj.weight to begin on a group of 128");
  expect(refusal(demo_config, layout(2, 1, 1)), "experts.0.down_proj");  // width 64 over two ranks
  expect(refusal(demo_config, layout(1, 4, 4)), "rank 1 at 64 of 256");
  json::object quantization = fp8_blocks();
  quantization["scale_fmt"] = "ue8m0";
  expect(refusal(with_quantization("deepseek_v3", quantization), {}), "ue8m0");
  // The decoder says so itself, on every rank, before it reads a weight.
  EXPECT_THROW(make_runner(reference("deepseek_v3_fp8"), layout(1, 2, 2, ExchangeKind::kAllToAll), {}), Error);
  EXPECT_THROW(make_runner(reference("llama"), {}, {}), Error);
}

}  // namespace
}  // namespace cadre
