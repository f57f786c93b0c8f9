#include "planner/start_budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/bytes.h"
#include "parallel/allocated_bytes.h"
#include "parallel/layer_plan.h"
#include "planner/memory.h"
#include "planner/report.h"

namespace cadre::planner {
namespace {

// Keys and values of a prompt's head, taken out of the latents by each thread (attention/mla.cc): positions at most.
constexpr int64_t kMostExpandedPositions = 4096;

int64_t thread_bytes(const ModelConfig& config, int64_t num_threads) {
  const AttentionConfig& a = config.attention;
  if (a.kind != AttentionKind::kMla) return 0;
  const int64_t context = std::min(config.max_position, kMostExpandedPositions);
  return kActivationBytes * context * (a.kv_lora_rank + num_threads * (a.head_dim + a.v_head_dim));
}

std::string ranks_text(size_t count) { return count == 1 ? "the rank here" : fmt::format("all {} ranks here", count); }

}  // namespace

int64_t StartBudget::fixed() const {
  int64_t sum = 0;
  for (const RankBudget& r : ranks) sum = add_counts(sum, r.fixed());
  return sum;
}

int64_t StartBudget::total() const {
  int64_t sum = 0;
  for (const RankBudget& r : ranks) sum = add_counts(sum, r.total());
  return sum;
}

int64_t StartBudget::most_kv_blocks() const {
  if (ranks.empty() || kv_block_bytes <= 0) return 0;
  return std::max<int64_t>(0, (memory - fixed()) / static_cast<int64_t>(ranks.size()) / kv_block_bytes);
}

void StartBudget::set_kv_blocks(int64_t blocks) {
  num_kv_blocks = blocks;
  for (RankBudget& r : ranks) r.kv_pool = multiply_counts(blocks, kv_block_bytes);
}

StartBudget start_budget(const StartRequest& request) {
  const ModelConfig& config = *request.config;
  const std::vector<TensorClass> classes = tensor_classes(config);
  const int64_t slots = config.moe.router.num_experts > 0 ? initial_placement(config, request.layout).slots_per_rank() : 0;
  StartBudget out;
  out.memory = std::max<int64_t>(0, request.memory);
  out.attn_dp = request.layout.attn_dp;
  out.kv_block_bytes = rank_kv_bytes_per_token(config, request.layout, request.kv_dtype) * kKvBlockTokens;
  const int64_t exchange = exchange_bytes(config, request.layout, kActivationBytes, request.is_fp8_dispatch);
  const int64_t workspace = workspace_bytes(config, request.layout, request.max_rows, request.max_sequences, kActivationBytes) +
                            thread_bytes(config, request.num_threads);
  for (const int rank : request.ranks)
    out.ranks.push_back({rank, allocated_bytes(classes, config, request.layout, slots, rank, request.quantization), exchange, workspace, 0});
  return out;
}

std::string budget_text(const StartBudget& b) {
  if (b.ranks.empty()) return "";
  const RankBudget& most =
      *std::max_element(b.ranks.begin(), b.ranks.end(), [](const RankBudget& x, const RankBudget& y) { return x.total() < y.total(); });
  const auto all = [&](auto value) {
    int64_t sum = 0;
    for (const RankBudget& r : b.ranks) sum = add_counts(sum, value(r));
    return sum;
  };
  std::string out = fmt::format("{:<28}{:>22}{:>22}\n", "bytes", fmt::format("rank {}", most.rank), ranks_text(b.ranks.size()));
  const auto row = [&](std::string_view what, int64_t one, int64_t sum) {
    out += fmt::format("{:<28}{:>22}{:>22}\n", what, thousands(one), thousands(sum));
  };
  const auto parts = weight_rows(most.weights);
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].second > 0)
      row("  " + parts[i].first, parts[i].second, all([&](const RankBudget& r) { return weight_rows(r.weights)[i].second; }));
  row("weights", most.weights.total(), all([](const RankBudget& r) { return r.weights.total(); }));
  row("KV pool", most.kv_pool, all([](const RankBudget& r) { return r.kv_pool; }));
  row("exchange buffers, about", most.exchange, all([](const RankBudget& r) { return r.exchange; }));
  row("workspaces, about", most.workspace, all([](const RankBudget& r) { return r.workspace; }));
  row("in all", most.total(), b.total());
  out += fmt::format("{:<28}{:>44}\n", "memory that is free", thousands(b.memory));
  out +=
      fmt::format("{:<28}{:>44}\n", b.missing() > 0 ? "missing" : "left", thousands(b.missing() > 0 ? b.missing() : b.memory - b.total()));
  const int64_t tokens = b.num_kv_blocks * kKvBlockTokens;
  return out + fmt::format("KV cache: {} blocks, {} tokens a rank, {} distinct tokens in all\n", thousands(b.num_kv_blocks),
                           thousands(tokens), thousands(multiply_counts(tokens, b.attn_dp)));
}

json::object budget_json(const StartBudget& b) {
  json::array ranks;
  for (const RankBudget& r : b.ranks) {
    json::object weights;
    for (const auto& [what, bytes] : weight_rows(r.weights)) weights[what] = bytes;
    ranks.push_back({{"rank", r.rank},
                     {"weights", r.weights.total()},
                     {"weights_by_kind", std::move(weights)},
                     {"kv_pool", r.kv_pool},
                     {"exchange", r.exchange},
                     {"workspace", r.workspace},
                     {"total", r.total()}});
  }
  return {{"fits", b.missing() == 0},
          {"memory", b.memory},
          {"total", b.total()},
          {"missing", b.missing()},
          {"num_kv_blocks", b.num_kv_blocks},
          {"tokens_per_rank", b.num_kv_blocks * kKvBlockTokens},
          {"tokens_in_all", b.num_kv_blocks * kKvBlockTokens * b.attn_dp},
          {"ranks", std::move(ranks)}};
}

void refuse_what_does_not_fit(const StartBudget& b) {
  if (b.missing() == 0) return;
  const int64_t blocks = b.most_kv_blocks();
  const std::string remedy = blocks > 0 ? fmt::format("--num-kv-blocks {} would do", blocks)
                                        : fmt::format(
                                              "weights and buffers alone take {}: use fewer rows (--max-num-batched-tokens), a smaller or "
                                              "quantised checkpoint, or ranks on more machines",
                                              bytes_si(static_cast<double>(b.fixed())));
  throw invalid_input("expected a run that fits the {} of free memory, found one that takes {} ({} short); {}",
                      bytes_si(static_cast<double>(b.memory)), bytes_si(static_cast<double>(b.total())),
                      bytes_si(static_cast<double>(b.missing())), remedy);
}

}  // namespace cadre::planner
