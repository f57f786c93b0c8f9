#include "verify/model_runner.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"
#include "config/bytes.h"

namespace cadre {

ModelRunner::ModelRunner(std::unique_ptr<Decoder> model, int64_t num_blocks, uint64_t seed)
    : model_(std::move(model)), kv_(model_->kv_layout(), num_blocks), free_(static_cast<size_t>(num_blocks)) {
  model_->set_route_observer([this](int64_t layer, std::span<const int32_t> ids, std::span<const float> weights) {
    SeenRoutes& r = routes_[layer];
    r.ids.insert(r.ids.end(), ids.begin(), ids.end());
    r.weights.insert(r.weights.end(), weights.begin(), weights.end());
  });
  std::iota(free_.begin(), free_.end(), 0);
  Rng rng(seed);
  std::shuffle(free_.begin(), free_.end(), rng);
}

std::vector<BlockId> ModelRunner::take_blocks(int64_t num_tokens) {
  const size_t count = static_cast<size_t>((num_tokens + kKvBlockTokens - 1) / kKvBlockTokens);
  CADRE_CHECK(count <= free_.size(), "{} blocks of {}", count, free_.size());
  std::vector<BlockId> out(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
  free_.resize(free_.size() - count);
  return out;
}

void ModelRunner::give_back(const std::vector<BlockId>& blocks) { free_.insert(free_.begin(), blocks.begin(), blocks.end()); }

std::vector<float> ModelRunner::step(std::span<const SequenceRows> sequences) {
  int64_t rows = 0;
  for (const SequenceRows& s : sequences) rows += s.num_logit_rows;
  std::vector<float> logits(static_cast<size_t>(rows * model_->vocab_size()));
  failed_.assign(sequences.size(), 7);  // the model must write each
  model_->forward({sequences}, kv_, {logits, failed_});
  return logits;
}

std::vector<float> ModelRunner::prompt_logits(std::span<const int32_t> tokens, int64_t chunk) {
  const auto blocks = take_blocks(static_cast<int64_t>(tokens.size()));
  const size_t at_once = static_cast<size_t>(chunk > 0 ? std::min(chunk, model_->max_batched_tokens()) : model_->max_batched_tokens());
  std::vector<float> all;
  for (size_t at = 0; at < tokens.size(); at += at_once) {
    const size_t n = std::min(at_once, tokens.size() - at);
    const SequenceRows rows{tokens.subspan(at, n), static_cast<int64_t>(at), blocks, static_cast<int64_t>(n), static_cast<int64_t>(tokens.size())};
    const std::vector<float> logits = step(std::span(&rows, 1));
    if (failed_[0] != 0) throw Error(ErrorKind::kInternal, fmt::format("expected finite router scores and logits, found a NaN in tokens {} to {}; check the weights", at, at + n - 1));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  give_back(blocks);
  return all;
}

std::vector<std::vector<float>> ModelRunner::batch_logits(const std::vector<std::vector<int32_t>>& prompts, uint64_t seed) {
  Rng rng(seed);
  const size_t vocab = static_cast<size_t>(model_->vocab_size());
  std::vector<std::vector<float>> out(prompts.size());
  std::vector<std::vector<BlockId>> blocks;
  std::vector<size_t> done(prompts.size()), order(prompts.size());
  std::iota(order.begin(), order.end(), 0);
  for (const auto& p : prompts) blocks.push_back(take_blocks(static_cast<int64_t>(p.size())));
  for (bool any = true; any;) {
    any = false;
    std::vector<SequenceRows> rows;
    std::vector<size_t> in_step;
    std::shuffle(order.begin(), order.end(), rng);
    size_t budget = static_cast<size_t>(model_->max_batched_tokens());
    for (const size_t p : order) {
      const size_t left = prompts[p].size() - done[p];
      any = any || left > 0;
      const size_t n = std::min({static_cast<size_t>(rng.below(20)), left, budget});
      if (n == 0) continue;
      budget -= n;
      rows.push_back({std::span(prompts[p]).subspan(done[p], n), static_cast<int64_t>(done[p]), blocks[p], static_cast<int64_t>(n), static_cast<int64_t>(prompts[p].size())});
      in_step.push_back(p);
    }
    if (rows.empty()) continue;
    const std::vector<float> logits = step(rows);
    auto from = logits.begin();
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto to = from + static_cast<std::ptrdiff_t>(rows[i].tokens.size() * vocab);
      out[in_step[i]].insert(out[in_step[i]].end(), from, to);
      done[in_step[i]] += rows[i].tokens.size();
      from = to;
    }
  }
  for (const auto& b : blocks) give_back(b);
  return out;
}

}  // namespace cadre
