#include "eplb/load_recorder.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "comm/inproc/inproc_world.h"
#include "eplb/load_series.h"
#include "tests/testing.h"

namespace cadre::eplb {
namespace {

constexpr int64_t kExperts = 11, kTopK = 2;
const std::vector<int64_t> kLayers = {1, 2, 5};

// What ranks route in some steps, and what of it was recorded. order(step) is asked of world rank 0.
struct Routed {
  std::vector<std::vector<std::vector<int32_t>>> ids;  // [step][rank], of kLayers[0]; layer l adds l to each, modulo kExperts
  int64_t rows(size_t step, size_t rank) const { return static_cast<int64_t>(ids[step][rank].size()) / kTopK; }
};

int32_t expert_in(int64_t layer_idx, int32_t id) { return static_cast<int32_t>((id + layer_idx) % kExperts); }

Routed route(int world, size_t steps) {
  Rng rng(testing::seed(), 1);
  Routed out;
  out.ids.resize(steps);
  for (auto& step : out.ids)
    for (int r = 0; r < world; ++r) {
      std::vector<int32_t>& ids = step.emplace_back();
      const uint32_t rows = rng.below(9);  // none, now and then
      for (uint32_t i = 0; i < rows * kTopK; ++i) ids.push_back(static_cast<int32_t>(rng.below(kExperts)));
    }
  return out;
}

// The steps of all ranks; before(step) acts on rank 0's recorder ahead of each, as a client would.
void run(int world, const Routed& routed, int64_t max_bytes, const std::function<void(LoadRecorder&, size_t step)>& before) {
  auto worlds = make_inproc_worlds(world);
  std::vector<std::unique_ptr<Group>> groups(static_cast<size_t>(world));
  std::vector<std::unique_ptr<LoadRecorder>> recorders(groups.size());
  const auto on_all = [&](auto&& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < world; ++r) threads.emplace_back([&, r] { body(r); });
    for (std::thread& t : threads) t.join();
  };
  on_all([&](int r) {
    std::vector<int> members(static_cast<size_t>(world));
    std::iota(members.begin(), members.end(), 0);
    if (world > 1) groups[static_cast<size_t>(r)] = std::make_unique<Group>("world", worlds[static_cast<size_t>(r)]->make_transport("world", members));
    recorders[static_cast<size_t>(r)] = std::make_unique<LoadRecorder>(
        RecorderOptions{.num_experts = kExperts, .top_k = kTopK, .layers = kLayers, .world_rank = r, .world_size = world, .max_rows = 16, .max_bytes = max_bytes},
        groups[static_cast<size_t>(r)].get());
  });
  for (size_t step = 0; step <= routed.ids.size(); ++step) {
    before(*recorders[0], step);
    if (step == routed.ids.size()) break;
    const int64_t order = recorders[0]->order();
    on_all([&](int r) {
      LoadRecorder& recorder = *recorders[static_cast<size_t>(r)];
      recorder.begin_step(order);
      for (size_t l = 0; recorder.is_recording_step() && l < kLayers.size(); ++l) {
        std::vector<int32_t> ids = routed.ids[step][static_cast<size_t>(r)];
        for (int32_t& id : ids) id = expert_in(static_cast<int64_t>(l), id);
        recorder.record(kLayers[l], ids);
      }
      recorder.end_step();
    });
  }
}

std::vector<double> counts_of(const Routed& routed, size_t first, size_t last) {
  std::vector<double> out(kLayers.size() * static_cast<size_t>(kExperts));
  for (size_t s = first; s < last; ++s)
    for (const auto& ids : routed.ids[s])
      for (size_t l = 0; l < kLayers.size(); ++l)
        for (const int32_t id : ids) ++out[l * static_cast<size_t>(kExperts) + static_cast<size_t>(expert_in(static_cast<int64_t>(l), id))];
  return out;
}

int64_t rows_in(const Routed& routed, size_t first, size_t last, size_t rank) {
  int64_t out = 0;
  for (size_t s = first; s < last; ++s) out += routed.rows(s, rank);
  return out;
}

TEST(LoadRecorder, CountsEveryRowOnceFromStartToStopOnAnyNumberOfRanks) {
  SCOPED_TRACE(testing::seed());
  for (const int world : {1, 2, 3, 4, 7})
    for (const RecorderMode mode : {RecorderMode::kStat, RecorderMode::kPerPass, RecorderMode::kPerToken}) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", world, name_of(mode)));
      const Routed routed = route(world, 12);
      run(world, routed, 1 << 20, [&](LoadRecorder& recorder, size_t step) {
        if (step == 3) recorder.start(mode);
        if (step == 9) recorder.stop();
        if (step < 12) return;
        const RecorderStatus status = recorder.status();
        EXPECT_FALSE(status.is_recording);
        EXPECT_EQ(status.num_steps, 6);
        for (size_t r = 0; r < static_cast<size_t>(world); ++r) EXPECT_EQ(status.rows_of_rank[r], rows_in(routed, 3, 9, r));
        const std::vector<double> expected = counts_of(routed, 3, 9);
        EXPECT_EQ(std::vector<double>(status.counts.begin(), status.counts.end()), expected);
        // The dump, read as any load is, says the same; step by step where there is a record of each.
        const LoadSeries series = parse_load(recorder.dump(), "dump");
        EXPECT_EQ(series.layers, kLayers);
        EXPECT_EQ(series.sum(0, static_cast<int64_t>(series.steps.size())), expected);
        if (mode == RecorderMode::kStat) {
          EXPECT_EQ(series.num_passes(0, 1), 6);
          return;
        }
        size_t at = 0;
        for (size_t s = 3; s < 9; ++s) {
          const std::vector<double> of_step = counts_of(routed, s, s + 1);
          if (std::accumulate(of_step.begin(), of_step.end(), 0.0) == 0) continue;  // a step without rows of any rank
          ASSERT_LT(at, series.steps.size());
          EXPECT_EQ(series.sum(static_cast<int64_t>(at++), 1), of_step) << "step " << s;
        }
        EXPECT_EQ(at, series.steps.size());
      });
    }
}

