#include "verify/model_runner.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"
#include "comm/inproc/inproc_world.h"
#include "config/bytes.h"

namespace cadre {

struct ModelRunner::Rank {
  std::unique_ptr<CommWorld> comm;
  std::unique_ptr<RankGroups> groups;
  std::unique_ptr<Decoder> decoder;
  std::unique_ptr<KvStore> kv;
  std::map<int64_t, SeenRoutes> routes;  // of the last step
  ExpertWork work;                       // of the last step, once watched
};

// Leaders wait for the step's number to rise, take the step, and report; the others follow their leader.
struct ModelRunner::Threads {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t step = 0;
  int num_ready = 0, num_done = 0;
  bool is_stopping = false;
  std::exception_ptr failure;  // the first
  std::vector<StepInput> inputs;    // by data-parallel rank
  std::vector<StepOutput> outputs;
  std::vector<std::thread> threads;

  void report(int& counter) {
    const std::lock_guard lock(mutex);
    ++counter;
    changed.notify_all();
  }
  void fail() {
    const std::lock_guard lock(mutex);
    if (!failure) failure = std::current_exception();
    changed.notify_all();
  }
};

ModelRunner::ModelRunner(ModelRunnerOptions options) : options_(std::move(options)), free_(static_cast<size_t>(options_.layout.attn_dp)) {
  Rng rng(options_.seed);
  for (auto& free : free_) {
    free.resize(static_cast<size_t>(options_.num_blocks));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), rng);
  }
  const int world = options_.layout.world;
  for (int r = 0; r < world; ++r) ranks_.push_back(std::make_unique<Rank>());
  if (world == 1) {
    load(0);
    return;
  }
  threads_ = std::make_unique<Threads>();
  auto worlds = make_inproc_worlds(world);
  for (int r = 0; r < world; ++r) ranks_[static_cast<size_t>(r)]->comm = std::move(worlds[static_cast<size_t>(r)]);
  for (int r = 0; r < world; ++r) threads_->threads.emplace_back([this, r] { rank_loop(r); });
  {
    std::unique_lock lock(threads_->mutex);
    threads_->changed.wait(lock, [&] { return threads_->num_ready == world || threads_->failure; });
    if (!threads_->failure) return;
  }
  stop();
  std::rethrow_exception(threads_->failure);
}

ModelRunner::~ModelRunner() { stop(); }

void ModelRunner::stop() {
  if (!threads_) return;
  {
    const std::lock_guard lock(threads_->mutex);
    threads_->is_stopping = true;
    threads_->changed.notify_all();
  }
  for (std::thread& thread : threads_->threads) thread.join();
  threads_->threads.clear();
}

void ModelRunner::load(int world_rank) {
  Rank& rank = *ranks_[static_cast<size_t>(world_rank)];
  DecoderOptions options = options_.decoder;
  if (rank.comm) {
    rank.groups = std::make_unique<RankGroups>(*rank.comm, options_.layout, options_.config.num_layers);
    rank.groups->set_timeout_us(options_.timeout_us);
    options.groups = rank.groups.get();
  }
  const auto source = options_.open_weights();
  check_tensors(*source, options_.config);
  rank.decoder = std::make_unique<Decoder>(options_.config, *source, options);
  rank.kv = std::make_unique<KvStore>(rank.decoder->kv_layout(), options_.num_blocks);
  rank.decoder->set_route_observer([&rank](int64_t layer, std::span<const int32_t> ids, std::span<const float> weights) {
    SeenRoutes& r = rank.routes[layer];
    r.ids.insert(r.ids.end(), ids.begin(), ids.end());
    r.weights.insert(r.weights.end(), weights.begin(), weights.end());
  });
}

