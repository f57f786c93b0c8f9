// How long planning and splitting take on one core, and how even the plans are, on recorded loads:
//   CADRE_DATA=../shared/data ./build/release/eplb_bench
// prints the tables of docs/eplb.md, then times. Without the data, times on made-up loads.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "base/rng.h"
#include "eplb/load_series.h"
#include "eplb/model_plan.h"
#include "parallel/replica_choice.h"

namespace cadre::eplb {
namespace {

constexpr int64_t kExperts = 256, kLayers = 58;

// Files of DeepSeek-R1, in order of their names; made up where there are none.
const std::vector<LoadSeries>& loads() {
  static const std::vector<LoadSeries> all = [] {
    std::vector<LoadSeries> out;
    const char* data = std::getenv("CADRE_DATA");
    const std::filesystem::path folder =
        std::filesystem::path(data ? data : "../shared/data") / "expert_load" / "deepseek_r1";
    std::vector<std::filesystem::path> files;
    if (std::filesystem::is_directory(folder))
      for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) out.push_back(read_load(file));
    if (!out.empty()) return out;
    Rng rng(1);
    for (int f = 0; f < 4; ++f) {
      LoadSeries s{.num_experts = kExperts};
      s.steps.emplace_back();
      for (int64_t l = 0; l < kLayers; ++l) {
        s.layers.push_back(l);
        for (int64_t e = 0; e < kExperts; ++e)
          s.steps[0].rows.push_back(
              std::floor(1e5 * std::exp(2 * (rng.uniform() + rng.uniform() + rng.uniform() - 1.5))));
      }
      out.push_back(std::move(s));
    }
    return out;
  }();
  return all;
}

Cluster cluster(int64_t ranks, int64_t redundant) {
  return {.num_experts = kExperts, .ranks = static_cast<int>(ranks), .num_replicas = kExperts + redundant};
}

ModelPlan plan(const LoadSeries& load, Algorithm algorithm, const Cluster& c, const ModelPlacement* before = nullptr) {
  return plan_model({.algorithm = algorithm,
                     .layers = load.layers,
                     .rows = load.steps[0].rows,
                     .cluster = c,
                     .before = before,
                     .moves_from_before = before != nullptr});
}

void print_tables() {
  std::printf(
      "Over %zu files: mean balancedness, its least in a layer, and slots that move when the load becomes that of the "
      "next file.\n\n",
      loads().size());
  std::printf(
      "| ranks | redundant | published | least | cadre | least | after a shift | moved, published | moved, cadre | "
      "times fewer |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const int64_t ranks : {8, 16, 32, 64, 72, 144})
    for (const int64_t redundant : {0, 32, 64}) {
      const Cluster c = cluster(ranks, redundant);
      double published = 0, published_least = 1, ours = 0, ours_least = 1, shifted = 0;
      int64_t published_moved = 0, ours_moved = 0;
      for (size_t f = 0; f < loads().size(); ++f) {
        const LoadSeries& next = loads()[(f + 1) % loads().size()];
        const ModelPlan a = plan(loads()[f], Algorithm::kDeepseek, c), b = plan(loads()[f], Algorithm::kCadre, c);
        const ModelPlan then = plan(next, Algorithm::kCadre, c, &b.placement);
        published += a.mean_after(), published_least = std::min(published_least, a.least_after());
        ours += b.mean_after(), ours_least = std::min(ours_least, b.least_after());
        shifted += then.mean_after();
        published_moved += plan(next, Algorithm::kDeepseek, c, &a.placement).moved(), ours_moved += then.moved();
      }
      const double n = static_cast<double>(loads().size());
      std::printf("| %ld | %ld | %.4f | %.3f | %.4f | %.3f | %.4f | %.0f | %.0f | %.1f |\n", ranks, redundant,
                  published / n, published_least, ours / n, ours_least, shifted / n,
                  static_cast<double>(published_moved) / n, static_cast<double>(ours_moved) / n,
                  static_cast<double>(published_moved) / static_cast<double>(std::max<int64_t>(ours_moved, 1)));
    }
  std::printf("\n");
}

// All 58 layers of a model.
void BM_PlanAfresh(benchmark::State& state) {
  for (auto _ : state)
    benchmark::DoNotOptimize(plan(loads()[0], Algorithm::kCadre, cluster(state.range(0), state.range(1))));
}
BENCHMARK(BM_PlanAfresh)->Args({32, 32})->Args({64, 32})->Args({144, 32})->Unit(benchmark::kMillisecond);

void BM_PlanPublished(benchmark::State& state) {
  for (auto _ : state)
    benchmark::DoNotOptimize(plan(loads()[0], Algorithm::kDeepseek, cluster(state.range(0), state.range(1))));
}
BENCHMARK(BM_PlanPublished)->Args({32, 32})->Args({144, 32})->Unit(benchmark::kMillisecond);

void BM_PlanFromCurrent(benchmark::State& state) {
  const Cluster c = cluster(state.range(0), state.range(1));
  const ModelPlacement before = plan(loads()[0], Algorithm::kCadre, c).placement;
  for (auto _ : state) benchmark::DoNotOptimize(plan(loads()[1], Algorithm::kCadre, c, &before));
}
BENCHMARK(BM_PlanFromCurrent)->Args({32, 32})->Args({144, 32})->Unit(benchmark::kMillisecond);

// One layer and batch; the load is what the placement was planned for, or that of another file.
void BM_WaterFill(benchmark::State& state) {
  const Cluster c = cluster(state.range(0), 64);
  const LoadSeries& load = loads()[state.range(1) ? 1 : 0];
  const ModelPlacement placement = plan(loads()[0], Algorithm::kCadre, c).placement;
  std::vector<ReplicaSplit> splits;
  std::vector<std::vector<int32_t>> rows;
  for (int64_t l = 0; l < load.num_layers(); ++l) {
    splits.emplace_back(placement.placements[static_cast<size_t>(l)], ReplicaChoice::kWaterFill);
    const auto of_layer = load.of(0, l);
    const double total = std::accumulate(of_layer.begin(), of_layer.end(), 0.0);
    rows.emplace_back();
    for (const double r : of_layer) rows.back().push_back(static_cast<int32_t>(r / total * 64 * 128 * 8));
  }
  for (auto _ : state)
    for (size_t l = 0; l < splits.size(); ++l) splits[l].split(rows[l]);
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(splits.size()));
  state.counters["us_per_layer"] =
      benchmark::Counter(static_cast<double>(splits.size()) / 1e6,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_WaterFill)->Args({64, 0})->Args({64, 1})->Args({32, 1});

}  // namespace
}  // namespace cadre::eplb

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  cadre::eplb::print_tables();
  benchmark::RunSpecifiedBenchmarks();
}
