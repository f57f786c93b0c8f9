#include "models/decoder.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/elementwise.h"

namespace cadre {

struct Decoder::Layer {
  std::vector<float> attention_norm, feed_forward_norm;
  std::variant<GqaAttention, MlaAttention> attention;
  std::variant<GatedMlp, MoeLayer> feed_forward;
};

// Memory for the rows of one step, made once.
struct Decoder::Workspace {
  std::vector<RowGroup> groups;
  std::vector<int32_t> group_of_row;
  std::vector<int64_t> positions;
  std::vector<float> cos, sin;
  std::vector<float> x, normed, delta;  // [max rows, H]
  std::vector<uint8_t> row_failed;
  std::optional<GqaWorkspace> gqa;
  std::optional<MlaWorkspace> mla;
  std::optional<MoeWorkspace> moe;
  std::vector<float> dense_h, per_thread;
};

Decoder::Decoder(ModelConfig config, WeightSource& source, const DecoderOptions& options, const std::function<void(int64_t, int64_t)>& progress)
    : config_(std::move(config)), options_(options), pool_(options.num_threads), rope_(config_.attention.rope) {
  WeightLoader loader(source, config_);
  embedding_ = std::move(loader.linear("model.embed_tokens", config_.vocab_size, config_.hidden_size).weight);
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    LayerWeights weights = load_layer(loader, i);
    auto attention = [&]() -> std::variant<GqaAttention, MlaAttention> {
      if (auto* mla = std::get_if<MlaWeights>(&weights.attention)) return MlaAttention(config_.attention, rope_, options_.kv_dtype, std::move(*mla));
      return GqaAttention(config_.attention, rope_, config_.rms_norm_eps, config_.layers[static_cast<size_t>(i)].sliding_window, options_.kv_dtype,
                          std::move(std::get<GqaWeights>(weights.attention)));
    }();
    auto feed_forward = [&]() -> std::variant<GatedMlp, MoeLayer> {
      if (auto* moe = std::get_if<MoeWeights>(&weights.feed_forward)) return MoeLayer(config_.moe, std::move(*moe));
      return std::move(std::get<GatedMlp>(weights.feed_forward));
    }();
    layers_.push_back(std::make_unique<Layer>(Layer{std::move(weights.attention_norm), std::move(weights.feed_forward_norm), std::move(attention), std::move(feed_forward)}));
    if (progress) progress(i + 1, config_.num_layers);
  }
  final_norm_ = loader.vector("model.norm.weight", config_.hidden_size);
  if (!config_.tie_word_embeddings) head_ = std::move(loader.linear("lm_head", config_.vocab_size, config_.hidden_size).weight);

  const int64_t rows = options_.max_batched_tokens;
  const size_t wide = static_cast<size_t>(rows * config_.hidden_size);
  w_ = std::make_unique<Workspace>();
  w_->groups.reserve(static_cast<size_t>(rows));
  w_->group_of_row.resize(static_cast<size_t>(rows));
  w_->positions.resize(static_cast<size_t>(rows));
  w_->cos.resize(static_cast<size_t>(rows * rope_.half_dim()));
  w_->sin.resize(w_->cos.size());
  w_->x.resize(wide);
  w_->normed.resize(wide);
  w_->delta.resize(wide);
  w_->row_failed.resize(static_cast<size_t>(rows));
  if (config_.attention.kind == AttentionKind::kMla) w_->mla.emplace(config_.attention, rows, options_.num_threads, config_.max_position);
  else w_->gqa.emplace(config_.attention, rows);
  if (config_.moe.router.num_experts > 0) w_->moe.emplace(config_.moe, config_.hidden_size, rows, options_.num_threads);
  w_->dense_h.resize(static_cast<size_t>(rows * config_.dense_intermediate));
  w_->per_thread.resize(static_cast<size_t>(options_.num_threads) * kGatedScratchFloats);
}

Decoder::~Decoder() = default;

KvLayout Decoder::kv_layout() const {
  const AttentionConfig& a = config_.attention;
  return {config_.num_layers, a.kind == AttentionKind::kMla ? mla_block_bytes(a, options_.kv_dtype) : gqa_block_bytes(a, options_.kv_dtype)};
}

void Decoder::forward(const StepInput& input, KvStore& kv, const StepOutput& output) {
  const int64_t rows = lay_out_rows(input);
  std::fill(output.sequence_failed.begin(), output.sequence_failed.end(), uint8_t{0});
  if (rows == 0) return;
  embed(input, rows);
  AttentionStep step{.groups = w_->groups, .group_of_row = {w_->group_of_row.data(), static_cast<size_t>(rows)},
                     .positions = {w_->positions.data(), static_cast<size_t>(rows)}, .cos = w_->cos.data(), .sin = w_->sin.data(), .kv = &kv, .pool = &pool_};
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) run_layer(layer, step);
  write_logits(input, output);
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
  return row;
}

void Decoder::embed(const StepInput& input, int64_t rows) {
  pool_.parallel_for(rows, [&](int64_t row, int) {
    const size_t group = static_cast<size_t>(w_->group_of_row[static_cast<size_t>(row)]);
    const int32_t token = input.sequences[group].tokens[static_cast<size_t>(row - w_->groups[group].first_row)];
    unpack_row(embedding_.view(), token, w_->x.data() + row * config_.hidden_size);
  });
}

void Decoder::run_layer(int64_t index, AttentionStep& step) {
  const Layer& layer = *layers_[static_cast<size_t>(index)];
  const int64_t rows = step.num_rows(), hidden = config_.hidden_size;
  const float eps = static_cast<float>(config_.rms_norm_eps);
  const auto normalise = [&](const std::vector<float>& weight) {
    pool_.parallel_for(rows, [&](int64_t r, int) { rms_norm(w_->x.data() + r * hidden, weight.data(), eps, hidden, w_->normed.data() + r * hidden); });
  };
  const auto add_delta = [&] {
    pool_.parallel_for(rows, [&](int64_t r, int) { add(w_->delta.data() + r * hidden, hidden, w_->x.data() + r * hidden); });
  };
  step.layer = index;
  normalise(layer.attention_norm);
  if (const auto* mla = std::get_if<MlaAttention>(&layer.attention)) mla->forward(step, w_->normed.data(), w_->delta.data(), *w_->mla);
  else std::get<GqaAttention>(layer.attention).forward(step, w_->normed.data(), w_->delta.data(), *w_->gqa);
  add_delta();
  normalise(layer.feed_forward_norm);
  if (const auto* moe = std::get_if<MoeLayer>(&layer.feed_forward))
    moe->forward(w_->normed.data(), rows, w_->delta.data(), w_->row_failed, *w_->moe, pool_, index, &observer_);
  else std::get<GatedMlp>(layer.feed_forward).forward(w_->normed.data(), rows, w_->delta.data(), w_->dense_h, w_->per_thread, pool_);
  add_delta();
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
