#include "host/capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/bytes.h"
#include "config/tensor_spec.h"
#include "parallel/kv_budget.h"
#include "parallel/rank_bytes.h"
#include "planner/start_budget.h"

namespace cadre {
namespace {

constexpr int64_t kBatch = 32;

RankBytes one_rank_bytes(const ModelConfig& config) {
  const int64_t num_experts = config.moe.router.num_experts;
  return rank_bytes(
      config, Layout{},
      num_experts > 0 ? ExpertPlacement::initial(num_experts, 1, PlacementStrategy::kLinear) : ExpertPlacement{})[0];
}

// What `cadre serve` checks before it loads.
planner::StartBudget budget_of(const ModelConfig& config, const CapacityRequest& request) {
  return planner::start_budget({.config = &config,
                                .layout = {},
                                .kv_dtype = request.kv_dtype,
                                .max_rows = request.max_num_batched_tokens,
                                .max_sequences = request.max_num_seqs,
                                .num_threads = request.num_threads,
                                .ranks = {0},
                                .memory = request.usable_bytes});
}

Finding weights_finding(const planner::StartBudget& budget) {
  Finding f{.section = "model", .name = "weights"};
  const RankBytes& weights = budget.ranks[0].weights;
  f.text = fmt::format("{} loaded, with workspaces {} of {} that this process can take", gib_text(weights.total()),
                       gib_text(budget.fixed()), gib_text(budget.memory));
  if (weights.routed > 0) f.text += fmt::format(" ({} are routed experts)", gib_text(weights.routed));
  f.values = {{"bytes", weights.total()},
              {"routed_bytes", weights.routed},
              {"fixed_bytes", budget.fixed()},
              {"usable_bytes", budget.memory}};
  if (budget.fixed() > budget.memory) {
    f.status = FindingStatus::kProblem;
    f.advice = fmt::format(
        "{} short: a machine with more memory, a smaller checkpoint, or experts spread over the ranks of several hosts "
        "(docs/ranks.md)",
        gib_text(budget.fixed() - budget.memory));
  }
  return f;
}

Finding cache_finding(const planner::StartBudget& budget, const CapacityRequest& request, int64_t max_model_len) {
  Finding f{.section = "model", .name = "KV cache"};
  const int64_t token_bytes = budget.kv_block_bytes / kKvBlockTokens;
  const int64_t tokens = kKvBlockTokens * kv_blocks_in({.bytes = kv_bytes_unless_told(budget.memory, budget.fixed()),
                                                        .token_bytes = token_bytes,
                                                        .max_num_seqs = request.max_num_seqs,
                                                        .max_model_len = max_model_len});
  f.text = fmt::format("{} tokens ({} bytes each, {} in all)", grouped_text(tokens), grouped_text(token_bytes),
                       gib_text(tokens * token_bytes));
  f.text += tokens >= max_model_len ? fmt::format(": {} sequences of the whole context of {}",
                                                  grouped_text(tokens / max_model_len), grouped_text(max_model_len))
                                    : fmt::format(": less than one context of {}", grouped_text(max_model_len));
  f.values = {{"tokens", tokens},
              {"bytes_per_token", token_bytes},
              {"bytes", tokens * token_bytes},
              {"context", max_model_len}};
  if (tokens == 0) {
    f.status = FindingStatus::kProblem;
    f.advice = "the weights leave no room: a machine with more memory, or a smaller checkpoint";
  } else if (tokens < max_model_len) {
    f.status = FindingStatus::kNote;
    f.advice =
        fmt::format("cadre serve --max-model-len {}, or more --kv-cache-memory, or --kv-cache-dtype bfloat16", tokens);
  }
  return f;
}

// Tokens a second, all sequences together.
double limit_per_second(const ModelConfig& config, const CapacityRequest& request, int64_t token_bytes,
                        int64_t num_sequences, int64_t context) {
  const DecodeStep step = decode_step(config, token_bytes, num_sequences, context);
  double seconds = step.bytes / request.read_bytes_per_s;
  if (request.fma_flops_per_s > 0) seconds = std::max(seconds, step.flops / request.fma_flops_per_s);
  return static_cast<double>(num_sequences) / seconds;
}

}  // namespace

DecodeStep decode_step(const ModelConfig& config, int64_t kv_bytes_per_token, int64_t num_sequences, int64_t context) {
  const RankBytes bytes = one_rank_bytes(config);
  const auto rows = static_cast<double>(num_sequences);
  const RouterConfig& router = config.moe.router;
  const double share =
      router.num_experts > 0 ? static_cast<double>(router.top_k) / static_cast<double>(router.num_experts) : 0;
  DecodeStep out;
  out.bytes = static_cast<double>(bytes.total() - bytes.routed) +
              static_cast<double>(bytes.routed) * (1 - std::pow(1 - share, rows));
  if (!config.tie_word_embeddings) out.bytes -= static_cast<double>(bytes.embedding);  // a row a token only
  out.bytes += static_cast<double>(kv_bytes_per_token) * rows * static_cast<double>(context);
  for (const TensorSpec& spec : checkpoint_tensors(config)) {
    if (spec.kind == TensorKind::kNextN || (spec.kind == TensorKind::kEmbedding && !config.tie_word_embeddings))
      continue;
    out.flops +=
        2 * rows * static_cast<double>(spec.parameters()) * (spec.kind == TensorKind::kRoutedExpert ? share : 1);
  }
  return out;
}

std::vector<Finding> check_capacity(const ModelConfig& config, const CapacityRequest& request) {
  std::vector<Finding> out;
  const RouterConfig& router = config.moe.router;
  Finding model{.section = "model", .name = "model"};
  model.text = fmt::format("{}, {} layers", family_name(config.family), config.num_layers);
  if (router.num_experts > 0)
    model.text += fmt::format(", {} experts of which {} a token", router.num_experts, router.top_k);
  model.text += fmt::format(", context {}", grouped_text(config.max_position));
  out.push_back(std::move(model));
  const planner::StartBudget budget = budget_of(config, request);
  const int64_t token_bytes = budget.kv_block_bytes / kKvBlockTokens;
  const int64_t max_model_len = request.max_model_len > 0 ? request.max_model_len : config.max_position;
  out.push_back(weights_finding(budget));
  if (out.back().status != FindingStatus::kProblem) out.push_back(cache_finding(budget, request, max_model_len));
  if (request.read_bytes_per_s > 0) {
    Finding f{.section = "model", .name = "decode limit"};
    const double one = limit_per_second(config, request, token_bytes, 1, 0),
                 full = limit_per_second(config, request, token_bytes, 1, max_model_len),
                 batch = limit_per_second(config, request, token_bytes, kBatch, 0);
    f.text = fmt::format(
        "at most {:.1f} tokens/s for one sequence ({:.1f} at its full context), {:.1f} for {} together, by what memory "
        "and multipliers gave above",
        one, full, batch, kBatch);
    if (budget.ranks[0].weights.total() < request.cache_bytes)
      f.text += "; more may come, as the caches hold all weights";
    f.values = {{"tokens_per_s_one", one},
                {"tokens_per_s_one_full_context", full},
                {"tokens_per_s_batch", batch},
                {"batch", kBatch},
                {"bytes_per_token", decode_step(config, token_bytes, 1, 0).bytes},
                {"flops_per_token", decode_step(config, token_bytes, 1, 0).flops}};
    out.push_back(std::move(f));
  }
  return out;
}

}  // namespace cadre
