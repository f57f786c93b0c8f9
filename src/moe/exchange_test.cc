// Every exchange over threads against one rank's sum, under friendly and adversarial routings: rows are conserved, more
// rows than a round holds go in several, and where the order is exact no bit changes.
#include "moe/exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "comm/inproc/inproc_world.h"
#include "comm/rank_groups.h"
#include "moe/moe_layer.h"
#include "parallel/traffic_cost.h"
#include "tests/testing.h"

namespace cadre {
namespace {

constexpr int64_t kHidden = 160, kWidth = 32, kExperts = 12;

float centred(Rng& rng) { return 4 * (rng.uniform() - 0.5f); }

// One expert's gate, up and down, drawn once.
const std::vector<float>& matrices_of(int32_t expert) {
  static const auto kAll = [] {
    std::vector<std::vector<float>> all(kExperts, std::vector<float>(3 * kHidden * kWidth));
    for (size_t e = 0; e < all.size(); ++e) {
      Rng rng(900, e);
      for (float& x : all[e]) x = centred(rng) * 0.2f;
    }
    return all;
  }();
  return kAll[static_cast<size_t>(expert)];
}

// The same experts wherever they are.
void fill_expert(Experts& experts, int64_t slot, int32_t expert, Slice width) {
  const ExpertLayout& l = experts.layout();
  const float* v_begin = matrices_of(expert).data();
  const auto put = [&](int64_t n, int64_t k, Slice rows, Slice columns, int64_t offset) {
    const std::span<const float> v(std::exchange(v_begin, v_begin + n * k), static_cast<size_t>(n * k));
    pack({.format = WeightFormat::kF32,
          .data = reinterpret_cast<const std::byte*>(v.data() + rows.first * k + columns.first), .n = rows.count, .k = columns.count, .stride_n = k}, experts.slot(slot) + offset);
  };
  put(kWidth, kHidden, width, {0, kHidden}, 0);
  put(kWidth, kHidden, width, {0, kHidden}, l.up_offset);
  put(kHidden, kWidth, {0, kHidden}, width, l.down_offset);
}

struct Routing {
  const char* name;
  std::function<int32_t(Rng&, int64_t row, int64_t j, int64_t top_k)> expert;  // distinct within a row
};

const std::vector<Routing>& routings() {
  static const std::vector<Routing> kRoutings{
      {"random", [](Rng& rng, int64_t, int64_t j, int64_t k) { return static_cast<int32_t>(j * (kExperts / k) + rng.below(static_cast<uint32_t>(kExperts / k))); }},
      {"all to the first experts", [](Rng&, int64_t, int64_t j, int64_t) { return static_cast<int32_t>(j); }},
      {"all to the last experts", [](Rng&, int64_t, int64_t j, int64_t) { return static_cast<int32_t>(kExperts - 1 - j); }},
      {"every row to every rank", [](Rng&, int64_t row, int64_t j, int64_t k) { return static_cast<int32_t>((row + j * (kExperts / k)) % kExperts); }},
  };
  return kRoutings;
}

struct World {
  Layout layout;
  ReplicaChoice choice = ReplicaChoice::kStatic;
  int64_t top_k = 4;
  RowCodec codec{.hidden = kHidden};
  bool is_rounded = false;    // rows come rounded to FP8
  std::vector<int64_t> rows;  // of each rank
};

struct Input {
  std::vector<float> x, weights;
  std::vector<int32_t> ids;
};

void round_all(std::vector<float>& x) {
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(kHidden)) round_to_fp8(x.data() + at, kHidden, x.data() + at);
}

Input make_input(const World& world, int rank, const Routing& routing, uint64_t seed) {
  Rng rng(seed, static_cast<uint64_t>(rank));
  Input in;
  const int64_t rows = world.rows[static_cast<size_t>(rank)];
  for (int64_t i = 0; i < rows * kHidden; ++i) in.x.push_back(centred(rng));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < world.top_k; ++j) {
      in.ids.push_back(routing.expert(rng, r, j, world.top_k));
      in.weights.push_back(rng.uniform() - 0.3f);
    }
  if (world.is_rounded) round_all(in.x);
  return in;
}

