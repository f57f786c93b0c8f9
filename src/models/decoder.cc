#include "models/decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "kernels/elementwise.h"
#include "models/activation_dtype.h"
#include "models/quantization.h"
#include "models/row_stream.h"
#include "models/step_message.h"

namespace cadre {

struct Decoder::Layer {
  std::vector<float> attention_norm, feed_forward_norm;
  std::variant<GqaAttention, MlaAttention> attention;
  std::variant<GatedMlp, MoeLayer> feed_forward;
};

// Memory for the rows of one step, made once. This rank's rows are its slice of its data-parallel rank's rows; all of
// them where heads are not split.
struct Decoder::Workspace {
  std::vector<RowGroup> groups;
  std::vector<int32_t> group_of_row;
  std::vector<int64_t> positions;
  std::vector<float> cos, sin;
  std::vector<float> x, normed, delta;   // [own rows, H]
  std::vector<uint8_t> row_failed;       // of own rows; collect_rows() makes it of all the step's
  std::vector<uint8_t> wide_failed;      // of all rows that a gathered half computes on
  std::vector<float> wide;               // [gathered rows, H] outputs before their reduction
  std::optional<GqaWorkspace> gqa;
  std::optional<MlaWorkspace> mla;
  std::optional<MoeWorkspace> moe;
  std::vector<float> rounded;            // [rows of a dense feed-forward, H] as products with FP8 inputs take them
  std::vector<float> dense_h, per_thread;
};

// Rows of the step on all ranks, and what moves them.
struct Decoder::Ranks {
  std::vector<int64_t> dp_rows, world_rows, attn_tp_rows;
  Slice own;              // of this data-parallel rank's rows
  int64_t own_in_world = 0;  // first own row among all rows, in rank order
  std::optional<RowStream> world, attn_tp;
  std::optional<Exchanges> exchanges;
  StepMessage message;
  std::vector<SendPart> send;  // to and from the ranks that split the heads; kept so that steps do not allocate
  std::vector<RecvPart> recv;