TEST(LoadRecorder, SamplesEveryNthRowOfARankAcrossSteps) {
  SCOPED_TRACE(testing::seed());
  for (const int64_t every : {2, 3, 7, 100}) {
    const Routed routed = route(2, 10);
    run(2, routed, 1 << 20, [&](LoadRecorder& recorder, size_t step) {
      if (step == 0) recorder.start(RecorderMode::kPerToken, every);
      if (step < 10) return;
      std::vector<int64_t> expected(kLayers.size() * static_cast<size_t>(kExperts));
      std::vector<int64_t> sampled(2);
      for (size_t r = 0; r < 2; ++r) {
        int64_t row = 0;
        for (const auto& of_step : routed.ids)
          for (size_t i = 0; i < of_step[r].size(); i += kTopK, ++row) {
            if (row % every != 0) continue;
            ++sampled[r];
            for (size_t l = 0; l < kLayers.size(); ++l)
              for (size_t j = 0; j < kTopK; ++j) ++expected[l * static_cast<size_t>(kExperts) + static_cast<size_t>(expert_in(static_cast<int64_t>(l), of_step[r][i + j]))];
          }
      }
      EXPECT_EQ(recorder.status().rows_of_rank, sampled) << every;
      EXPECT_EQ(recorder.status().counts, expected) << every;
    });
  }
}

TEST(LoadRecorder, StartsAfreshAndStopsWhenItIsFull) {
  const Routed routed = route(2, 30);
  run(2, routed, 4000, [&](LoadRecorder& recorder, size_t step) {
    if (step == 0) {
      EXPECT_THROW(recorder.dump(), Error);
      EXPECT_EQ(recorder.status().num_steps, 0);
      EXPECT_THROW(recorder.start(RecorderMode::kPerToken, 0), Error);
      EXPECT_FALSE(recorder.status().is_recording);
      recorder.start(RecorderMode::kStat);
    }
    if (step == 5) recorder.start(RecorderMode::kPerPass);
    if (step == 6) {
      EXPECT_EQ(recorder.status().num_steps, 1);
    }
    if (step < 30) return;
    const RecorderStatus status = recorder.status();
    EXPECT_TRUE(status.is_full);
    EXPECT_FALSE(status.is_recording);
    EXPECT_LT(status.num_steps, 25);
    const std::vector<double> expected = counts_of(routed, 5, 5 + static_cast<size_t>(status.num_steps));
    EXPECT_EQ(std::vector<double>(status.counts.begin(), status.counts.end()), expected) << "what it holds is whole";
  });
  EXPECT_THROW(parse_recorder_mode("all"), Error);
}

}  // namespace
}  // namespace cadre::eplb