std::vector<float> run_rounds(Exchange& exchange, const Experts& experts, ReplicaSplit replicas, const World& world, int rank, const Input& in) {
  ThreadPool pool(1);
  ExpertsWorkspace w(exchange.max_pairs(), experts.num_slots(), kHidden, kWidth, 1);
  std::vector<float> out(in.x.size());
  const int64_t longest = *std::max_element(world.rows.begin(), world.rows.end()), at_once = exchange.chunk_rows(), own = world.rows[static_cast<size_t>(rank)];
  for (int64_t first = 0; first < longest; first += at_once) {
    std::vector<int64_t> rows;
    for (const int64_t r : world.rows) rows.push_back(std::clamp<int64_t>(r - first, 0, at_once));
    const int64_t from = std::min(first, own), count = rows[static_cast<size_t>(rank)];
    const size_t at = static_cast<size_t>(from * world.top_k), size = static_cast<size_t>(count * world.top_k);
    exchange.start_dispatch({in.x.data() + from * kHidden, count, std::span(in.ids).subspan(at, size), std::span(in.weights).subspan(at, size)}, rows, replicas);
    experts.compute(exchange.finish_dispatch(), w, pool);
    exchange.start_combine(w, pool);
    exchange.finish_combine(out.data() + from * kHidden, pool);
  }
  return out;
}

// What one rank that holds all experts gets for a rank's rows.
std::vector<float> expected_of(const World& world, int rank, const Input& in) {
  Experts experts(ExpertLayout(WeightFormat::kF32, kHidden, kWidth, false), kExperts, {});
  for (int32_t e = 0; e < kExperts; ++e) fill_expert(experts, e, e, {0, kWidth});
  const World alone{.top_k = world.top_k, .rows = {world.rows[static_cast<size_t>(rank)]}};
  Input seen = in;
  if (world.codec.is_fp8_wire) round_all(seen.x);
  const auto exchange = make_local_exchange({.hidden = kHidden, .top_k = world.top_k, .num_slots = kExperts, .codec = alone.codec});
  return run_rounds(*exchange, experts, ReplicaSplit(ExpertPlacement::initial(kExperts, 1, PlacementStrategy::kLinear), ReplicaChoice::kStatic), alone, 0, seen);
}

std::vector<std::vector<float>> run_world(const World& world, const Routing& routing, uint64_t seed, std::vector<TrafficCounts>* counted = nullptr) {
  const Layout& l = world.layout;
  auto worlds = make_inproc_worlds(l.world);
  std::vector<std::vector<float>> out(static_cast<size_t>(l.world));
  std::vector<std::thread> threads;
  if (counted) counted->resize(static_cast<size_t>(l.world));
  for (int rank = 0; rank < l.world; ++rank)
    threads.emplace_back([&, rank] {
      RankGroups groups(*worlds[static_cast<size_t>(rank)], l, 1);
      groups.set_timeout_us(60'000'000);
      const auto placement = ExpertPlacement::initial(kExperts, l.ep, l.placement, l.redundant_experts);
      const RankCoords c = l.coords(rank);
      const Slice width = even_slice(kWidth, l.moe_tp, c.moe_tp);
      Experts experts(ExpertLayout(WeightFormat::kF32, kHidden, width.count, false), placement.slots_per_rank(), {});
      const auto mine = placement.experts_of(c.ep);
      for (size_t s = 0; s < mine.size(); ++s)
        if (mine[s] != kEmptySlot) fill_expert(experts, static_cast<int64_t>(s), mine[s], width);
      const Exchanges exchanges({.layout = l, .world_rank = rank, .hidden = kHidden, .top_k = world.top_k, .num_slots = placement.slots_per_rank(),
                                 .num_experts = kExperts, .codec = world.codec, .world = groups.world.get()});
      const Input in = make_input(world, rank, routing, seed);
      out[static_cast<size_t>(rank)] = run_rounds(exchanges.for_step(world.rows), experts, ReplicaSplit(placement, world.choice), world, rank, in);
      if (counted) (*counted)[static_cast<size_t>(rank)] = groups.counters.layer(0);
    });
  for (std::thread& t : threads) t.join();
  return out;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& expected, double bound) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], bound) << i;
}

