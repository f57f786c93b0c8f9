// What prefill_report counts, measured: a model on data-parallel ranks in lockstep, chats that decode all the time, and a long
// prompt whenever the last one has its first token. For several bounds on prompt rows per step: the time between two tokens of
// a chat, and from a long prompt's arrival to its first token.
//   prefill_latency [--model DIR] [--ranks N] [--prompts N] [--seed N]
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <mutex>
#include <vector>

#include "base/rng.h"
#include "config/model_config.h"
#include "dp/deployment.h"
#include "tokenizer/byte_tokenizer.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

struct Options {
  std::string model = "models/demo";
  int ranks = 4;
  int64_t num_prompts = 24, batch = 512;
  uint64_t seed = 1;
};

struct Times {
  std::vector<int64_t> gaps_us, long_first_us;
  int64_t total_us = 0;
};

double percentile_ms(std::vector<int64_t>& values, double share) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return static_cast<double>(*at) / 1000;
}

Times measure(const Options& o, int64_t bound) {
  const SteadyClock clock;
  Layout layout;
  layout.world = layout.attn_dp = layout.ep = o.ranks;
  layout.exchange = o.ranks > 1 ? ExchangeKind::kAuto : ExchangeKind::kNone;
  const ModelConfig config = load_model_config(o.model);
  DeploymentOptions options{.config = config, .layout = layout, .open_weights = [&] { return open_checkpoint(o.model); },
                            .decoder = {.max_batched_tokens = o.batch, .compute_mode = ComputeMode::kFast},
                            .engine = {.max_num_seqs = 16, .max_num_batched_tokens = o.batch, .max_prefill_tokens_per_step = bound, .num_kv_blocks = 1024}};
  Deployment deployment(std::move(options), std::make_shared<ByteTokenizer>(), clock);
  Controller& controller = deployment.controller();
  Rng rng(o.seed, 1);
  const auto prompt = [&](int64_t n) {
    std::vector<int32_t> out;
    for (; n > 0; --n) out.push_back(static_cast<int32_t>(rng.below(static_cast<uint32_t>(config.vocab_size))));
    return out;
  };
  const int64_t context = controller.engine(0).max_model_len();
  std::mutex mutex;
  Times times;
  std::atomic<bool> is_over{false};
  // A chat that ends is followed by the next, two a rank at a time.
  std::function<void(int)> chat = [&](int rank) {
    auto last_us = std::make_shared<int64_t>(-1);
    controller.submit({.prompt = prompt(20), .sampling = {.temperature = 0, .max_tokens = 150, .ignore_eos = true}, .data_parallel_rank = rank},
                      [&, rank, last_us](Delta&& delta) {
                        const int64_t now_us = clock.now_us();
                        if (*last_us >= 0 && !is_over) {
                          const std::lock_guard lock(mutex);
                          times.gaps_us.push_back(now_us - *last_us);
                        }
                        *last_us = now_us;
                        if (delta.finish && !is_over) chat(rank);
                      });
  };
  const int64_t begun_us = clock.now_us();
  for (int i = 0; i < 2 * o.ranks; ++i) chat(i % o.ranks);
  for (int64_t i = 0; i < o.num_prompts; ++i) {
    std::latch done(1);
    const int64_t arrived_us = clock.now_us();
    controller.submit({.prompt = prompt(context - 8), .sampling = {.temperature = 0, .max_tokens = 1, .ignore_eos = true}, .data_parallel_rank = static_cast<int>(i) % o.ranks},
                      [&](Delta&& delta) {
                        if (!delta.finish) return;
                        times.long_first_us.push_back(clock.now_us() - arrived_us);
                        done.count_down();
                      });
    done.wait();
  }
  times.total_us = clock.now_us() - begun_us;
  is_over = true;
  controller.wait_until_idle(120'000);
  return times;
}

int report(const Options& o) {
  std::printf("%s on %d ranks in lockstep, two chats a rank, %lld long prompts one after the other; at most %lld rows a step and rank\n", o.model.c_str(), o.ranks,
              static_cast<long long>(o.num_prompts), static_cast<long long>(o.batch));
  std::printf("%22s %12s %12s %12s %16s %16s\n", "prefill rows per step", "gap p50 ms", "gap p99 ms", "gap max ms", "long p50 ms", "chat tokens/s");
  for (const int64_t bound : {0, 256, 128, 64, 32}) {
    Times t = measure(o, bound);
    std::printf("%22s %12.2f %12.2f %12.2f %16.1f %16.0f\n", bound ? std::to_string(bound).c_str() : "no bound", percentile_ms(t.gaps_us, 0.5), percentile_ms(t.gaps_us, 0.99),
                percentile_ms(t.gaps_us, 1), percentile_ms(t.long_first_us, 0.5), static_cast<double>(t.gaps_us.size()) / static_cast<double>(t.total_us) * 1e6);
  }
  return 0;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  cadre::Options o;
  for (int i = 1; i < argc; i += 2) {
    const bool has_value = i + 1 < argc;
    if (has_value && !std::strcmp(argv[i], "--model")) o.model = argv[i + 1];
    else if (has_value && !std::strcmp(argv[i], "--ranks")) o.ranks = std::max(1, std::atoi(argv[i + 1]));
    else if (has_value && !std::strcmp(argv[i], "--prompts")) o.num_prompts = std::max(1LL, std::atoll(argv[i + 1]));
    else if (has_value && !std::strcmp(argv[i], "--seed")) o.seed = std::strtoull(argv[i + 1], nullptr, 10);
    else return std::fprintf(stderr, "usage: prefill_latency [--model DIR] [--ranks N] [--prompts N] [--seed N]\n"), 2;
  }
  return cadre::report(o);
}