  std::span<const int64_t> rows_of(GroupKind kind, const Layout& layout) const {
    return kind == GroupKind::kAttnTp || (kind == GroupKind::kDenseTp && layout.dense_tp != layout.world) ? attn_tp_rows : world_rows;
  }
  RowStream& stream(GroupKind kind, const Layout& layout) {
    return kind == GroupKind::kAttnTp || (kind == GroupKind::kDenseTp && layout.dense_tp != layout.world) ? *attn_tp : *world;
  }
};

namespace {

Layout layout_of(const DecoderOptions& options) { return options.groups ? options.groups->layout : Layout{}; }
RankCoords coords_of(const DecoderOptions& options) { return options.groups ? options.groups->coords : RankCoords{}; }

int64_t sum(std::span<const int64_t> values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

}  // namespace

Decoder::Decoder(ModelConfig config, WeightSource& source, const DecoderOptions& options, const std::function<void(int64_t, int64_t)>& progress)
    : config_(std::move(config)), options_(options), plan_(plan_layers(config_, layout_of(options))),
      attention_(attention_part(config_.attention, {coords_of(options).attn_tp, layout_of(options).attn_tp})), pool_(options.num_threads), rope_(config_.attention.rope) {
  const Layout layout = layout_of(options);
  check_activation_dtype(config_, layout, options.activation_dtype);
  if (options.quantization) check_quantization(config_, layout, *options.quantization, options.activation_dtype);
  const int64_t num_experts = config_.moe.router.num_experts;
  ExpertPlacement placement = num_experts > 0 ? ExpertPlacement::initial(num_experts, layout.ep, layout.placement, layout.redundant_experts) : ExpertPlacement();
  const int64_t slots = num_experts > 0 ? placement.slots_per_rank() : 0;
  auto given = options.expert_placements.begin();
  const Shard shard = shard_of(layout, coords_of(options).world);
  WeightLoader loader(source, config_, shard, placement, options.activation_dtype == DType::kF8E4M3, options.quantization);
  embedding_ = std::move(loader.linear_as_stored("model.embed_tokens", config_.vocab_size, config_.hidden_size).weight);
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    if (config_.layers[static_cast<size_t>(i)].is_sparse && given != options.expert_placements.end()) {
      placement = *given++;
      CADRE_CHECK(placement.num_experts() == num_experts && placement.ep() == layout.ep && placement.slots_per_rank() == slots, "a placement of {} experts in {} slots of {} ranks",
                  placement.num_experts(), placement.num_slots(), placement.ep());
      loader.place_experts(placement);
    }
    LayerWeights weights = load_layer(loader, i);
    auto attention = [&]() -> std::variant<GqaAttention, MlaAttention> {
      if (auto* mla = std::get_if<MlaWeights>(&weights.attention)) return MlaAttention(attention_, rope_, options_.kv_dtype, std::move(*mla));
      return GqaAttention(attention_, rope_, config_.rms_norm_eps, config_.layers[static_cast<size_t>(i)].sliding_window, options_.kv_dtype,
                          std::move(std::get<GqaWeights>(weights.attention)));
    }();
    auto feed_forward = [&]() -> std::variant<GatedMlp, MoeLayer> {
      if (auto* moe = std::get_if<MoeWeights>(&weights.feed_forward)) {
        moe->experts.set_backend(*choose_experts_backend({moe->experts.layout().gate_up.format, layout.exchange}, options_.moe_backend).backend);
        return MoeLayer(config_.moe, ReplicaSplit(placement, options.replica_choice, options.num_nodes), std::move(*moe));
      }
      return std::move(std::get<GatedMlp>(weights.feed_forward));
    }();
    layers_.push_back(std::make_unique<Layer>(Layer{std::move(weights.attention_norm), std::move(weights.feed_forward_norm), std::move(attention), std::move(feed_forward)}));
    if (progress) progress(i + 1, config_.num_layers);
  }
  final_norm_ = loader.vector("model.norm.weight", config_.hidden_size);
  if (!config_.tie_word_embeddings) head_ = std::move(loader.linear("lm_head", config_.vocab_size, config_.hidden_size).weight);
  make_workspace(slots);
  make_observers();
}

void Decoder::make_observers() {
  std::vector<MoeLayer*> sparse;
  std::vector<int64_t> indices;
  for (size_t i = 0; i < layers_.size(); ++i)
    if (auto* moe = std::get_if<MoeLayer>(&layers_[i]->feed_forward)) sparse.push_back(moe), indices.push_back(static_cast<int64_t>(i));
  if (sparse.empty()) return;
  recorder_ = std::make_unique<eplb::LoadRecorder>(
      eplb::RecorderOptions{.num_experts = config_.moe.router.num_experts, .top_k = config_.moe.router.top_k, .layers = indices, .world_rank = coords_of(options_).world,
                            .world_size = layout_of(options_).world, .max_rows = options_.max_batched_tokens},
      options_.groups ? options_.groups->world.get() : nullptr);
  if (options_.balance && layout_of(options_).ep > 1) balancer_ = std::make_unique<eplb::Balancer>(*options_.balance, *options_.groups, sparse, std::move(indices));
  route_observer_ = [this](int64_t layer, std::span<const int32_t> ids, std::span<const float> weights) {
    if (balancer_) balancer_->record(layer, ids);
    if (recorder_->is_recording_step()) recorder_->record(layer, ids);
    if (observer_) observer_(layer, ids, weights);
  };
}

void Decoder::make_workspace(int64_t slots) {
  const Layout layout = layout_of(options_);
  const int64_t rows = options_.max_batched_tokens, hidden = config_.hidden_size;
  const int64_t own_rows = layout.attn_tp == 1 ? rows : rows / layout.attn_tp + 1;
  // Halves that gather compute on at most all rows of all ranks.
  const int64_t wide_rows = layout.world == 1 ? rows : std::max(rows * layout.attn_dp, own_rows * layout.attn_tp);
  w_ = std::make_unique<Workspace>();
  w_->groups.reserve(static_cast<size_t>(rows));
  w_->group_of_row.resize(static_cast<size_t>(rows));
  w_->positions.resize(static_cast<size_t>(rows));
  w_->cos.resize(static_cast<size_t>(rows * rope_.half_dim()));
  w_->sin.resize(w_->cos.size());
  w_->x.resize(static_cast<size_t>(std::max(own_rows, layout.attn_tp == 1 ? own_rows : rows) * hidden));
  w_->normed.resize(w_->x.size());
  w_->delta.resize(w_->x.size());
  w_->row_failed.resize(static_cast<size_t>(rows));
  const bool rounds = options_.activation_dtype == DType::kF8E4M3;
  if (attention_.kind == AttentionKind::kMla) w_->mla.emplace(attention_, rows, options_.num_threads, config_.max_position, rounds ? hidden : 0);
  else w_->gqa.emplace(attention_, rows, rounds ? hidden : 0);
  const bool is_wide = std::any_of(plan_.begin(), plan_.end(), [](const LayerPlan& p) { return p.attention.gather != GroupKind::kNone || p.feed_forward.gather != GroupKind::kNone; });
  if (is_wide) w_->wide.resize(static_cast<size_t>(wide_rows * hidden)), w_->wide_failed.resize(static_cast<size_t>(wide_rows));
  const int64_t ffn_rows = is_wide ? wide_rows : rows;

  ranks_ = std::make_unique<Ranks>();
  ranks_->dp_rows.resize(static_cast<size_t>(layout.attn_dp));
  ranks_->world_rows.resize(static_cast<size_t>(layout.world));
  ranks_->attn_tp_rows.resize(static_cast<size_t>(layout.attn_tp));
  if (RankGroups* g = options_.groups; g && g->world) {
    // Room for padding: every part as long as the longest.
    ranks_->world.emplace(*g->world, hidden, own_rows * layout.world);
    if (g->attn_tp) ranks_->attn_tp.emplace(*g->attn_tp, hidden, own_rows * layout.attn_tp);
  }
  if (config_.moe.router.num_experts > 0) {
    ranks_->exchanges.emplace(ExchangeOptions{.layout = layout, .world_rank = coords_of(options_).world, .hidden = hidden, .top_k = config_.moe.router.top_k, .num_slots = slots,
                                              .num_experts = config_.moe.router.num_experts, .codec = {hidden, options_.fp8_dispatch},
                                              .world = options_.groups ? options_.groups->world.get() : nullptr});
    w_->moe.emplace(config_.moe, hidden, ffn_rows, ranks_->exchanges->max_pairs(), slots, options_.num_threads, rounds);
  }
  if (rounds) w_->rounded.resize(static_cast<size_t>(ffn_rows * hidden));
  w_->dense_h.resize(static_cast<size_t>(ffn_rows * config_.dense_intermediate));
  w_->per_thread.resize(static_cast<size_t>(options_.num_threads) * kGatedScratchFloats);
}

Decoder::~Decoder() = default;

int64_t Decoder::weight_bytes() const {
  const auto floats = [](const std::vector<float>& v) { return static_cast<int64_t>(v.size() * sizeof(float)); };
  int64_t sum = embedding_.bytes() + head_.bytes() + floats(final_norm_);
  for (const auto& layer : layers_) {
    sum += floats(layer->attention_norm) + floats(layer->feed_forward_norm);
    sum += std::visit([](const auto& attention) { return attention.weights().bytes(); }, layer->attention);
    if (const auto* moe = std::get_if<MoeLayer>(&layer->feed_forward)) sum += moe->weights().bytes();
    else sum += std::get<GatedMlp>(layer->feed_forward).bytes();
  }
  return sum;
}

KvLayout Decoder::kv_layout() const {
  return {config_.num_layers, attention_.kind == AttentionKind::kMla ? mla_block_bytes(attention_, options_.kv_dtype) : gqa_block_bytes(attention_, options_.kv_dtype)};
}

void Decoder::forward(const StepInput& input, KvStore& kv, const StepOutput& output) {
  if (Group* group = options_.groups ? options_.groups->attn_tp.get() : nullptr) {
    CADRE_CHECK(group->rank() == 0, "attention rank {} follows", group->rank());
    send_to_followers(ranks_->message.write(input));
  }
  run(input, kv, &output);
}

// A rank that cannot finish a step must not leave the others waiting for it, and can take part in no other: lost to itself
// as to them.
void Decoder::run(const StepInput& input, KvStore& kv, const StepOutput* output) {
  if (!options_.groups) {
    run_rows(input, kv, output);
    return finish_step();
  }
  try {
    run_rows(input, kv, output);
    finish_step();
  } catch (const PeerLost& e) {
    options_.groups->abort(e.what());
    throw;
  } catch (const std::exception& e) {
    RankGroups& groups = *options_.groups;
    groups.abort(e.what());
    const int rank = groups.coords.world;
    throw PeerLost("world", rank, rank, groups.step, fmt::format("gave up: {}", e.what()));
  }
}

void Decoder::finish_step() {
  if (sum(ranks_->dp_rows) == 0) return;
  if (recorder_) recorder_->end_step();
  if (balancer_) balancer_->after_step();
}

void Decoder::stop_followers() {
  if (options_.groups && options_.groups->attn_tp) send_to_followers(ranks_->message.write_stop());
}

void Decoder::send_to_followers(std::span<const std::byte> message) {
  Group& group = *options_.groups->attn_tp;
  ranks_->send.assign(static_cast<size_t>(group.size()), {message.data(), static_cast<int64_t>(message.size())});
  ranks_->recv.assign(ranks_->send.size(), {});
  ranks_->send[0] = {};
  group.all_to_all({Traffic::kStep, -1}, ranks_->send, ranks_->recv);
}

bool Decoder::follow(KvStore& kv) {
  Group& group = *options_.groups->attn_tp;
  CADRE_CHECK(group.rank() > 0, "attention rank 0 leads");
  ranks_->send.assign(static_cast<size_t>(group.size()), {});
  ranks_->recv.assign(ranks_->send.size(), {});
  ranks_->recv[0] = {nullptr, StepMessage::max_bytes(options_.max_batched_tokens, kv.num_blocks(), layout_of(options_).attn_dp)};
  bool goes_on = true;
  group.transport().set_timeout_us(0);
  group.start({Traffic::kStep, -1}, ranks_->send, ranks_->recv);
  group.finish([&](int source, std::span<const std::byte> data) {
    if (source == 0) goes_on = ranks_->message.read(data);
  });
  group.transport().set_timeout_us(options_.groups->timeout_us);
  if (goes_on) run(ranks_->message.input(), kv, nullptr);
  return goes_on;
}

void Decoder::run_rows(const StepInput& input, KvStore& kv, const StepOutput* output) {
  const int64_t rows = lay_out_rows(input);
  if (output) std::fill(output->sequence_failed.begin(), output->sequence_failed.end(), uint8_t{0});
  if (sum(ranks_->dp_rows) == 0) return;
  // Without other leaders, this one's own order counts; followers get it with the step.
  if (recorder_) recorder_->begin_step(input.order);
  embed(input);
  AttentionStep step{.groups = w_->groups, .group_of_row = {w_->group_of_row.data(), static_cast<size_t>(rows)},
                     .positions = {w_->positions.data(), static_cast<size_t>(rows)}, .cos = w_->cos.data(), .sin = w_->sin.data(), .kv = &kv, .pool = &pool_};
  const auto sum_parts = [&](float* values, int64_t count) { options_.groups->attn_tp->all_reduce({Traffic::kRowNorm, step.layer}, values, count); };
  const AttentionStep::SumOverHeadParts sum_ref(sum_parts);
  if (layout_of(options_).attn_tp > 1) step.sum_over_head_parts = &sum_ref, step.num_head_parts = layout_of(options_).attn_tp;
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    attention_half(layer, step);
    feed_forward_half(layer);
  }
  collect_rows();
  if (output) write_logits(input, *output);
}