struct Kind {
  ExchangeKind exchange;
  CombineOrder combine;
};
const Kind kKinds[] = {{ExchangeKind::kAllGatherReduceScatter, CombineOrder::kExact}, {ExchangeKind::kAllGatherReduceScatter, CombineOrder::kPerRank},
                       {ExchangeKind::kAllToAll, CombineOrder::kExact}, {ExchangeKind::kAllToAll, CombineOrder::kPerRank},
                       {ExchangeKind::kAllToAllLowLatency, CombineOrder::kExact}, {ExchangeKind::kAuto, CombineOrder::kExact}};

TEST(Exchange, EveryKindUnderEveryRoutingEqualsOneRank) {
  SCOPED_TRACE(testing::seed());
  uint64_t num_cases = testing::seed();
  for (const auto& [world_size, ep] : {std::pair{2, 2}, {3, 3}, {4, 4}, {4, 2}, {5, 5}})
    for (const std::vector<int64_t>& rows : {std::vector<int64_t>{9, 1, 0, 4, 2}, {0, 0, 7, 0, 1}, {1, 1, 1, 1, 1}, {0, 1, 0, 0, 0}})
      for (const Routing& routing : routings())
        for (const Kind& kind : kKinds) {
          World world{.rows = {rows.begin(), rows.begin() + world_size}};
          if (*std::max_element(world.rows.begin(), world.rows.end()) == 0) continue;
          world.layout = {.world = world_size, .attn_dp = world_size, .ep = ep, .moe_tp = world_size / ep, .exchange = kind.exchange,
                          .placement = testing::seed() % 2 ? PlacementStrategy::kRoundRobin : PlacementStrategy::kLinear, .combine = kind.combine};
          SCOPED_TRACE(fmt::format("{} ranks, ep {}, {}, {}, {}", world_size, ep, exchange_name(kind.exchange), kind.combine == CombineOrder::kExact ? "exact" : "per rank", routing.name));
          // Experts with replicas, chosen in each way in turn, and in one pattern without.
          if (rows[2] != 7) world.layout.redundant_experts = world_size + 1, world.choice = static_cast<ReplicaChoice>(num_cases++ % 3);
          const auto got = run_world(world, routing, testing::seed());
          for (int r = 0; r < world_size; ++r) {
            const auto expected = expected_of(world, r, make_input(world, r, routing, testing::seed()));
            if (kind.combine == CombineOrder::kExact && world.layout.moe_tp == 1) ASSERT_EQ(got[static_cast<size_t>(r)], expected) << "rank " << r;
            else expect_close(got[static_cast<size_t>(r)], expected, 1e-4);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
}

// Bytes and calls of the row counts that water fill asks for are the predicted ones, also over several rounds.
TEST(Exchange, RowCountsAreSentWhereReplicasAreFilledAndCostWhatIsPredicted) {
  for (const ExchangeKind exchange : {ExchangeKind::kAllToAll, ExchangeKind::kAllToAllLowLatency})
    for (const ReplicaChoice choice : {ReplicaChoice::kStatic, ReplicaChoice::kDynamic, ReplicaChoice::kWaterFill}) {
      World world{.choice = choice, .rows = {400, 3, 0}};
      world.layout = {.world = 3, .attn_dp = 3, .ep = 3, .exchange = exchange, .redundant_experts = 3};
      std::vector<TrafficCounts> counted;
      run_world(world, routings()[0], 7, &counted);
      const int64_t chunk = exchange_chunk_rows(exchange, 3), rounds = (400 + chunk - 1) / chunk;
      for (const TrafficCounts& c : counted) {
        const TrafficCount got = c[static_cast<size_t>(Traffic::kDispatchCounts)];
        const bool is_counted = choice == ReplicaChoice::kWaterFill;
        EXPECT_EQ(got.calls, is_counted ? rounds : 0);
        EXPECT_EQ(got.bytes_sent, is_counted ? rounds * kExperts * 2 * 2 : 0);
        ModelConfig config;
        config.moe.router.num_experts = kExperts, config.moe.router.top_k = world.top_k, config.hidden_size = kHidden;
        const LayerPlan plan{.is_sparse = true, .feed_forward = {.exchange = exchange}};
        const TrafficCounts predicted = predict_layer_traffic(config, world.layout, plan, {.dp_rows = world.rows, .counts_rows = is_counted});
        EXPECT_EQ(got, predicted[static_cast<size_t>(Traffic::kDispatchCounts)]);
      }
    }
}

// An exchange that loses the last pair of each round.
class LossyExchange final : public Exchange {
 public:
  explicit LossyExchange(const ExchangeOptions& options) : inner_(make_local_exchange(options)) {}
  int64_t chunk_rows() const override { return inner_->chunk_rows(); }
  int64_t max_pairs() const override { return inner_->max_pairs(); }
  std::span<const int64_t> pairs_from() const override { return {&num_pairs_, 1}; }
  void start_dispatch(const RoutedRows& rows, std::span<const int64_t> world_rows, ReplicaSplit& replicas) override { inner_->start_dispatch(rows, world_rows, replicas); }
  std::span<const int32_t> own_slots() const override { return inner_->own_slots(); }
  ExpertPairs finish_dispatch() override {
    ExpertPairs pairs = inner_->finish_dispatch();
    num_pairs_ = static_cast<int64_t>(pairs.slot_of_pair.size()) - 1;
    pairs.slot_of_pair = pairs.slot_of_pair.first(static_cast<size_t>(num_pairs_));
    pairs.row_of_pair = pairs.row_of_pair.first(static_cast<size_t>(num_pairs_));
    return pairs;
  }
  void start_combine(const ExpertsWorkspace& outputs, ThreadPool& pool) override { inner_->start_combine(outputs, pool); }
  void finish_combine(float* out, ThreadPool& pool) override { inner_->finish_combine(out, pool); }

 private:
  std::unique_ptr<Exchange> inner_;
  int64_t num_pairs_ = 0;
};

TEST(Exchange, ALostRowEndsACheckedBuildWithItsPlace) {
  auto worlds = make_inproc_worlds(1);
  Group group("world", worlds[0]->make_transport("world", {0}));
  const ExchangeOptions options{.hidden = kHidden, .top_k = 4, .num_slots = kExperts, .codec = {.hidden = kHidden}, .world = &group};
  const World world{.rows = {5}};
  const Routing& routing = routings()[2];
  const Input in = make_input(world, 0, routing, 1);
  Experts experts(ExpertLayout(WeightFormat::kF32, kHidden, kWidth, false), kExperts, {});
  for (int32_t e = 0; e < kExperts; ++e) fill_expert(experts, e, e, {0, kWidth});
  const auto placement = ExpertPlacement::initial(kExperts, 1, PlacementStrategy::kLinear);
  const auto good = make_checked_exchange(options, make_local_exchange(options));
  EXPECT_EQ(run_rounds(*good, experts, ReplicaSplit(placement, ReplicaChoice::kStatic), world, 0, in), expected_of(world, 0, in));
  const auto lossy = make_checked_exchange(options, std::make_unique<LossyExchange>(options));
  EXPECT_DEATH(run_rounds(*lossy, experts, ReplicaSplit(placement, ReplicaChoice::kStatic), world, 0, in), "rank 0 sent 5 rows to slot 8 of rank 0, which computed 4");
}

TEST(Exchange, MoreRowsThanARoundHoldsGoInSeveral) {
  for (const Kind& kind : kKinds) {
    World world{.top_k = 3, .rows = {700, 3}};
    world.layout = {.world = 2, .attn_dp = 2, .ep = 2, .exchange = kind.exchange, .combine = kind.combine};
    const Routing& routing = routings()[kind.combine == CombineOrder::kExact ? 1 : 0];
    const auto got = run_world(world, routing, 4);
    for (int r = 0; r < 2; ++r) {
      const auto expected = expected_of(world, r, make_input(world, r, routing, 4));
      if (kind.combine == CombineOrder::kExact) ASSERT_EQ(got[static_cast<size_t>(r)], expected) << exchange_name(kind.exchange);
      else expect_close(got[static_cast<size_t>(r)], expected, 1e-4);
    }
  }
}

// Rows that are rounded to FP8 for the experts' products cross the narrow wire as those very values.
TEST(Exchange, AnFp8WireEqualsAFullOneWhenInputsAreRounded) {
  for (const Kind& kind : kKinds) {
    World full{.is_rounded = true, .rows = {20, 5, 0}};
    full.layout = {.world = 3, .attn_dp = 3, .ep = 3, .exchange = kind.exchange, .combine = kind.combine};
    World narrow = full;
    narrow.codec.is_fp8_wire = true;
    const auto a = run_world(full, routings()[0], 8), b = run_world(narrow, routings()[0], 8);
    EXPECT_EQ(a, b) << exchange_name(kind.exchange);
    World plain = full;
    plain.is_rounded = false;
    EXPECT_NE(run_world(plain, routings()[0], 8), b) << "rounding would change nothing";
  }
}

TEST(ExpertsBackend, TheTablesCpuEntriesAgreeToTheBitAndNamesAreChecked) {
  const auto placement = ExpertPlacement::initial(kExperts, 1, PlacementStrategy::kLinear);
  const World world{.rows = {37}};
  const Input in = make_input(world, 0, routings()[0], 3);
  std::vector<std::vector<float>> outs;
  for (const char* name : {"auto", "cpu_grouped", "cpu_reference"}) {
    Experts experts(ExpertLayout(WeightFormat::kF32, kHidden, kWidth, false), kExperts, {});
    for (int32_t e = 0; e < kExperts; ++e) fill_expert(experts, e, e, {0, kWidth});
    const ExpertsChoice choice = choose_experts_backend({WeightFormat::kF32}, name);
    EXPECT_EQ(choice.passed_over.size() + 1, experts_backends().size());
    experts.set_backend(*choice.backend);
    const auto exchange = make_local_exchange({.hidden = kHidden, .top_k = world.top_k, .num_slots = kExperts, .codec = {.hidden = kHidden}});
    outs.push_back(run_rounds(*exchange, experts, ReplicaSplit(placement, ReplicaChoice::kStatic), world, 0, in));
  }
  EXPECT_EQ(outs[0], outs[1]);
  EXPECT_EQ(outs[1], outs[2]);
  EXPECT_EQ(choose_experts_backend({}, "auto").backend->name, "cpu_grouped");
  for (const char* bad : {"triton", "", "cuda_grouped"}) EXPECT_THROW(choose_experts_backend({}, bad), Error) << bad;
}

TEST(RowCodec, AnFp8WireRoundsAndKeepsWhatIsRounded) {
  SCOPED_TRACE(testing::seed());
  Rng rng(testing::seed(), 2);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t n = 1 + rng.below(400);
    std::vector<float> x(static_cast<size_t>(n)), rounded(x.size()), y(x.size());
    const float magnitude = std::ldexp(1.0f, static_cast<int>(rng.below(250)) - 130);
    for (float& v : x) v = centred(rng) * magnitude;
    for (size_t i = 128; i < std::min<size_t>(x.size(), 256); ++i) x[i] = 0;
    std::vector<std::byte> bytes(static_cast<size_t>(RowCodec{n, true}.bytes()));
    round_to_fp8(x.data(), n, rounded.data());
    for (const std::vector<float>* row : {&x, &rounded}) {
      RowCodec{n, true}.write(row->data(), bytes.data());
      RowCodec{n, true}.read(bytes.data(), y.data());
      ASSERT_EQ(std::memcmp(y.data(), rounded.data(), y.size() * 4), 0) << "trial " << trial;
    }
  }
  EXPECT_EQ((RowCodec{.hidden = 7168, .is_fp8_wire = true}.bytes()), 7392);  // 1.03125 bytes a value
}

}  // namespace
}  // namespace cadre
