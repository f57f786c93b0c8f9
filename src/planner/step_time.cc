#include "planner/step_time.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "config/bytes.h"
#include "parallel/layer_plan.h"
#include "parallel/shard.h"
#include "parallel/traffic_cost.h"

namespace cadre::planner {
namespace {

constexpr double kMicro = 1e6;
// Inputs' worth of time that a tile of a product takes to begin and end: narrow slices of experts do not fill a device.
constexpr double kTileOverhead = 128;
// Query rows that share one pass over the cache in prefill kernels.
constexpr double kQueryTile = 128;

enum class Math : uint8_t { kF32, kBF16, kFp8, kFp4, kInt8 };

double rate(const HardwareSpec& h, Math math) {
  if (h.is_cpu || (h.bf16_per_s == 0 && h.f32_per_s > 0)) return h.f32_per_s > 0 ? h.f32_per_s : h.bf16_per_s;
  if (math == Math::kFp4 && h.fp4_per_s > 0) return h.fp4_per_s;
  if (math == Math::kInt8 && h.int8_per_s > 0) return h.int8_per_s;
  if ((math == Math::kFp8 || math == Math::kFp4) && h.fp8_per_s > 0) return math == Math::kFp8 ? h.fp8_per_s : h.bf16_per_s;
  return h.bf16_per_s;
}

// What products with weights of a kind run in. Four-bit weights on devices without such products are widened to bfloat16.
Math math_of(const PlannedModel& model, bool is_attention) {
  switch (model.type()) {
    case WeightType::kBF16:
      return Math::kBF16;
    case WeightType::kFp8:
      return Math::kFp8;
    case WeightType::kMxfp4:
    case WeightType::kNvfp4:
      return is_attention ? Math::kBF16 : Math::kFp4;
    case WeightType::kInt8:
      return Math::kInt8;
    case WeightType::kInt4:
      return Math::kBF16;
    case WeightType::kCheckpoint:
      break;
  }
  switch (model.config().quant) {
    case WeightQuant::kFp8Block:
      return Math::kFp8;
    case WeightQuant::kMxfp4:
      return is_attention ? Math::kBF16 : Math::kFp4;
    case WeightQuant::kNone:
      break;
  }
  return Math::kBF16;
}

// One layer of each kind, so that a layer's traffic is worked out once.
ModelConfig one_of_each(const ModelConfig& config) {
  ModelConfig out = config;
  out.layers.clear();
  for (const bool is_sparse : {false, true})
    if (std::any_of(config.layers.begin(), config.layers.end(), [&](const LayerConfig& l) { return l.is_sparse == is_sparse; }))
      out.layers.push_back({is_sparse, 0});
  out.num_layers = static_cast<int64_t>(out.layers.size());
  return out;
}

bool is_exchange(Traffic t) { return t == Traffic::kDispatch || t == Traffic::kCombine || t == Traffic::kDispatchCounts; }

}  // namespace

std::string_view step_part_name(StepPart part) {
  constexpr std::string_view kNames[] = {
      "attention projections", "attention over the cache", "dense layers", "router", "shared experts", "routed experts", "head",
      "links inside a domain", "network between domains",  "fixed"};
  return kNames[static_cast<size_t>(part)];
}

std::string_view bound_name(Bound bound) {
  constexpr std::string_view kNames[] = {"-", "memory bandwidth", "compute", "link bandwidth", "latency"};
  return kNames[static_cast<size_t>(bound)];
}

double StepTime::total_us() const {
  double sum = 0;
  for (const PartTime& p : parts) sum += p.us();
  return sum;
}

Bound StepTime::bound_of(StepPart part) const {
  const PartTime& p = (*this)[part];
  if (p.us() <= 0) return Bound::kNothing;
  if (p.latency_us >= std::max(p.bytes_us, p.compute_us)) return Bound::kLatency;
  if (p.compute_us >= p.bytes_us) return Bound::kCompute;
  return part == StepPart::kDomain || part == StepPart::kNetwork ? Bound::kWire : Bound::kMemory;
}

StepPart StepTime::longest() const {
  const auto it = std::max_element(parts.begin(), parts.end(), [](const PartTime& a, const PartTime& b) { return a.us() < b.us(); });
  return static_cast<StepPart>(it - parts.begin());
}

StepTimeModel::StepTimeModel(const PlannedModel& model, const Layout& layout, const HardwareSpec& hardware, const StepOptions& options)
    : config_(one_of_each(model.config())), layout_(layout), hardware_(hardware), options_(options) {
  CADRE_CHECK(options.balancedness > 0 && options.balancedness <= 1, "balancedness {}", options.balancedness);
  ranks_per_domain_ = std::max(1, options.ranks_per_domain > 0 ? options.ranks_per_domain : hardware.domain_size);
  activation_bytes_ = hardware.is_cpu ? kActivationBytes : 2;
  const ExpertPlacement placement = initial_placement(model.config(), layout);
  const RankBytes bytes = model.rank_bytes(layout, placement, 0), parameters = model.rank_parameters(layout, placement, 0);
  const double share = hardware.compute_share;
  const auto weights = [&](int64_t b, int64_t p, Math math) {
    return Weights{static_cast<double>(b), static_cast<double>(p), rate(hardware, math) * share};
  };
  const Math wide = math_of(model, true), narrow = math_of(model, false);
  attention_ = weights(bytes.attention, parameters.attention, wide);
  dense_ = weights(bytes.dense, parameters.dense, narrow);
  router_ = weights(bytes.router, parameters.router, Math::kBF16);
  shared_ = weights(bytes.shared, parameters.shared, narrow);
  experts_ = weights(bytes.routed, parameters.routed, narrow);
  const bool is_tied = bytes.head == 0;
  head_ = weights(is_tied ? bytes.embedding : bytes.head, is_tied ? parameters.embedding : parameters.head, Math::kBF16);
  math_per_s_ = rate(hardware, Math::kBF16) * share;
  if (config_.moe.router.num_experts > 0) {
    for (int rank = 0; rank < layout.ep; ++rank) {
      const auto held = placement.experts_of(rank);
      const double count = static_cast<double>(std::count_if(held.begin(), held.end(), [](int32_t e) { return e != kEmptySlot; }));
      if (rank == 0) num_slots_ = count;
      num_all_slots_ += count;
    }
  }
  plans_ = plan_layers(config_, layout_);
  if (layout.ep > 1) {
    const RouterConfig& router = config_.moe.router;
    expected_ = expected_dispatch(layout_, router.num_experts, router.top_k);
    // Groups bound what a row reaches.
    const double bound = destination_bound(router, layout_.ep);
    if (expected_.ranks_hit > bound) expected_.rows_to_others *= bound / expected_.ranks_hit;
    remote_domains_ = remote_domains();
  }
  heads_ = attention_part(model.config().attention, shard_of(layout, 0).heads);
  ModelConfig part = config_;
  part.attention = heads_;
  kv_value_bytes_layer_ = static_cast<double>(kv_values_per_token_layer(part)) * options.kv_value_bytes;
  for (const LayerConfig& l : model.config().layers) {
    (l.is_sparse ? num_sparse_layers_ : num_dense_layers_) += 1;
    const double window = static_cast<double>(l.sliding_window);
    const auto it = std::find_if(windows_.begin(), windows_.end(), [&](const WindowLayers& w) { return w.window == window; });
    if (it == windows_.end())
      windows_.push_back({1, window});
    else
      it->count += 1;
  }
}

PartTime StepTimeModel::products(const Weights& w, double share_of_weights, double rows) const {
  if (rows <= 0 || w.parameters <= 0) return {};
  return {w.bytes * share_of_weights / (hardware_.memory_bytes_per_s * hardware_.memory_share) * kMicro,
          2 * w.parameters * rows / w.per_s * kMicro, 0};
}

void StepTimeModel::add_attention(const StepShape& shape, StepTime* out) const {
  const double rows = static_cast<double>(shape.rows());
  (*out)[StepPart::kAttention] = products(attention_, 1, rows);
  const bool is_mla = heads_.kind == AttentionKind::kMla;
  const double heads = static_cast<double>(heads_.num_heads);
  // Operations for a (query, key) pair and layer. Latent attention decodes in the latent space and takes prompts apart by head.
  const double decode_pair = is_mla ? 2 * heads * static_cast<double>(2 * heads_.kv_lora_rank + heads_.qk_rope_head_dim)
                                    : 4 * heads * static_cast<double>(heads_.head_dim);
  const double prefill_pair = is_mla ? 2 * heads * static_cast<double>(heads_.head_dim + heads_.v_head_dim) : decode_pair;
  double read = 0, work = 0;
  // A window cuts each row's context; of a batch the mean is known.
  const auto seen = [](double total, double count, double window) {
    return count > 0 && window > 0 ? std::min(total, count * window) : total;
  };
  for (const WindowLayers& l : windows_) {
    const double decode = seen(static_cast<double>(shape.decode_context), static_cast<double>(shape.decode_rows), l.window);
    const double prefill = seen(static_cast<double>(shape.prefill_pairs), static_cast<double>(shape.prefill_rows), l.window);
    read += l.count * (decode + prefill / kQueryTile + rows) * kv_value_bytes_layer_;
    work += l.count * (decode * decode_pair + prefill * prefill_pair);
  }
  (*out)[StepPart::kCache] = {read / (hardware_.memory_bytes_per_s * hardware_.memory_share) * kMicro, work / math_per_s_ * kMicro, 0};
}

double StepTimeModel::expert_share(double rows) const {
  if (num_all_slots_ <= 0) return 0;
  const double chosen = static_cast<double>(config_.moe.router.top_k) / num_all_slots_;
  return 1 - std::pow(1 - std::min(1.0, chosen), rows);
}

void StepTimeModel::add_feed_forward(std::span<const StepShape> dp_ranks, size_t busiest, StepTime* out) const {
  double all = 0;
  for (const StepShape& s : dp_ranks) all += static_cast<double>(s.rows());
  const StepShape& own = dp_ranks[busiest];
  const double scattered = std::ceil(static_cast<double>(own.rows()) / layout_.attn_tp);
  if (num_dense_layers_ > 0) {
    const double rows = layout_.dense_tp == 1 ? scattered : layout_.dense_tp == layout_.world ? all : static_cast<double>(own.rows());
    (*out)[StepPart::kDense] = products(dense_, 1, rows);
  }
  if (num_sparse_layers_ > 0) {
    const bool is_gathered = layout_.ep == 1 && layout_.world > 1;  // every rank has all rows and a part of each expert
    const double rows = is_gathered ? all : scattered;
    (*out)[StepPart::kRouter] = products(router_, 1, rows);
    (*out)[StepPart::kShared] = products(shared_, 1, rows);
    // Of the pairs, this rank has the share of its slots; the fullest rank has more.
    const double top_k = static_cast<double>(config_.moe.router.top_k), skew = layout_.ep > 1 ? options_.balancedness : 1.0;
    const double pairs_per_slot = num_all_slots_ > 0 ? all * top_k / num_all_slots_ / skew : 0;
    PartTime experts = products(experts_, expert_share(all), pairs_per_slot);
    const double width = static_cast<double>(config_.moe.expert_intermediate) / layout_.moe_tp;
    if (!hardware_.is_cpu) experts.compute_us *= (width + kTileOverhead) / width;
    (*out)[StepPart::kExperts] = experts;
  }
  const double logits = static_cast<double>(own.decode_rows + (own.prefill_rows > 0 ? 1 : 0));
  (*out)[StepPart::kHead] = products(head_, 1, logits);
}

struct LayerWires {
  double layers = 0;
  TrafficCounts counts;
  // Of what dispatch and combine send to other ranks, the share that crosses between domains where rows are passed on inside one
  // (DeepEP's normal mode); below 0: each goes straight to its rank.
  double forwarded_share = -1;
};

// Rows gathered and sums scattered go to each other domain once and are passed on inside it; dispatched rows go straight to their
// ranks, of which most are in other domains, unless they are passed on.
void StepTimeModel::add_layer_wires(const LayerWires& wires, StepTime* out) const {
  double domain_calls = 0, network_calls = 0;
  for (size_t i = 0; i < kNumTraffic; ++i) {
    const Traffic traffic = static_cast<Traffic>(i);
    const TrafficCount& count = wires.counts[i];
    if (count.calls == 0 && count.bytes_sent == 0) continue;
    const bool is_attention = traffic == Traffic::kAttentionGather || traffic == Traffic::kAttentionReduce || traffic == Traffic::kRowNorm;
    const bool is_dense = traffic == Traffic::kDenseGather || traffic == Traffic::kDenseReduce;
    const int group = is_attention ? layout_.attn_tp : is_dense ? layout_.dense_tp : layout_.world;
    if (group <= 1) continue;
    const int inside = std::min(group, ranks_per_domain_), domains = (group + inside - 1) / inside;
    const double bytes = static_cast<double>(count.bytes_sent), peers = group - 1.0;
    double away = domains == 1 ? 0 : is_exchange(traffic) ? (group - inside) / peers : (domains - 1) / peers, near = 1 - away;
    if (domains > 1 && is_exchange(traffic) && wires.forwarded_share >= 0) away = wires.forwarded_share, near = 1;
    out->network_bytes += wires.layers * bytes * away;
    out->domain_bytes += wires.layers * bytes * near;
    const double calls = wires.layers * static_cast<double>(hardware_.is_cpu ? count.calls : std::min<int64_t>(count.calls, 1));
    (domains == 1 ? domain_calls : network_calls) += calls;
  }
  (*out)[StepPart::kDomain].latency_us += domain_calls * hardware_.domain_latency_us;
  (*out)[StepPart::kNetwork].latency_us += network_calls * hardware_.network_latency_us;
}

// Domains other than its own that a row reaches: those that hold one of its experts, or a part of one.
double StepTimeModel::remote_domains() const {
  const int inside = std::min(layout_.world, ranks_per_domain_), domains = (layout_.world + inside - 1) / inside;
  const int spread = std::max(1, layout_.moe_tp / inside), groups = std::max(1, domains / spread);
  const RouterConfig& router = config_.moe.router;
  const ExpectedDispatch e = expected_dispatch({.world = groups, .attn_dp = groups, .ep = groups}, router.num_experts, router.top_k);
  return std::min(e.ranks_hit, static_cast<double>(destination_bound(router, groups))) * (spread - 1.0 / groups);
}

void StepTimeModel::add_wires(std::span<const StepShape> dp_ranks, size_t busiest, StepTime* out) const {
  if (layout_.world == 1) return;
  std::vector<int64_t> rows;
  for (const StepShape& s : dp_ranks) rows.push_back(s.rows());
  bool has_prompts = false;
  for (const StepShape& s : dp_ranks) has_prompts |= s.prefill_rows > 0;
  for (const LayerPlan& plan : plans_) {
    double forwarded_share = -1;
    LayerTrafficInput input{.dp_rows = rows,
                            .world_rank = layout_.leader_of(static_cast<int>(busiest)),
                            .is_fp8_dispatch = options_.is_fp8_dispatch,
                            .activation_bytes = activation_bytes_};
    if (plan.is_sparse && layout_.ep > 1) {
      double all = 0;
      for (const int64_t r : rows) all += static_cast<double>(r);
      const double own = std::ceil(static_cast<double>(rows[busiest]) / layout_.attn_tp),
                   mean = all / layout_.world / options_.balancedness;
      const auto rounded = [](double v) { return static_cast<int64_t>(std::llround(v)); };
      input.out = {rounded(own * expected_.rows_to_others), rounded(own * expected_.pairs_to_others)};
      input.in = {rounded(mean * expected_.rows_to_others), rounded(mean * expected_.pairs_to_others)};
      // Steps of decoding alone use the low-latency mode, which does not pass rows on; this engine never does.
      if (!hardware_.is_cpu && has_prompts) forwarded_share = remote_domains_ / expected_.rows_to_others;
    }
    add_layer_wires(
        {plan.is_sparse ? num_sparse_layers_ : num_dense_layers_, predict_layer_traffic(config_, layout_, plan, input), forwarded_share},
        out);
  }
  (*out)[StepPart::kDomain].bytes_us = out->domain_bytes / (hardware_.domain_bytes_per_s * hardware_.link_share) * kMicro;
  (*out)[StepPart::kNetwork].bytes_us = out->network_bytes / (hardware_.network_bytes_per_s * hardware_.link_share) * kMicro;
  // Data-parallel ranks agree on each step.
  if (layout_.attn_dp > 1) {
    const bool is_one_domain = layout_.world <= ranks_per_domain_;
    (*out)[is_one_domain ? StepPart::kDomain : StepPart::kNetwork].latency_us +=
        is_one_domain ? hardware_.domain_latency_us : hardware_.network_latency_us;
  }
}

StepTime StepTimeModel::operator()(std::span<const StepShape> dp_ranks) const {
  CADRE_CHECK(static_cast<int>(dp_ranks.size()) == layout_.attn_dp, "{} shapes for {} data-parallel ranks", dp_ranks.size(),
              layout_.attn_dp);
  StepTime out;
  // Each layer waits for the slowest rank's attention, then for the fullest rank's experts.
  double longest = -1;
  for (size_t i = 0; i < dp_ranks.size(); ++i) {
    if (i > 0 && dp_ranks[i] == dp_ranks[i - 1]) continue;
    StepTime one;
    add_attention(dp_ranks[i], &one);
    if (one.total_us() > longest) longest = one.total_us(), out.parts = one.parts;
  }
  int64_t all = 0;
  for (const StepShape& s : dp_ranks) all += s.rows();
  if (all == 0) return {};
  const size_t most_rows = static_cast<size_t>(
      std::max_element(dp_ranks.begin(), dp_ranks.end(), [](const StepShape& a, const StepShape& b) { return a.rows() < b.rows(); }) -
      dp_ranks.begin());
  add_feed_forward(dp_ranks, most_rows, &out);
  add_wires(dp_ranks, most_rows, &out);
  out[StepPart::kFixed].latency_us = hardware_.step_us;
  return out;
}

StepTime StepTimeModel::uniform(const StepShape& shape) const {
  const std::vector<StepShape> shapes(static_cast<size_t>(layout_.attn_dp), shape);
  return (*this)(shapes);
}

double expected_active_experts(int64_t num_experts, int64_t top_k, double rows) {
  if (num_experts <= 0) return 0;
  const double e = static_cast<double>(num_experts), chosen = std::clamp(static_cast<double>(top_k) / e, 0.0, 1.0);
  return e * (1 - std::pow(1 - chosen, std::max(0.0, rows)));
}

double destinations_with_replacement(int ranks, int64_t top_k) {
  if (ranks <= 0) return 0;
  return ranks * (1 - std::pow(1 - 1.0 / ranks, static_cast<double>(top_k)));
}

int destination_bound(const RouterConfig& router, int ranks) {
  const int most = static_cast<int>(std::min<int64_t>(router.top_k, ranks));
  if (router.num_groups <= 1 || router.topk_groups >= router.num_groups || router.num_experts == 0) return most;
  std::vector<int> first(static_cast<size_t>(ranks) + 1);
  for (int r = 0; r < ranks; ++r) first[static_cast<size_t>(r)] = static_cast<int>(even_slice(router.num_experts, ranks, r).first);
  first.back() = static_cast<int>(router.num_experts);
  const auto rank_of = [&](int64_t e) {
    return static_cast<int>(std::upper_bound(first.begin(), first.end(), static_cast<int>(e)) - first.begin()) - 1;
  };
  std::vector<int> spans;
  const int64_t size = router.num_experts / router.num_groups;
  for (int64_t g = 0; g < router.num_groups; ++g) spans.push_back(rank_of((g + 1) * size - 1) - rank_of(g * size) + 1);
  std::sort(spans.rbegin(), spans.rend());
  int64_t sum = 0;
  for (int64_t g = 0; g < std::min<int64_t>(router.topk_groups, static_cast<int64_t>(spans.size())); ++g)
    sum += spans[static_cast<size_t>(g)];
  return static_cast<int>(std::min<int64_t>(most, sum));
}

int64_t compute_bound_rows(const StepTimeModel& model, int64_t context, int64_t most) {
  const auto is_compute_bound = [&](int64_t rows) {
    const StepTime t = model.uniform({.decode_rows = rows, .decode_context = rows * context});
    double memory = 0, compute = 0;
    for (size_t i = 0; i < kNumStepParts; ++i) {
      const StepPart part = static_cast<StepPart>(i);
      if (part == StepPart::kDomain || part == StepPart::kNetwork || part == StepPart::kFixed) continue;
      memory += t[part].bytes_us, compute += t[part].compute_us;
    }
    return compute > memory;
  };
  int64_t low = 0, high = 1;  // not at low
  while (high <= most && !is_compute_bound(high)) low = high, high *= 2;
  if (high > most && (low >= most || !is_compute_bound(most))) return 0;
  high = std::min(high, most);
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (is_compute_bound(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace cadre::planner