int64_t Decoder::lay_out_rows(const StepInput& input) {
  int64_t row = 0;
  w_->groups.clear();
  for (const SequenceRows& s : input.sequences) {
    const int64_t count = static_cast<int64_t>(s.tokens.size());
    CADRE_CHECK(row + count <= options_.max_batched_tokens, "{} rows, room for {}", row + count, options_.max_batched_tokens);
    CADRE_CHECK(static_cast<int64_t>(s.blocks.size()) * 16 >= s.start_position + count, "{} blocks for {} positions", s.blocks.size(), s.start_position + count);
    CADRE_CHECK(s.num_logit_rows >= 0 && s.num_logit_rows <= count, "{} logit rows of {}", s.num_logit_rows, count);
    for (int64_t i = 0; i < count; ++i) {
      w_->group_of_row[static_cast<size_t>(row + i)] = static_cast<int32_t>(w_->groups.size());
      w_->positions[static_cast<size_t>(row + i)] = s.start_position + i;
      rope_.angles(s.start_position + i, w_->cos.data() + (row + i) * rope_.half_dim(), w_->sin.data() + (row + i) * rope_.half_dim());
    }
    w_->groups.push_back({row, count, s.start_position, s.blocks, options_.compute_mode == ComputeMode::kFast ? s.num_prompt_tokens : 0});
    row += count;
  }
  std::fill_n(w_->row_failed.begin(), row, uint8_t{0});
  share_rows(input, row);
  return row;
}