void ModelRunner::rank_loop(int world_rank) {
  Rank& rank = *ranks_[static_cast<size_t>(world_rank)];
  Threads& t = *threads_;
  try {
    load(world_rank);
    t.report(t.num_ready);
    const RankCoords c = options_.layout.coords(world_rank);
    if (c.attn_tp != 0) {
      while (rank.decoder->follow(*rank.kv)) t.report(t.num_done);
      return;
    }
    for (int64_t seen = 0;; ++seen) {
      StepInput input;
      StepOutput output;
      {
        std::unique_lock lock(t.mutex);
        t.changed.wait(lock, [&] { return t.step > seen || t.is_stopping || t.failure; });
        if (t.step == seen) break;
        input = t.inputs[static_cast<size_t>(c.attn_dp)];
        output = t.outputs[static_cast<size_t>(c.attn_dp)];
      }
      rank.decoder->forward(input, *rank.kv, output);
      t.report(t.num_done);
    }
    if (!t.failure) rank.decoder->stop_followers();
    else if (rank.groups) rank.groups->abort("stopped after a failure");
  } catch (const std::exception& e) {
    t.fail();
    if (rank.groups) rank.groups->abort(e.what());
  }
}

void ModelRunner::run_all(const std::vector<StepInput>& inputs, const std::vector<StepOutput>& outputs) {
  if (!threads_) return ranks_[0]->decoder->forward(inputs[0], *ranks_[0]->kv, outputs[0]);
  std::unique_lock lock(threads_->mutex);
  threads_->inputs = inputs;
  threads_->outputs = outputs;
  threads_->num_done = 0;
  ++threads_->step;
  threads_->changed.notify_all();
  threads_->changed.wait(lock, [&] { return threads_->num_done == options_.layout.world || threads_->failure; });
  if (threads_->failure) std::rethrow_exception(threads_->failure);
}

std::vector<BlockId> ModelRunner::take_blocks(int dp_rank, int64_t num_tokens) {
  auto& free = free_[static_cast<size_t>(dp_rank)];
  const size_t count = static_cast<size_t>((num_tokens + kKvBlockTokens - 1) / kKvBlockTokens);
  CADRE_CHECK(count <= free.size(), "{} blocks of {}", count, free.size());
  std::vector<BlockId> out(free.end() - static_cast<std::ptrdiff_t>(count), free.end());
  free.resize(free.size() - count);
  return out;
}

void ModelRunner::give_back(int dp_rank, const std::vector<BlockId>& blocks) {
  auto& free = free_[static_cast<size_t>(dp_rank)];
  free.insert(free.begin(), blocks.begin(), blocks.end());
}

const std::map<int64_t, SeenRoutes>& ModelRunner::last_routes(int world_rank) const { return ranks_[static_cast<size_t>(world_rank)]->routes; }

void ModelRunner::watch_experts(int64_t layer, const Clock& clock) {
  for (const auto& rank : ranks_) {
    rank->work.clock = &clock;
    rank->decoder->watch_experts(layer, &rank->work);
  }
}

const ExpertWork& ModelRunner::expert_work(int world_rank) const { return ranks_[static_cast<size_t>(world_rank)]->work; }

TrafficCounters* ModelRunner::counters(int world_rank) {
  const auto& groups = ranks_[static_cast<size_t>(world_rank)]->groups;
  return groups ? &groups->counters : nullptr;
}

std::vector<float> ModelRunner::step(std::span<const RankedRows> sequences) {
  const size_t dp = free_.size(), vocab = static_cast<size_t>(vocab_size());
  std::vector<std::vector<SequenceRows>> rows(dp);
  std::vector<std::vector<float>> logits(dp);
  std::vector<std::vector<uint8_t>> failed(dp);
  std::vector<int64_t> dp_rows(dp);
  for (const RankedRows& s : sequences) {
    const size_t r = static_cast<size_t>(s.dp_rank);
    rows[r].push_back(s.rows);
    logits[r].resize(logits[r].size() + static_cast<size_t>(s.rows.num_logit_rows) * vocab);
    failed[r].push_back(7);  // the model must write each
    dp_rows[r] += static_cast<int64_t>(s.rows.tokens.size());
  }
  std::vector<StepInput> inputs;
  std::vector<StepOutput> outputs;
  for (size_t r = 0; r < dp; ++r) inputs.push_back({rows[r], dp_rows}), outputs.push_back({logits[r], failed[r]});
  for (const auto& rank : ranks_) {
    rank->routes.clear();
    rank->work.rows_of_slot.clear();
    rank->work.compute_us = 0;
  }
  run_all(inputs, outputs);
  for (const auto& rank : ranks_)
    for (const auto& [layer, seen] : rank->routes) {
      SeenRoutes& all = routes_[layer];
      all.ids.insert(all.ids.end(), seen.ids.begin(), seen.ids.end());
      all.weights.insert(all.weights.end(), seen.weights.begin(), seen.weights.end());
    }
  std::vector<float> out;
  std::vector<size_t> at(dp), sequence(dp);
  failed_.clear();
  for (const RankedRows& s : sequences) {
    const size_t r = static_cast<size_t>(s.dp_rank), values = static_cast<size_t>(s.rows.num_logit_rows) * vocab;
    out.insert(out.end(), logits[r].begin() + static_cast<std::ptrdiff_t>(at[r]), logits[r].begin() + static_cast<std::ptrdiff_t>(at[r] + values));
    at[r] += values;
    failed_.push_back(failed[r][sequence[r]++]);
  }
  return out;
}

