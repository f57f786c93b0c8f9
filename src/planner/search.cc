#include "planner/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "parallel/expert_load.h"
#include "parallel/layer_plan.h"

namespace cadre::planner {
namespace {

constexpr int kSearchRanksWeighed = 2;
constexpr size_t kRemediesShown = 3;

std::vector<int> divisors(int n) {
  std::vector<int> out;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) out.push_back(d);
  return out;
}

std::string gb(double bytes) { return fmt::format("{:.1f} GB", bytes / 1e9); }

MemoryOptions memory_options(const PlanRequest& request, const ResolvedLayout& resolved, int ranks_weighed) {
  return {.kv_value_bytes = request.kv_value_bytes,
          .max_rows = request.prefill_rows,
          .max_sequences = std::min(request.max_batch_per_rank, request.prefill_rows),
          .activation_bytes = request.hardware.is_cpu ? kActivationBytes : 2,
          .is_fp8_dispatch = resolved.is_fp8_dispatch,
          .ranks_weighed = ranks_weighed};
}

// Of a recorded load, on the placement that the layout starts with.
double balancedness_of(const PlanRequest& request, const ModelConfig& config, const Layout& layout) {
  if (!request.load || layout.ep == 1) return request.balancedness;
  Balancedness out;
  const ExpertPlacement placement = initial_placement(config, layout);
  for (const auto& rows : *request.load)
    if (static_cast<int64_t>(rows.size()) == config.moe.router.num_experts) out.add(rank_loads(placement, rows));
  return std::clamp(out.value(), 1e-3, 1.0);
}

StepShape decode_shape(const PlanRequest& request, int64_t rows) { return {.decode_rows = rows, .decode_context = rows * request.context}; }

// Where the cache takes what is there, rows are as many as fit; a limit on the time of a token may make them fewer.
int64_t choose_batch(const StepTimeModel& time, const PlanRequest& request, const Candidate& c) {
  const int64_t held = c.memory.tokens / std::max<int64_t>(1, request.context);
  const int64_t asked_ranks = int64_t{c.layout.attn_dp} * c.replicas;
  if (request.batch > 0) return std::min(held, (request.batch + asked_ranks - 1) / asked_ranks);
  int64_t high = std::min(held, request.max_batch_per_rank);
  const auto is_slow = [&](int64_t rows) {
    return request.max_tpot_us > 0 && time.uniform(decode_shape(request, rows)).total_us() > request.max_tpot_us;
  };
  if (high < 1 || !is_slow(high)) return high;
  int64_t low = 0;  // fast enough, or nothing
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (is_slow(middle) ? high : low) = middle;
  }
  return low;
}

void add_times(const PlannedModel& model, const PlanRequest& request, Candidate* c) {
  const StepTimeModel time(model, c->layout, request.hardware,
                           {.kv_value_bytes = request.kv_value_bytes,
                            .is_fp8_dispatch = c->is_fp8_dispatch,
                            .balancedness = c->balancedness,
                            .ranks_per_domain = ranks_per_domain(request)});
  const double ranks = static_cast<double>(c->layout.attn_dp) * c->replicas;
  c->batch_per_rank = c->memory.missing > 0 ? 0 : choose_batch(time, request, *c);
  const int64_t rows = std::max<int64_t>(1, c->batch_per_rank);
  c->decode = time.uniform(decode_shape(request, rows));
  c->tpot_us = c->decode.total_us();
  if (c->memory.missing == 0) {
    if (c->memory.tokens < request.context)
      c->missing.push_back(fmt::format("the KV pool holds {} tokens a rank, a sequence needs {}", c->memory.tokens, request.context));
    else if (c->batch_per_rank == 0 || (request.max_tpot_us > 0 && c->tpot_us > request.max_tpot_us))
      c->missing.push_back(fmt::format("a token takes {:.1f} ms with {} {} a rank, {:.1f} allowed", c->tpot_us / 1e3, rows,
                                       rows == 1 ? "sequence" : "sequences", request.max_tpot_us / 1e3));
    else if (request.batch > 0 && c->batch_per_rank * static_cast<int64_t>(ranks) < request.batch)
      c->missing.push_back(fmt::format("the KV pools hold {} sequences of {} tokens, {} asked",
                                       c->batch_per_rank * static_cast<int64_t>(ranks), request.context, request.batch));
  }
  if (c->fits()) c->tokens_per_s = static_cast<double>(c->batch_per_rank) * ranks / c->tpot_us * 1e6;
  const int64_t n = request.prefill_rows;
  c->prefill = time.uniform({.prefill_rows = n, .prefill_pairs = n * (n + 1) / 2});
  c->prefill_tokens_per_s = static_cast<double>(n) * ranks / c->prefill.total_us() * 1e6;
}