void Decoder::share_rows(const StepInput& input, int64_t rows) {
  const Layout layout = layout_of(options_);
  const RankCoords c = coords_of(options_);
  Ranks& r = *ranks_;
  if (input.dp_rows.empty()) {
    CADRE_CHECK(layout.attn_dp == 1, "no rows of {} data-parallel ranks", layout.attn_dp);
    r.dp_rows[0] = rows;
  } else {
    CADRE_CHECK(input.dp_rows.size() == r.dp_rows.size(), "rows of {} data-parallel ranks, {} there are", input.dp_rows.size(), r.dp_rows.size());
    std::copy(input.dp_rows.begin(), input.dp_rows.end(), r.dp_rows.begin());
  }
  CADRE_CHECK(r.dp_rows[static_cast<size_t>(c.attn_dp)] == rows, "{} rows agreed, {} given", r.dp_rows[static_cast<size_t>(c.attn_dp)], rows);
  scattered_rows(layout, r.dp_rows, r.world_rows);
  for (int i = 0; i < layout.attn_tp; ++i) r.attn_tp_rows[static_cast<size_t>(i)] = even_slice(rows, layout.attn_tp, i).count;
  r.own = even_slice(rows, layout.attn_tp, c.attn_tp);
  r.own_in_world = sum(std::span(r.world_rows).first(static_cast<size_t>(c.world)));
}

