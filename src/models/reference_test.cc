// Every reference checkpoint against Hugging Face transformers: logits, router choices, greedy tokens; and, to the bit,
// independence from chunking and batch mates. tools/make_reference.py made the references.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/rng.h"
#include "models/decoder.h"
#include "tests/testing.h"
#include "weights/safetensors.h"

namespace cadre {
namespace {

constexpr float kLogitTolerance = 2e-4f;
constexpr double kDecisiveMargin = 1e-3;
constexpr int64_t kMaxRows = 256;

class ReferenceFile {
 public:
  explicit ReferenceFile(const std::filesystem::path& path) : file_(path) {
    for (auto& e : read_safetensors_header(file_.bytes(), path.string())) entries_[e.name] = e;
  }
  bool has(const std::string& name) const { return entries_.count(name) > 0; }
  template <typename T>
  std::vector<T> get(const std::string& name) const {
    const auto& e = entries_.at(name);
    std::vector<T> out((e.end - e.begin) / sizeof(T));
    std::memcpy(out.data(), file_.bytes().data() + e.begin, e.end - e.begin);
    return out;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [name, e] : entries_) out.push_back(name);
    return out;
  }

 private:
  MappedFile file_;
  std::map<std::string, SafetensorsEntry> entries_;
};

struct Route {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// A model with a cache, whose sequences each own a fixed run of blocks in shuffled order.
class Bench {
 public:
  explicit Bench(const std::filesystem::path& dir, DType kv_dtype = DType::kF32, ComputeMode mode = ComputeMode::kReference) {
    const ModelConfig config = load_model_config(dir);
    const auto source = open_checkpoint(dir);
    check_tensors(*source, config);
    model = std::make_unique<Decoder>(config, *source, DecoderOptions{.max_batched_tokens = kMaxRows, .kv_dtype = kv_dtype, .num_threads = 2, .compute_mode = mode});
    model->set_route_observer([this](int64_t layer, std::span<const int32_t> ids, std::span<const float> weights) {
      Route& r = routes[layer];
      r.ids.insert(r.ids.end(), ids.begin(), ids.end());
      r.weights.insert(r.weights.end(), weights.begin(), weights.end());
    });
    kv = std::make_unique<KvStore>(model->kv_layout(), kNumBlocks);
    free.resize(kNumBlocks);
    std::iota(free.begin(), free.end(), 0);
    Rng rng(testing::seed());
    std::shuffle(free.begin(), free.end(), rng);
  }

  std::vector<BlockId> take_blocks(int64_t tokens) {
    std::vector<BlockId> out;
    for (int64_t i = 0; i < (tokens + 15) / 16; ++i) {
      out.push_back(free.back());
      free.pop_back();
    }
    return out;
  }
  void give_back(const std::vector<BlockId>& blocks) { free.insert(free.begin(), blocks.begin(), blocks.end()); }

  // Logits of all rows of all sequences of one step.
  std::vector<float> step(const std::vector<SequenceRows>& sequences) {
    int64_t rows = 0;
    for (const auto& s : sequences) rows += s.num_logit_rows;
    std::vector<float> logits(static_cast<size_t>(rows * model->vocab_size()));
    failed.assign(sequences.size(), 7);
    model->forward({sequences}, *kv, {logits, failed});
    return logits;
  }

  // Logits at every position, the tokens given in chunks of this size.
  std::vector<float> run(const std::vector<int32_t>& tokens, int64_t chunk) {
    const auto blocks = take_blocks(static_cast<int64_t>(tokens.size()));
    std::vector<float> all;
    for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(chunk)) {
      const size_t n = std::min(static_cast<size_t>(chunk), tokens.size() - at);
      const auto logits = step({{std::span(tokens).subspan(at, n), static_cast<int64_t>(at), blocks, static_cast<int64_t>(n), static_cast<int64_t>(tokens.size())}});
      all.insert(all.end(), logits.begin(), logits.end());
      EXPECT_EQ(failed[0], 0);
    }
    give_back(blocks);
    return all;
  }