// Every combination of flags for `world` ranks.
std::vector<ParallelOptions> combinations(const ModelConfig& config, const PlanRequest& request, int world) {
  const bool has_experts = config.moe.router.num_experts > 0;
  const bool has_dense = std::any_of(config.layers.begin(), config.layers.end(), [](const LayerConfig& l) { return !l.is_sparse; });
  // Rows cross narrowed where experts take them so; on CPUs answers would change.
  const bool narrows = !request.hardware.is_cpu && (config.quant == WeightQuant::kFp8Block || request.weight_type == WeightType::kFp8 ||
                                                    request.weight_type == WeightType::kNvfp4);
  std::vector<ParallelOptions> out;
  for (const int dp : divisors(world))
    for (const int ep : has_experts ? divisors(world) : std::vector<int>{1})
      for (const int dense : std::vector<int>{0, 1, world}) {
        if (dense != 0 && (!has_dense || dense == world / dp)) continue;
        for (const char* exchange : {"auto", "allgather_reducescatter"}) {
          if (ep == 1 && std::string_view(exchange) != "auto") continue;
          ParallelOptions o;
          o.tp_size = world;
          if (dp > 1) o.dp_size = dp, o.enable_dp_attention = true;
          if (dense != 0) o.moe_dense_tp_size = dense;
          if (ep > 1) {
            o.ep_size = ep, o.moe_a2a_backend = exchange;
            if (!request.hardware.is_cpu) o.combine_order = "per_rank";
            if (narrows) o.dispatch_dtype = "fp8";
            if (request.redundant_experts > 0) o.num_redundant_experts = request.redundant_experts, o.enable_eplb = true;
          }
          out.push_back(std::move(o));
        }
      }
  return out;
}