void Decoder::embed(const StepInput& input) {
  pool_.parallel_for(ranks_->own.count, [&](int64_t i, int) {
    const int64_t row = ranks_->own.first + i;
    const size_t group = static_cast<size_t>(w_->group_of_row[static_cast<size_t>(row)]);
    const int32_t token = input.sequences[group].tokens[static_cast<size_t>(row - w_->groups[group].first_row)];
    unpack_row(embedding_.view(), token, w_->x.data() + i * config_.hidden_size);
  });
}

void Decoder::normalise(const std::vector<float>& weight) {
  const int64_t hidden = config_.hidden_size;
  const float eps = static_cast<float>(config_.rms_norm_eps);
  pool_.parallel_for(ranks_->own.count, [&](int64_t r, int) { rms_norm(w_->x.data() + r * hidden, weight.data(), eps, hidden, w_->normed.data() + r * hidden); });
}

void Decoder::add_delta() {
  const int64_t hidden = config_.hidden_size;
  pool_.parallel_for(ranks_->own.count, [&](int64_t r, int) { add(w_->delta.data() + r * hidden, hidden, w_->x.data() + r * hidden); });
}

void Decoder::attention_half(int64_t index, AttentionStep& step) {
  const Layer& layer = *layers_[static_cast<size_t>(index)];
  const HalfPlan& plan = plan_[static_cast<size_t>(index)].attention;
  const Layout layout = layout_of(options_);
  step.layer = index;
  normalise(layer.attention_norm);
  const float* in = w_->normed.data();
  float* out = w_->delta.data();
  if (plan.gather != GroupKind::kNone) {
    in = ranks_->stream(plan.gather, layout).gather({Traffic::kAttentionGather, index}, ranks_->rows_of(plan.gather, layout), in);
    out = w_->wide.data();
  }
  // Its own sequences' rows: a rank without any has nothing to do here.
  if (step.num_rows() > 0) {
    if (const auto* mla = std::get_if<MlaAttention>(&layer.attention)) mla->forward(step, in, out, *w_->mla);
    else std::get<GqaAttention>(layer.attention).forward(step, in, out, *w_->gqa);
  } else if (step.sum_over_head_parts && attention_.qk_norm == QkNorm::kAllHeads) {
    (*step.sum_over_head_parts)(nullptr, 0);
  }
  if (plan.reduce != GroupKind::kNone) ranks_->stream(plan.reduce, layout).reduce({Traffic::kAttentionReduce, index}, ranks_->rows_of(plan.reduce, layout), out, w_->delta.data());
  add_delta();
}

