// Bytes per second of encoding and decoding, one thread. Run in the root of the source tree: it uses models/demo, and
// the tokenizers of $CADRE_DATA (or ../shared/data) where that exists.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/rng.h"
#include "tokenizer/tokenizer.h"

namespace cadre {
namespace {

constexpr size_t kTextBytes = 1 << 20;

constexpr std::string_view kEnglish =
    "A violin is a wooden string instrument, the smallest and highest of its family in common use. Most violins have a "
    "hollow body of spruce and maple, four strings tuned in perfect fifths, and a bow of horsehair that is drawn "
    "across "
    "them. In 1564 the makers of Cremona built instruments that are still played today; some of them have been sold "
    "for "
    "more than $15,000,000. Players don't only bow: they pluck (\"pizzicato\"), strike with the wood of the bow, and "
    "let a "
    "finger rest lightly on a string so that harmonics ring out.\n\nIt's learned by children as young as three, who "
    "often "
    "begin with a one-sixteenth size. Orchestras seat about thirty violinists in two sections, first and second. ";

// English sentences in a seeded order.
std::string english() {
  std::vector<std::string_view> sentences;
  for (std::string_view rest = kEnglish; !rest.empty();) {
    const size_t end = std::min(rest.find(". ") + 2, rest.size());
    sentences.push_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  Rng rng(1);
  std::string text;
  while (text.size() < kTextBytes) text += sentences[rng.below(static_cast<uint32_t>(sentences.size()))];
  return text;
}

std::string repeated(std::string_view unit) {
  std::string text;
  while (text.size() < kTextBytes) text += unit;
  return text;
}

void encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  size_t num_ids = 0;
  for (auto _ : state) num_ids = tokenizer.encode(text, false).size();
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes_per_token"] = static_cast<double>(text.size()) / static_cast<double>(num_ids);
}

void decode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text, false);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.decode(ids, false));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

void load(benchmark::State& state, const std::filesystem::path& dir) {
  for (auto _ : state) benchmark::DoNotOptimize(load_tokenizer(dir));
}

void register_all() {
  static const std::map<std::string, std::string> kTexts = {
      {"english", english()},
      {"chinese", repeated("小提琴是一种弦乐器，共有四根弦。")},
      {"code", repeated("  for (int i = 0; i < n; ++i) sum[i] += x[i] * 2;\n")},
      {"one_letter", repeated("x")},
      {"one_space", repeated(" ")},
      {"marks", repeated("e\xCC\x81\xCC\xA3")}};
  static std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  const char* data = std::getenv("CADRE_DATA");
  const std::filesystem::path shared = std::filesystem::path(data ? data : "../shared/data") / "tokenizers";
  for (const std::filesystem::path& dir :
       {std::filesystem::path("models/demo"), shared / "deepseek_v3", shared / "qwen3", shared / "gptoss",
        std::filesystem::path("tests/tokenizer/spm_legacy"), std::filesystem::path("tests/tokenizer/kimi_k2")}) {
    if (!std::filesystem::exists(dir / "tokenizer.json")) continue;
    const std::string name = dir.filename().string();
    const Tokenizer& tokenizer = *(tokenizers[name] = load_tokenizer(dir));
    benchmark::RegisterBenchmark((name + "/load").c_str(), load, dir)->Unit(benchmark::kMillisecond);
    for (const auto& [kind, text] : kTexts)
      benchmark::RegisterBenchmark((name + "/encode/" + kind).c_str(), [&tokenizer,
                                                                        &text = text](benchmark::State& state) {
        encode(state, tokenizer, text);
      })->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark((name + "/decode/english").c_str(), [&tokenizer](benchmark::State& state) {
      decode(state, tokenizer, kTexts.at("english"));
    })->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  cadre::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