std::optional<ResolvedLayout> resolved_if_legal(const ParallelOptions& options, const ModelConfig& config) {
  try {
    return resolve_layout(options, config, DType::kBF16);
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool fits_somehow(const PlannedModel& model, const PlanRequest& request, int world) {
  for (const ParallelOptions& o : combinations(model.config(), request, world)) {
    if (o.moe_a2a_backend == "allgather_reducescatter") continue;
    const auto resolved = resolved_if_legal(o, model.config());
    if (!resolved) continue;
    const MemoryBudget m = plan_memory(model, resolved->layout, request.hardware, memory_options(request, *resolved, 1));
    if (m.missing == 0 && m.tokens >= request.context) return true;
  }
  return false;
}

// The same kind of layout on more ranks: what was all of them stays all of them, heads stay split as they were.
ParallelOptions on_more_ranks(const Candidate& c, int world) {
  ParallelOptions o = c.options;
  const int attn_tp = c.layout.attn_dp == 1 ? world : c.layout.attn_tp;
  o.tp_size = world;
  if (c.layout.attn_dp > 1) o.dp_size = world / attn_tp;
  if (c.layout.ep > 1) o.ep_size = world / c.layout.moe_tp;
  if (o.moe_dense_tp_size == c.layout.world && c.layout.world > 1) o.moe_dense_tp_size = world;
  return o;
}

bool fits_memory(const PlannedModel& model, const PlanRequest& request, const ParallelOptions& options) {
  const auto resolved = resolved_if_legal(options, model.config());
  if (!resolved || resolved->layout.world != options.tp_size) return false;
  const MemoryBudget m = plan_memory(model, resolved->layout, request.hardware, memory_options(request, *resolved, kSearchRanksWeighed));
  return m.missing == 0 && m.tokens >= request.context;
}

// What would make a layout fit: more devices, a smaller cache, shorter sequences, smaller weights.
std::string remedy_of(const PlannedModel& model, const PlanRequest& request, const Candidate& c, const std::vector<PlannedModel>& smaller) {
  std::vector<std::string> ways;
  if (c.memory.missing == 0 && c.memory.tokens >= request.context) {
    if (request.batch > 0)
      ways.push_back(fmt::format("--batch {}", c.batch_per_rank * c.layout.attn_dp * c.replicas));
    else
      ways.push_back(fmt::format("--sla-tpot {:.0f}ms", std::ceil(c.tpot_us / 1e3)));
    return fmt::format("{}", fmt::join(ways, " or "));
  }
  for (int world = c.layout.world + 1; world <= std::min(kMaxRanks, c.layout.world * 8); ++world) {
    if (world % c.layout.moe_tp != 0 && c.layout.ep > 1) continue;
    if (world % c.layout.attn_tp != 0 && c.layout.attn_dp > 1) continue;
    if (!fits_memory(model, request, on_more_ranks(c, world))) continue;
    ways.push_back(fmt::format("{} devices", world * c.replicas));
    break;
  }
  if (request.kv_value_bytes > 1) {
    PlanRequest small = request;
    small.kv_value_bytes = 1;
    if (fits_memory(model, small, c.options)) ways.push_back("--kv-dtype fp8");
  }
  if (c.memory.missing == 0 && c.memory.tokens > 0) ways.push_back(fmt::format("--context {}", c.memory.tokens));
  for (const PlannedModel& m : smaller) {
    if (!fits_memory(m, request, c.options)) continue;
    ways.push_back(fmt::format("--dtype {}", weight_type_name(m.type())));
    break;
  }
  if (ways.empty()) return "neither more of these devices nor smaller types help this layout";
  return fmt::format("{} would do", fmt::join(ways, " or "));
}

// Smaller forms of the weights than the request's, the gentlest first.
std::vector<PlannedModel> smaller_models(const PlannedModel& model) {
  std::vector<PlannedModel> out;
  const bool is_wide =
      model.type() == WeightType::kBF16 || (model.type() == WeightType::kCheckpoint && model.config().quant == WeightQuant::kNone);
  const bool is_byte =
      model.type() == WeightType::kFp8 || model.type() == WeightType::kInt8 || model.config().quant == WeightQuant::kFp8Block;
  if (is_wide) out.emplace_back(model.config(), WeightType::kFp8);
  if (is_wide || is_byte) out.emplace_back(model.config(), WeightType::kInt4);
  return out;
}

// Within a fifth of a percent, which no model is good for, whole experts are better than slices: they can be moved and replicated.
bool is_better(const Candidate& a, const Candidate& b) {
  const auto grade = [](const Candidate& c) { return std::llround(std::log(c.tokens_per_s) * 500); };
  if (grade(a) != grade(b)) return grade(a) > grade(b);
  if (a.layout.moe_tp != b.layout.moe_tp) return a.layout.moe_tp < b.layout.moe_tp;
  return a.memory.cluster_tokens * a.replicas > b.memory.cluster_tokens * b.replicas;
}

double shortfall(const Candidate& c, const PlanRequest& request) {
  if (c.memory.missing > 0) return 1e15 + static_cast<double>(c.memory.missing);
  const double tokens = std::max(0.0, static_cast<double>(request.context - c.memory.tokens));
  if (tokens > 0) return 1e6 + tokens * static_cast<double>(c.memory.kv_bytes_per_token) / 1e9;
  return c.tpot_us / 1e6;
}

}  // namespace

int ranks_per_domain(const PlanRequest& request) {
  const int size = std::max(1, request.hardware.domain_size);
  if (request.hardware.domain_spans_nodes || request.nodes < 1) return size;
  return std::max(1, std::min(size, (request.devices + request.nodes - 1) / request.nodes));
}

Candidate weigh(const PlannedModel& model, const PlanRequest& request, const ParallelOptions& options, const ResolvedLayout& resolved,
                int replicas, int ranks_weighed) {
  Candidate c;
  c.options = options;
  c.layout = resolved.layout;
  c.is_fp8_dispatch = resolved.is_fp8_dispatch;
  c.replicas = replicas;
  c.balancedness = balancedness_of(request, model.config(), resolved.layout);
  c.memory = plan_memory(model, resolved.layout, request.hardware, memory_options(request, resolved, ranks_weighed));
  if (c.memory.missing > 0) c.missing.push_back(fmt::format("{} short per rank", gb(static_cast<double>(c.memory.missing))));
  add_times(model, request, &c);
  return c;
}

SearchResult search_layouts(const PlannedModel& model, const PlanRequest& request) {
  SearchResult out;
  for (const int world : divisors(request.devices))
    for (const ParallelOptions& options : combinations(model.config(), request, world)) {
      const auto resolved = resolved_if_legal(options, model.config());
      if (!resolved) {
        ++out.num_refused;
        continue;
      }
      ++out.num_legal;
      Candidate c = weigh(model, request, options, *resolved, request.devices / world, kSearchRanksWeighed);
      (c.fits() ? out.ranked : out.infeasible).push_back(std::move(c));
    }
  std::stable_sort(out.ranked.begin(), out.ranked.end(), is_better);
  std::stable_sort(out.infeasible.begin(), out.infeasible.end(),
                   [&](const Candidate& a, const Candidate& b) { return shortfall(a, request) < shortfall(b, request); });
  const bool needs_memory =
      !out.infeasible.empty() && (out.infeasible[0].memory.missing > 0 || out.infeasible[0].memory.tokens < request.context);
  const std::vector<PlannedModel> smaller = needs_memory ? smaller_models(model) : std::vector<PlannedModel>{};
  for (size_t i = 0; i < std::min(kRemediesShown, out.infeasible.size()); ++i)
    out.infeasible[i].remedy = remedy_of(model, request, out.infeasible[i], smaller);
  return out;
}

int fewest_devices(const PlannedModel& model, const PlanRequest& request) {
  const int most = static_cast<int>(std::min<int64_t>(kMaxRanks, int64_t{request.devices} * 64));
  // Weights and buffers must at least fit when everything is shared evenly: numbers below that need no look.
  const double room = request.hardware.memory_bytes - request.hardware.reserve_bytes;
  const int least =
      room > 0 ? static_cast<int>(std::min(static_cast<double>(most), static_cast<double>(model.bytes().total()) / room)) : most;
  for (int world = std::max(request.devices + 1, least); world <= most; ++world)
    if (fits_somehow(model, request, world)) return world;
  return 0;
}

}  // namespace cadre::planner