void Decoder::feed_forward_half(int64_t index) {
  Layer& layer = *layers_[static_cast<size_t>(index)];
  const LayerPlan& plan = plan_[static_cast<size_t>(index)];
  const HalfPlan& half = plan.feed_forward;
  const Layout layout = layout_of(options_);
  auto* moe = std::get_if<MoeLayer>(&layer.feed_forward);
  normalise(layer.feed_forward_norm);
  MoeStep step{.layer = index, .world_rows = ranks_->world_rows, .exchanges = ranks_->exchanges ? &*ranks_->exchanges : nullptr, .observer = observes_routes() ? &route_observer_ : nullptr,
               .observed = {0, ranks_->own.count}, .pool = &pool_, .work = index == watched_layer_ ? work_ : nullptr,
               .exchange_work = balancer_ ? &balancer_->exchange_work() : nullptr};
  // An exchange takes this rank's rows as they are and brings the sums back.
  if (half.gather == GroupKind::kNone || half.exchange != ExchangeKind::kNone) {
    if (moe) moe->forward(step, w_->normed.data(), ranks_->own.count, w_->delta.data(), std::span(w_->row_failed).first(static_cast<size_t>(ranks_->own.count)), *w_->moe);
    else run_dense(std::get<GatedMlp>(layer.feed_forward), w_->normed.data(), ranks_->own.count, w_->delta.data());
    return add_delta();
  }
  const auto rows = ranks_->rows_of(half.gather, layout);
  const int64_t all = sum(rows);
  RowStream& stream = ranks_->stream(half.gather, layout);
  const float* in = stream.gather({moe ? Traffic::kMoeGather : Traffic::kDenseGather, index}, rows, w_->normed.data());
  if (moe) {
    const int64_t local_rows[1] = {all};
    step.world_rows = local_rows;
    step.observed = {ranks_->own_in_world, ranks_->own.count};
    const auto failed = std::span(w_->wide_failed).first(static_cast<size_t>(all));
    std::fill(failed.begin(), failed.end(), uint8_t{0});
    moe->forward(step, in, all, w_->wide.data(), failed, *w_->moe);
    for (int64_t i = 0; i < ranks_->own.count; ++i) w_->row_failed[static_cast<size_t>(i)] |= failed[static_cast<size_t>(ranks_->own_in_world + i)];
  } else {
    run_dense(std::get<GatedMlp>(layer.feed_forward), in, all, w_->wide.data());
  }
  stream.reduce({moe ? Traffic::kMoeReduce : Traffic::kDenseReduce, index}, rows, w_->wide.data(), w_->delta.data());
  add_delta();
}