  static constexpr int64_t kNumBlocks = 200;
  std::unique_ptr<Decoder> model;
  std::unique_ptr<KvStore> kv;
  std::vector<BlockId> free;
  std::vector<uint8_t> failed;
  std::map<int64_t, Route> routes;
};

void expect_close(const std::vector<float>& got, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  float worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_FALSE(std::isnan(got[i])) << what;
    worst = std::max(worst, std::abs(got[i] - expected[i]));
  }
  EXPECT_LE(worst, kLogitTolerance) << what;
}

// Choices of every sparse layer: the same experts with the same weights, in any order (ties).
void expect_routes(const Bench& bench, const ReferenceFile& reference, const std::string& prompt) {
  const size_t top_k = static_cast<size_t>(bench.model->config().moe.router.top_k);
  size_t compared = 0;
  for (const std::string& name : reference.names()) {
    const std::string start = "router." + prompt + ".model.layers.";
    if (name.rfind(start, 0) != 0 || name.substr(name.size() - 2) != ".2") continue;
    const int64_t layer = std::stoll(name.substr(start.size()));
    const auto ids = reference.get<int32_t>(name);
    const auto weights = reference.get<float>(name.substr(0, name.size() - 1) + "1");
    const Route& got = bench.routes.at(layer);
    ASSERT_EQ(got.ids.size(), ids.size()) << name;
    for (size_t row = 0; row < ids.size() / top_k; ++row) {
      std::map<int32_t, float> a, b;
      for (size_t j = row * top_k; j < (row + 1) * top_k; ++j) a[got.ids[j]] = got.weights[j], b[ids[j]] = weights[j];
      ASSERT_EQ(a.size(), top_k);
      for (const auto& [id, weight] : b) {
        ASSERT_TRUE(a.count(id)) << name << " row " << row << " expert " << id;
        ASSERT_NEAR(a[id], weight, 1e-4) << name << " row " << row << " expert " << id;
      }
    }
    ++compared;
  }
  const auto& layers = bench.model->config().layers;
  EXPECT_EQ(static_cast<int64_t>(compared), std::count_if(layers.begin(), layers.end(), [](const LayerConfig& l) { return l.is_sparse; }));
}

class Reference : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path dir() const {
    return GetParam() == "demo" ? testing::source_dir() / "models" / "demo" : testing::source_dir() / "tests" / "reference" / GetParam();
  }
  int num_prompts() const { return GetParam() == "demo" ? 6 : 4; }
};

TEST_P(Reference, LogitsAndRoutesMatchTransformersForAnyChunking) {
  Bench bench(dir());
  const ReferenceFile reference(dir() / "reference.safetensors");
  for (int p = 0; p < num_prompts(); ++p) {
    const std::string prompt = std::to_string(p);
    const auto tokens = reference.get<int32_t>("prompt." + prompt);
    const auto expected = reference.get<float>("logits." + prompt);
    bench.routes.clear();
    const auto whole = bench.run(tokens, kMaxRows);
    expect_close(whole, expected, "prompt " + prompt);
    if (GetParam() != "demo" && bench.model->config().moe.router.num_experts > 0) expect_routes(bench, reference, prompt);
    for (const int64_t chunk : {1, 3, 16}) EXPECT_TRUE(bench.run(tokens, chunk) == whole) << "not equal to the bit: prompt " << p << " in chunks of " << chunk;
  }
}

// The fast mode too: its choice of form depends on position and prompt length alone.
TEST_P(Reference, FastModeMatchesAndItsChunkingChangesNoBit) {
  for (const DType kv_dtype : {DType::kF32, DType::kBF16}) {
    Bench bench(dir(), kv_dtype, ComputeMode::kFast);
    const ReferenceFile reference(dir() / "reference.safetensors");
    for (int p = 0; p < num_prompts(); ++p) {
      const auto tokens = reference.get<int32_t>("prompt." + std::to_string(p));
      const auto whole = bench.run(tokens, kMaxRows);
      if (kv_dtype == DType::kF32) expect_close(whole, reference.get<float>("logits." + std::to_string(p)), "prompt " + std::to_string(p));
      for (const int64_t chunk : {1, 5, 16, 40}) EXPECT_TRUE(bench.run(tokens, chunk) == whole) << "prompt " << p << " in chunks of " << chunk;
    }
  }
}

