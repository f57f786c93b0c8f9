#include "parallel/options.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "config/test_configs.h"
#include "parallel/expert_placement.h"
#include "parallel/layer_plan.h"
#include "parallel/layout_rules.h"
#include "tests/testing.h"

namespace cadre {
namespace {

using Options = ParallelOptions;
using Set = std::function<void(Options&)>;

ModelConfig config_of(std::string_view type, std::string_view changes = "{}") { return parse_model_config(testing::small_config_with(type, changes)); }
ModelConfig mxfp4() { return config_of("gpt_oss", R"({"intermediate_size": 64, "quantization_config": {"quant_method": "mxfp4"}})"); }

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string refusal(const Options& options, const ModelConfig& config) {
  try {
    resolve_layout(options, config);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

bool has_note(const ResolvedLayout& r, std::string_view part) {
  for (const std::string& note : r.notes)
    if (contains(note, part)) return true;
  return false;
}

// Rules that speak, up to the first refusal.
std::set<std::string_view> speaking(const Options& options, const ModelConfig& config) {
  const LayoutDraft draft(options, config, DType::kF32);
  std::set<std::string_view> out;
  for (const LayoutRule& rule : layout_rules()) {
    if (rule.find(draft).flag.empty()) continue;
    out.insert(rule.name);
    if (rule.effect == LayoutRule::Effect::kRefusal) break;
  }
  return out;
}

// Written options by name, and whether the layout does literally what was written.
struct Written {
  std::string_view flag;
  bool is_literal;
};
std::vector<Written> written(const Options& o, const ResolvedLayout& r) {
  const Layout& l = r.layout;
  std::vector<Written> out;
  const auto size = [&](std::string_view flag, const std::optional<int>& value, int effective) {
    if (value) out.push_back({flag, *value == effective});
  };
  size("--tp-size", o.tp_size, l.world);
  size("--dp-size", o.dp_size, l.attn_dp);
  size("--ep-size", o.ep_size, l.ep);
  size("--attn-cp-size", o.attn_cp_size, l.attn_cp);
  size("--moe-dense-tp-size", o.moe_dense_tp_size, l.dense_tp);
  size("--tensor-parallel-size", o.tensor_parallel_size, l.attn_tp);
  size("--data-parallel-size", o.data_parallel_size, l.attn_dp);
  size("--prefill-context-parallel-size", o.prefill_context_parallel_size, l.attn_cp);
  const auto name = [&](std::string_view flag, const std::optional<std::string>& value, std::string_view effective) {
    if (value) out.push_back({flag, *value == effective});
  };
  name("--moe-a2a-backend", o.moe_a2a_backend, exchange_name(l.exchange));
  name("--all2all-backend", o.all2all_backend, exchange_name(l.exchange));
  name("--expert-placement-strategy", o.expert_placement_strategy, l.ep == 1 ? "" : l.placement == PlacementStrategy::kLinear ? "linear" : "round_robin");
  name("--dispatch-dtype", o.dispatch_dtype, r.is_fp8_dispatch ? "fp8" : "auto");
  name("--combine-order", o.combine_order, l.ep == 1 ? "" : l.combine == CombineOrder::kExact ? "exact" : "per_rank");
  if (o.enable_dp_attention) out.push_back({"--enable-dp-attention", l.attn_dp > 1});
  if (o.enable_expert_parallel) out.push_back({"--enable-expert-parallel", l.ep > 1 && l.ep == l.world && l.moe_tp == 1});
  if (o.enable_eplb) out.push_back({"--enable-eplb", r.is_eplb_enabled});
  return out;
}

void expect_sound(const Options& o, const ModelConfig& c, const ResolvedLayout& r) {
  const Layout& l = r.layout;
  ASSERT_EQ(l.attn_dp * l.attn_cp * l.attn_tp, l.world);
  ASSERT_EQ(l.ep * l.moe_tp, l.world);
  ASSERT_TRUE(l.dense_tp == 1 || l.dense_tp == l.attn_tp || l.dense_tp == l.world);
  ASSERT_EQ(l.exchange == ExchangeKind::kNone, l.ep == 1);
  ASSERT_EQ(c.attention.num_heads % l.attn_tp, 0);
  for (int rank = 0; rank < l.world; ++rank) {
    const RankCoords at = l.coords(rank);
    ASSERT_EQ((at.attn_dp * l.attn_cp + at.attn_cp) * l.attn_tp + at.attn_tp, rank);
    if (c.attention.kind == AttentionKind::kGqa) { ASSERT_GE(kv_head_slice(c.attention.num_kv_heads, l.attn_tp, at.attn_tp).count, 1); }
  }
  if (c.moe.router.num_experts > 0) {
    ASSERT_EQ(ExpertPlacement::initial(c.moe.router.num_experts, l.ep, l.placement).ep(), l.ep);
    ASSERT_EQ(c.moe.expert_intermediate % l.moe_tp, 0);
    if (c.quant == WeightQuant::kMxfp4) { ASSERT_EQ(c.moe.expert_intermediate / l.moe_tp % 32, 0); }
    if (l.ep == 1) { ASSERT_EQ(c.moe.shared_intermediate % l.moe_tp, 0); }
  }
  ASSERT_EQ(static_cast<int64_t>(plan_layers(c, l).size()), c.num_layers);
  if (l.world > 1) { ASSERT_FALSE(written(o, r).empty()); }
  for (const auto& [flag, is_literal] : written(o, r))
    if (!is_literal) { ASSERT_TRUE(has_note(r, flag)) << flag << " was changed silently"; }
  for (const std::string& note : r.notes) ASSERT_TRUE(note.starts_with("--") && contains(note, ": ")) << note;
}

struct Choice {
  std::string_view flag;
  std::vector<Set> values;
};

template <typename T, typename V>
Choice choice(std::string_view flag, T Options::*member, std::vector<V> values) {
  Choice out{flag, {}};
  for (const V& v : values) out.values.push_back([member, v](Options& o) { o.*member = T(v); });
  return out;
}

const std::vector<Choice>& choices() {
  static const std::vector<int> kSizes{0, 1, 2, 3, 4, 8, 5000, -7};
  static const std::vector<std::string> kNames{"auto", "none", "allgather_reducescatter", "alltoall", "deepep", "deepep_high_throughput", "deepep_low_latency", "naive", "pplx", "mooncake", ""};
  static const std::vector<Choice> all = {
      choice("--tp-size", &Options::tp_size, kSizes),
      choice("--dp-size", &Options::dp_size, kSizes),
      choice("--ep-size", &Options::ep_size, kSizes),
      choice("--attn-cp-size", &Options::attn_cp_size, kSizes),
      choice("--moe-dense-tp-size", &Options::moe_dense_tp_size, kSizes),
      choice("--enable-dp-attention", &Options::enable_dp_attention, std::vector<bool>{true}),
      choice("--moe-a2a-backend", &Options::moe_a2a_backend, kNames),
      choice("--tensor-parallel-size", &Options::tensor_parallel_size, kSizes),
      choice("--data-parallel-size", &Options::data_parallel_size, kSizes),
      choice("--prefill-context-parallel-size", &Options::prefill_context_parallel_size, kSizes),
      choice("--enable-expert-parallel", &Options::enable_expert_parallel, std::vector<bool>{true}),
      choice("--all2all-backend", &Options::all2all_backend, kNames),
      choice("--expert-placement-strategy", &Options::expert_placement_strategy, std::vector<std::string>{"linear", "round_robin", "random"}),
      choice("--enable-eplb", &Options::enable_eplb, std::vector<bool>{true}),
      choice("--dispatch-dtype", &Options::dispatch_dtype, std::vector<std::string>{"auto", "fp8", "int3"}),
      choice("--combine-order", &Options::combine_order, std::vector<std::string>{"exact", "per_rank", "sorted"}),
  };
  return all;
}

std::vector<ModelConfig> models() {
  std::vector<ModelConfig> out{mxfp4()};
  for (const std::string_view type : testing::kModelTypes) out.push_back(config_of(type));
  return out;
}

TEST(LayoutOptions, EveryPairRunsOrIsRefusedByTheNameOfOneOfThem) {
  // On top of nothing, and of a layout in each spelling.
  const std::pair<std::vector<std::string_view>, Set> bases[] = {
      {{}, [](Options&) {}},
      {{"--tp-size", "--dp-size", "--enable-dp-attention"}, [](Options& o) { o.tp_size = 4, o.dp_size = 2, o.enable_dp_attention = true; }},
      {{"--tensor-parallel-size", "--data-parallel-size"}, [](Options& o) { o.tensor_parallel_size = 2, o.data_parallel_size = 2; }}};
  int64_t num_resolved = 0, num_refused = 0;
  for (const ModelConfig& config : {config_of("qwen3_moe"), config_of("deepseek_v3"), config_of("llama"), mxfp4()})
    for (const auto& [base_flags, base] : bases)
      for (size_t a = 0; a < choices().size(); ++a)
        for (size_t b = a; b < choices().size(); ++b)
          for (const Set& set_a : choices()[a].values)
            for (const Set& set_b : choices()[b].values) {
              Options options;
              base(options), set_a(options), set_b(options);
              std::vector<std::string_view> flags = base_flags;
              flags.push_back(choices()[a].flag), flags.push_back(choices()[b].flag);
              try {
                const ResolvedLayout resolved = resolve_layout(options, config);
                expect_sound(options, config, resolved);
                ++num_resolved;
              } catch (const Error& e) {
                const std::string_view text = e.what();
                ++num_refused;
                bool is_named = false;
                for (const std::string_view flag : flags) is_named |= contains(text, flag);
                EXPECT_TRUE(is_named) << text << " for " << choices()[a].flag << " and " << choices()[b].flag;
                EXPECT_TRUE(contains(text, "expected") && contains(text, "found") && contains(text, "; ")) << text;
              }
              if (::testing::Test::HasFailure()) FAIL() << choices()[a].flag << " and " << choices()[b].flag;
            }
  EXPECT_GT(num_resolved, 1000);
  EXPECT_GT(num_refused, 1000);
}

TEST(LayoutOptions, RandomCombinationsAreSoundOrRefused) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE(seed);
  Rng rng(seed);
  const auto configs = models();
  int64_t num_resolved = 0;
  for (int round = 0; round < 30000; ++round) {
    Options options;
    const bool is_vllm = rng.below(2) == 0;
    for (size_t c = 0; c < choices().size(); ++c) {
      // Mostly one spelling and sensible sizes, so that many resolve.
      const bool is_other_spelling = is_vllm ? c < 7 : c >= 7 && c < 12;
      if (rng.below(is_other_spelling ? 60 : 2) != 0) continue;
      const auto& values = choices()[c].values;
      const bool is_size = values.size() == 8;
      values[is_size && rng.below(20) != 0 ? 1 + rng.below(5) : rng.below(static_cast<uint32_t>(values.size()))](options);
    }
    const ModelConfig& config = configs[rng.below(static_cast<uint32_t>(configs.size()))];
    try {
      const ResolvedLayout resolved = resolve_layout(options, config);
      expect_sound(options, config, resolved);
      ++num_resolved;
    } catch (const Error& e) {
      EXPECT_TRUE(contains(e.what(), "--")) << e.what();
    }
    if (::testing::Test::HasFailure()) FAIL() << "round " << round;
  }
  EXPECT_GT(num_resolved, 1000);
}

// One case for each rule at least, and what its sentence has to hold.
struct RuleCase {
  std::string_view rule;
  ModelConfig config;
  Set set;
  std::string_view part;
};
std::vector<RuleCase> rule_cases() {
  const ModelConfig qwen = config_of("qwen3_moe"), deepseek = config_of("deepseek_v3"), llama = config_of("llama");  // heads 8/2, 4, 8/2
  return {
      {"one spelling", qwen, [](Options& o) { o.tp_size = 2, o.enable_expert_parallel = true; }, "--tp-size"},
      {"one spelling", qwen, [](Options& o) { o.tensor_parallel_size = 2, o.moe_a2a_backend = "deepep"; }, "--moe-a2a-backend"},
      {"sizes from one", qwen, [](Options& o) { o.dp_size = 0; }, "--dp-size: expected a number of ranks from 1, found 0"},
      {"bounded world", qwen, [](Options& o) { o.tensor_parallel_size = 100, o.data_parallel_size = 100; }, "found 10000"},
      {"known exchange", qwen, [](Options& o) { o.all2all_backend = "mooncake"; }, "alltoall_low_latency"},
      {"known placement", qwen, [](Options& o) { o.expert_placement_strategy = "random"; }, "linear or round_robin"},
      {"known dispatch type", qwen, [](Options& o) { o.dispatch_dtype = "int8"; }, "int8"},
      {"known combine order", qwen, [](Options& o) { o.combine_order = "any"; }, "per_rank"},
      {"replicas are servers", qwen, [](Options& o) { o.tp_size = 4, o.dp_size = 2; }, "start one server for each"},
      {"attention groups of one size", qwen, [](Options& o) { o.tp_size = 4, o.dp_size = 3, o.enable_dp_attention = true; }, "multiple of --dp-size 3"},
      {"attention groups of one size", qwen, [](Options& o) { o.tp_size = 4, o.dp_size = 2, o.attn_cp_size = 4, o.enable_dp_attention = true; }, "--attn-cp-size 4"},
      {"expert groups of one size", qwen, [](Options& o) { o.tp_size = 4, o.ep_size = 3; }, "divisor of the 4 ranks, found 3"},
      {"dense groups", deepseek, [](Options& o) { o.tp_size = 8, o.dp_size = 2, o.enable_dp_attention = true, o.moe_dense_tp_size = 2; },
       "expected 1, attention's tensor parallelism (4) or all ranks (8)"},
      {"expert parallelism needs experts", llama, [](Options& o) { o.data_parallel_size = 2, o.enable_expert_parallel = true; }, "llama"},
      {"an expert for every rank", config_of("mixtral"), [](Options& o) { o.tp_size = 16, o.dp_size = 16, o.enable_dp_attention = true, o.ep_size = 16; }, "8 experts, found 16"},
      {"balancing needs expert parallelism", qwen, [](Options& o) { o.tp_size = 2, o.enable_eplb = true; }, "--ep-size"},
      {"replicas for every rank at most", qwen, [](Options& o) { o.tp_size = 2, o.ep_size = 2, o.num_redundant_experts = 1000; }, "every expert on every rank"},
      {"replicas for every rank at most", qwen, [](Options& o) { o.tp_size = 2, o.ep_size = 2, o.num_redundant_experts = -1; }, "found -1"},
      {"balancing needs expert parallelism", qwen, [](Options& o) { o.data_parallel_size = 2, o.enable_eplb = true; }, "--enable-expert-parallel"},
      {"dispatch needs expert parallelism", qwen, [](Options& o) { o.tp_size = 2, o.moe_a2a_backend = "deepep"; }, "experts split over 2 ranks"},
      {"whole query heads", qwen, [](Options& o) { o.tp_size = 16; }, "8 query heads, found 16"},
      {"whole KV heads", config_of("qwen3_moe", R"({"num_attention_heads": 12, "num_key_value_heads": 4})"), [](Options& o) { o.tp_size = 6; }, "4 KV heads"},
      {"dense width", config_of("llama", R"({"intermediate_size": 98})"), [](Options& o) { o.tp_size = 4; }, "width 98"},
      {"expert width", config_of("qwen3_moe", R"({"moe_intermediate_size": 34})"), [](Options& o) { o.tp_size = 4; }, "width 34"},
      {"MXFP4 blocks", mxfp4(), [](Options& o) { o.tp_size = 4; }, "slices of 16"},
      {"shared width", config_of("qwen2_moe", R"({"shared_expert_intermediate_size": 50})"), [](Options& o) { o.tp_size = 4; }, "shared experts' width 50, found 4"},
      {"removed exchange", qwen, [](Options& o) { o.data_parallel_size = 2, o.enable_expert_parallel = true, o.all2all_backend = "pplx"; }, "allgather_reducescatter takes its place"},
      {"exchange alias", qwen, [](Options& o) { o.tp_size = 2, o.ep_size = 2, o.moe_a2a_backend = "deepep"; }, "read as alltoall"},
      {"exchange for nobody", qwen, [](Options& o) { o.data_parallel_size = 2, o.all2all_backend = "allgather_reducescatter"; }, "experts split over 2 ranks"},
      {"exchange for nobody", llama, [](Options& o) { o.tp_size = 2, o.moe_a2a_backend = "deepep"; }, "without experts"},
      {"exchange chosen", qwen, [](Options& o) { o.tp_size = 2, o.ep_size = 2; }, "auto"},
      {"all rows everywhere", qwen, [](Options& o) { o.tp_size = 2, o.ep_size = 2, o.moe_a2a_backend = "none"; }, "runs as allgather_reducescatter"},
      {"cost of all rows everywhere", qwen, [](Options& o) { o.data_parallel_size = 4, o.enable_expert_parallel = true, o.all2all_backend = "allgather_reducescatter"; }, "all 3 other ranks"},
      {"expert parallelism on one rank", qwen, [](Options& o) { o.enable_expert_parallel = true; }, "does nothing on one rank"},
      {"balancing on one rank", qwen, [](Options& o) { o.enable_expert_parallel = true, o.enable_eplb = true; }, "does nothing on one rank"},
      {"balancing without the exact order", qwen, [](Options& o) { o.tp_size = 2, o.ep_size = 2, o.enable_eplb = true, o.combine_order = "per_rank"; }, "whenever experts move"},
      {"replicas without expert parallelism", qwen, [](Options& o) { o.tp_size = 2, o.num_redundant_experts = 4; }, "does nothing without expert parallelism"},
      {"data-parallel attention of one", qwen, [](Options& o) { o.tp_size = 2, o.enable_dp_attention = true; }, "does nothing"},
      {"placement without expert parallelism", qwen, [](Options& o) { o.tp_size = 2, o.expert_placement_strategy = "round_robin"; }, "does nothing"},
      {"dispatch type without dispatch", qwen, [](Options& o) { o.tp_size = 2, o.dispatch_dtype = "fp8"; }, "does nothing"},
      {"dispatch in fp8", qwen, [](Options& o) { o.tp_size = 2, o.ep_size = 2, o.dispatch_dtype = "fp8"; }, "68 bytes a row instead of 256"},
      {"combine order without combine", qwen, [](Options& o) { o.tp_size = 2, o.combine_order = "exact"; }, "does nothing"},
      {"combine per rank", qwen, [](Options& o) { o.tp_size = 2, o.ep_size = 2, o.combine_order = "per_rank"; }, "last bits"},
      {"dense degree without dense layers", qwen, [](Options& o) { o.tp_size = 2, o.moe_dense_tp_size = 1; }, "does nothing"},
      {"uneven experts", qwen, [](Options& o) { o.tp_size = 3, o.dp_size = 3, o.enable_dp_attention = true, o.ep_size = 3; }, "6 on each of the first 1, 5 on the others"},
      // 4 layers, head dim 32, float32: 2 * 2 * 32 * 4 * 4 bytes once, four times that on 8 ranks.
      {"replicated KV heads", qwen, [](Options& o) { o.tp_size = 8; }, "2 KV heads over 8 ranks: each head is cached on 4 of them, 8192 bytes a token in all instead of 2048"},
      // 3 layers of 32 + 16 values.
      {"replicated latents", deepseek, [](Options& o) { o.tp_size = 4; }, "2304 bytes a token in all instead of 576"},
      {"FP8 blocks", load_model_config(testing::source_dir() / "tests/reference/deepseek_v3_fp8"), [](Options& o) { o.tp_size = 2; },
       "cuts attention, dense layers, experts, shared experts inside FP8 blocks"},
      {"context parallelism", qwen, [](Options& o) { o.tp_size = 4, o.attn_cp_size = 2; }, "cannot run yet"},
  };
}

TEST(LayoutOptions, EveryRuleSpeaksAndSaysWhy) {
  std::set<std::string_view> tried;
  for (const RuleCase& c : rule_cases()) {
    SCOPED_TRACE(c.rule);
    Options options;
    c.set(options);
    tried.insert(c.rule);
    EXPECT_TRUE(speaking(options, c.config).contains(c.rule));
    const std::string text = refusal(options, c.config);
    if (!text.empty()) EXPECT_TRUE(contains(text, c.part)) << text;
    else EXPECT_TRUE(has_note(resolve_layout(options, c.config), c.part)) << c.part;
  }
  for (const LayoutRule& rule : layout_rules()) EXPECT_TRUE(tried.contains(rule.name)) << rule.name;
}

TEST(LayoutOptions, SharedExpertsAreSplitOnlyWithoutExpertParallelism) {
  const ModelConfig config = config_of("qwen2_moe", R"({"shared_expert_intermediate_size": 50})");
  Options options;
  options.tp_size = 4, options.dp_size = 4, options.enable_dp_attention = true;
  EXPECT_TRUE(contains(refusal(options, config), "shared experts' width 50"));
  options.ep_size = 2;
  EXPECT_EQ(refusal(options, config), "");
}

TEST(LayoutOptions, NothingWrittenIsOneRankAndNoNotes) {
  for (const ModelConfig& config : models()) {
    const ResolvedLayout r = resolve_layout({}, config);
    EXPECT_EQ(r.layout, Layout{});
    EXPECT_TRUE(r.notes.empty());
  }
}

TEST(LayoutOptions, TheSeedsDeepseekLaunchLine) {
  Options o;
  o.tp_size = 8, o.dp_size = 8, o.ep_size = 8, o.enable_dp_attention = true, o.moe_a2a_backend = "deepep", o.enable_eplb = true;
  const ResolvedLayout r = resolve_layout(o, config_of("deepseek_v3"));
  EXPECT_EQ(r.layout, (Layout{.world = 8, .attn_dp = 8, .ep = 8, .exchange = ExchangeKind::kAllToAll}));
  EXPECT_TRUE(r.is_eplb_enabled);
  EXPECT_EQ(r.notes.size(), 1u);  // the alias
}

TEST(LayoutOptions, VllmsSixCases) {
  const ModelConfig config = config_of("qwen3_moe");
  const auto layout = [&](int tp, int dp, int pcp, bool ep) {
    Options o;
    o.tensor_parallel_size = tp, o.data_parallel_size = dp, o.prefill_context_parallel_size = pcp, o.enable_expert_parallel = ep;
    return resolve_layout(o, config).layout;
  };
  for (const auto [tp, dp, pcp] : {std::array{2, 1, 1}, std::array{1, 2, 1}, std::array{2, 2, 1}, std::array{2, 1, 2}, std::array{1, 2, 2}, std::array{2, 2, 2}}) {
    const int world = tp * dp * pcp;
    for (const bool ep : {false, true})
      EXPECT_EQ(layout(tp, dp, pcp, ep), (Layout{.world = world, .attn_dp = dp, .attn_cp = pcp, .attn_tp = tp, .ep = ep ? world : 1, .moe_tp = ep ? 1 : world, .dense_tp = tp,
                                                 .exchange = ep ? ExchangeKind::kAuto : ExchangeKind::kNone}));
  }
}

TEST(LayoutOptions, ExpertParallelismOfAnyDegreeBeyondBothEngines) {
  Options o;
  o.tp_size = 4, o.dp_size = 4, o.enable_dp_attention = true, o.ep_size = 2;
  const Layout l = resolve_layout(o, config_of("qwen3_moe")).layout;
  EXPECT_EQ(l.ep, 2);
  EXPECT_EQ(l.moe_tp, 2);
  Options three;
  three.data_parallel_size = 3, three.enable_expert_parallel = true;
  EXPECT_EQ(resolve_layout(three, config_of("deepseek_v3", R"({"n_routed_experts": 256})")).layout.ep, 3);
}

TEST(LayoutOptions, TheAllGatherNoteNamesTheModelsOwnFigures) {
  Options o;
  o.data_parallel_size = 8, o.enable_expert_parallel = true, o.all2all_backend = "allgather_reducescatter", o.combine_order = "per_rank";
  const ModelConfig config = config_of("deepseek_v3", R"({"hidden_size": 7168, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4})");
  const ResolvedLayout r = resolve_layout(o, config);
  // Out and back: 7 * (2 * 28672 + 64) against 4.63282 * (2 * 28672 + 4) + 7 * 8.
  EXPECT_TRUE(has_note(r, "all 7 other ranks, 401856 bytes")) << r.notes[0];
  EXPECT_TRUE(has_note(r, "alltoall to 4.63 of them when experts are equally likely, 265739 bytes, 34 % less")) << r.notes[0];
  o.data_parallel_size = 2;
  EXPECT_FALSE(has_note(resolve_layout(o, config), "% less"));  // said from four ranks on
}

TEST(LayoutOptions, SomeLegalLayoutsCannotRunYet) {
  Options o;
  o.tp_size = 4, o.attn_cp_size = 2, o.ep_size = 4;
  EXPECT_THROW(refuse_unrunnable(resolve_layout(o, config_of("qwen3_moe"))), Error);
  o.attn_cp_size = 1;
  EXPECT_NO_THROW(refuse_unrunnable(resolve_layout(o, config_of("qwen3_moe"))));
  o.enable_eplb = true, o.num_redundant_experts = 4;
  EXPECT_NO_THROW(refuse_unrunnable(resolve_layout(o, config_of("qwen3_moe"))));
  EXPECT_EQ(resolve_layout(o, config_of("qwen3_moe")).layout.redundant_experts, 4);
}

}  // namespace
}  // namespace cadre