void Decoder::run_dense(const GatedMlp& mlp, const float* x, int64_t num_rows, float* out) {
  mlp.forward(share_input(x, num_rows, config_.hidden_size, mlp.rounds_input(), w_->rounded, pool_), num_rows, out, w_->dense_h, w_->per_thread, pool_);
}

// The leader samples: it gets the slices of the others, and which of their rows failed.
void Decoder::collect_rows() {
  Group* group = options_.groups ? options_.groups->attn_tp.get() : nullptr;
  if (!group) return;
  const int64_t hidden = config_.hidden_size;
  // One exchange for `bytes` of each row from `rows`.
  const auto collect = [&](std::byte* rows, int64_t bytes) {
    ranks_->send.assign(static_cast<size_t>(group->size()), {});
    ranks_->recv.assign(ranks_->send.size(), {});
    if (group->rank() > 0) ranks_->send[0] = {rows, ranks_->own.count * bytes};
    int64_t at = ranks_->own.count;
    for (size_t r = 1; group->rank() == 0 && r < ranks_->recv.size(); ++r) {
      ranks_->recv[r] = {rows + at * bytes, ranks_->attn_tp_rows[r] * bytes};
      at += ranks_->attn_tp_rows[r];
    }
    group->all_to_all({Traffic::kOther, -1}, ranks_->send, ranks_->recv);
  };
  collect(reinterpret_cast<std::byte*>(w_->x.data()), hidden * 4);
  collect(reinterpret_cast<std::byte*>(w_->row_failed.data()), 1);
}

void Decoder::write_logits(const StepInput& input, const StepOutput& output) {
  const int64_t hidden = config_.hidden_size, vocab = config_.vocab_size;
  int64_t count = 0;
  for (size_t s = 0; s < input.sequences.size(); ++s) {
    const RowGroup& group = w_->groups[s];
    for (int64_t r = group.first_row; r < group.first_row + group.num_rows; ++r)
      if (w_->row_failed[static_cast<size_t>(r)]) output.sequence_failed[s] = 1;
    const int64_t wanted = input.sequences[s].num_logit_rows;
    for (int64_t i = group.num_rows - wanted; i < group.num_rows; ++i)
      rms_norm(w_->x.data() + (group.first_row + i) * hidden, final_norm_.data(), static_cast<float>(config_.rms_norm_eps), hidden, w_->normed.data() + count++ * hidden);
  }
  CADRE_CHECK(static_cast<int64_t>(output.logits.size()) >= count * vocab, "{} logits for {} rows", output.logits.size(), count);
  const PackedView& head = head_.empty() ? embedding_.view() : head_.view();
  gemm(head, nullptr, {w_->normed.data(), hidden}, count, {output.logits.data(), vocab}, pool_);
  int64_t row = 0;
  for (size_t s = 0; s < input.sequences.size(); ++s) {
    const float* logits = output.logits.data() + row * vocab;
    const int64_t values = input.sequences[s].num_logit_rows * vocab;
    if (std::any_of(logits, logits + values, [](float v) { return std::isnan(v); })) output.sequence_failed[s] = 1;
    row += input.sequences[s].num_logit_rows;
  }
}

}  // namespace cadre