std::vector<float> ModelRunner::prompt_logits(std::span<const int32_t> tokens, int64_t chunk, int dp_rank) {
  const auto blocks = take_blocks(dp_rank, static_cast<int64_t>(tokens.size()));
  const size_t at_once = static_cast<size_t>(chunk > 0 ? std::min(chunk, max_batched_tokens()) : max_batched_tokens());
  std::vector<float> all;
  for (size_t at = 0; at < tokens.size(); at += at_once) {
    const size_t n = std::min(at_once, tokens.size() - at);
    const RankedRows rows{dp_rank, {tokens.subspan(at, n), static_cast<int64_t>(at), blocks, static_cast<int64_t>(n), static_cast<int64_t>(tokens.size())}};
    const std::vector<float> logits = step(std::span(&rows, 1));
    if (failed_[0] != 0) throw Error(ErrorKind::kInternal, fmt::format("expected finite router scores and logits, found a NaN in tokens {} to {}; check the weights", at, at + n - 1));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  give_back(dp_rank, blocks);
  return all;
}

std::vector<std::vector<float>> ModelRunner::batch_logits(const std::vector<std::vector<int32_t>>& prompts, uint64_t seed) {
  Rng rng(seed);
  const size_t vocab = static_cast<size_t>(vocab_size());
  std::vector<std::vector<float>> out(prompts.size());
  std::vector<std::vector<BlockId>> blocks;
  std::vector<size_t> done(prompts.size()), order(prompts.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rank_of = [&](size_t p) { return static_cast<int>(p % free_.size()); };
  for (size_t p = 0; p < prompts.size(); ++p) blocks.push_back(take_blocks(rank_of(p), static_cast<int64_t>(prompts[p].size())));
  for (bool any = true; any;) {
    any = false;
    std::vector<RankedRows> rows;
    std::vector<size_t> in_step;
    std::shuffle(order.begin(), order.end(), rng);
    std::vector<size_t> budget(free_.size(), static_cast<size_t>(max_batched_tokens()));
    for (const size_t p : order) {
      const size_t left = prompts[p].size() - done[p], r = static_cast<size_t>(rank_of(p));
      any = any || left > 0;
      const size_t n = std::min({static_cast<size_t>(rng.below(20)), left, budget[r]});
      if (n == 0) continue;
      budget[r] -= n;
      rows.push_back({rank_of(p), {std::span(prompts[p]).subspan(done[p], n), static_cast<int64_t>(done[p]), blocks[p], static_cast<int64_t>(n), static_cast<int64_t>(prompts[p].size())}});
      in_step.push_back(p);
    }
    if (rows.empty()) continue;
    const std::vector<float> logits = step(rows);
    auto from = logits.begin();
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t n = rows[i].rows.tokens.size();
      const auto to = from + static_cast<std::ptrdiff_t>(n * vocab);
      out[in_step[i]].insert(out[in_step[i]].end(), from, to);
      done[in_step[i]] += n;
      from = to;
    }
  }
  for (size_t p = 0; p < prompts.size(); ++p) give_back(rank_of(p), blocks[p]);
  return out;
}

}  // namespace cadre