TEST_P(Reference, StrangersInTheBatchChangeNoBit) {
  Bench bench(dir(), DType::kF32, testing::seed() % 2 ? ComputeMode::kFast : ComputeMode::kReference);
  const ReferenceFile reference(dir() / "reference.safetensors");
  Rng rng(testing::seed(), 5);
  SCOPED_TRACE(testing::seed());
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<float>> alone;
  for (int p = 0; p < num_prompts(); ++p) {
    prompts.push_back(reference.get<int32_t>("prompt." + std::to_string(p)));
    alone.push_back(bench.run(prompts.back(), kMaxRows));
  }
  // All prompts at once, each step a random number of rows of each, in random order.
  std::vector<std::vector<BlockId>> blocks;
  std::vector<size_t> done(prompts.size());
  for (const auto& p : prompts) blocks.push_back(bench.take_blocks(static_cast<int64_t>(p.size())));
  const size_t vocab = static_cast<size_t>(bench.model->vocab_size());
  for (bool any = true; any;) {
    any = false;
    std::vector<SequenceRows> rows;
    std::vector<size_t> who(prompts.size());
    std::iota(who.begin(), who.end(), 0);
    std::shuffle(who.begin(), who.end(), rng);
    std::vector<size_t> in_step;
    for (const size_t p : who) {
      const size_t n = std::min<size_t>(rng.below(20), prompts[p].size() - done[p]);
      if (done[p] < prompts[p].size()) any = true;
      if (n == 0) continue;
      rows.push_back({std::span(prompts[p]).subspan(done[p], n), static_cast<int64_t>(done[p]), blocks[p], static_cast<int64_t>(n), static_cast<int64_t>(prompts[p].size())});
      in_step.push_back(p);
    }
    const auto logits = bench.step(rows);
    size_t at = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t n = rows[i].tokens.size() * vocab;
      ASSERT_EQ(std::memcmp(logits.data() + at, alone[in_step[i]].data() + done[in_step[i]] * vocab, n * 4), 0) << "prompt " << in_step[i];
      at += n;
      done[in_step[i]] += rows[i].tokens.size();
    }
  }
}

TEST_P(Reference, GreedyTokensMatchAsFarAsTheReferenceIsDecided) {
  Bench bench(dir());
  const ReferenceFile reference(dir() / "reference.safetensors");
  const json::value meta = parse_json_file(dir() / "reference.json");
  const size_t vocab = static_cast<size_t>(bench.model->vocab_size());
  for (int p = 0; p < num_prompts(); ++p) {
    const auto prompt = reference.get<int32_t>("prompt." + std::to_string(p)), expected = reference.get<int32_t>("greedy." + std::to_string(p));
    const auto blocks = bench.take_blocks(static_cast<int64_t>(prompt.size() + expected.size()));
    auto logits = bench.step({{prompt, 0, blocks, 1}});
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto best = std::max_element(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(vocab));
      const int32_t token = static_cast<int32_t>(best - logits.begin());
      float second = -1e30f;
      for (size_t v = 0; v < vocab; ++v)
        if (static_cast<int32_t>(v) != token) second = std::max(second, logits[v]);
      if (*best - second <= kDecisiveMargin && token != expected[i]) break;  // the reference itself was not decided here
      ASSERT_EQ(token, expected[i]) << "prompt " << p << " token " << i;
      const int32_t next[1] = {token};
      if (i + 1 < expected.size()) logits = bench.step({{next, static_cast<int64_t>(prompt.size() + i), blocks, 1}});
    }
    bench.give_back(blocks);
  }
}

TEST_P(Reference, ABfloat16CacheStaysClose) {
  Bench bench(dir(), DType::kBF16);
  const ReferenceFile reference(dir() / "reference.safetensors");
  const auto expected = reference.get<float>("logits.2");
  const auto got = bench.run(reference.get<int32_t>("prompt.2"), 16);
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) error += std::pow(got[i] - expected[i], 2), norm += std::pow(expected[i], 2);
  // A router near a tie may choose another expert for a row, so the bound is on the whole, not on each logit.
  EXPECT_LT(std::sqrt(error / norm), 0.1);
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, Reference,
                         ::testing::Values("deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "deepseek_v3_fp8", "glm4_moe", "gpt_oss", "gpt_oss_mxfp4",
                                           "llama", "mixtral", "olmoe", "qwen2_moe", "qwen3", "qwen3_moe", "demo"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace cadre
