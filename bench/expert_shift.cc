// What balancing experts is worth on real text: the demo model on 8 ranks, prompts of one domain after the other, then a shift
// from stories to code to German in one run. Balancedness (mean over ranks / maximum of the rows that ranks compute, over all
// sparse layers) with experts where they began and with balancing on, for the same rows; what moved; and how long steps took.
//   expert_shift [--model DIR] [--prompts DIR] [--ranks N] [--redundant N] [--requests N] [--interval STEPS]
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>

#include "base/json.h"
#include "base/rng.h"
#include "config/model_config.h"
#include "dp/deployment.h"
#include "eplb/planner.h"
#include "parallel/expert_load.h"
#include "tokenizer/tokenizer.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

struct Options {
  std::string model = "models/demo", prompts;
  int ranks = 8;
  int64_t redundant = 8, requests = 48, interval = 100;
};

// Openings that the model goes on with in the language and kind of text they have; the prompts' folder has neither.
const std::map<std::string, std::vector<std::string>> kOpenings = {
    {"stories", {"Once upon a time there was a little dog", "One day, Tom and his mom went to the park.", "Lily loved her red ball.", "The bird was sad because", "In a small house by the lake lived",
                 "Ben found a big box in the garden.", "The cat wanted to play with", "It was a sunny day and Anna"}},
    {"german", {"Es war einmal ein alter König, der", "Die Geschichte der Stadt beginnt im", "Am nächsten Morgen ging er", "Der Fluss entspringt in den Bergen und", "Sie sagte leise, dass",
                "Im Jahr 1848 wurde", "Das Haus stand am Rande des Waldes", "Ein Mann kam in das Dorf und"}},
};

std::vector<std::string> read_prompts(const Options& o, const std::string& domain) {
  if (const auto found = kOpenings.find(domain); found != kOpenings.end()) return found->second;
  std::vector<std::string> out;
  std::ifstream file(o.prompts + "/" + domain + ".jsonl");
  for (std::string line; std::getline(file, line);) out.push_back(std::string(std::string_view(parse_json(line, domain).at("prompt").as_string())));
  return out;
}

class Served {
 public:
  Served(const Options& o, bool has_balancing) : o_(o), config_(load_model_config(o.model)), tokenizer_(load_tokenizer(o.model)) {
    Layout layout;
    layout.world = layout.attn_dp = layout.ep = o.ranks;
    layout.exchange = ExchangeKind::kAuto;
    layout.redundant_experts = o.redundant;
    DeploymentOptions options{.config = config_, .layout = layout, .open_weights = [o] { return open_checkpoint(o.model); },
                              .decoder = {.max_batched_tokens = 256, .compute_mode = ComputeMode::kFast},
                              .engine = {.max_num_seqs = 16, .max_num_batched_tokens = 256, .max_prefill_tokens_per_step = 64, .num_kv_blocks = 1024, .seed = 1}};
    options.decoder.balance = {.interval_steps = has_balancing ? o.interval : 0, .window_steps = o.interval, .prices_moves = false,
                               .planner = eplb::make_planner("cadre", layout, config_.moe.router, 1), .on_step = [this](const eplb::BalancedStep& step) { steps.push_back(step); }};
    deployment_ = std::make_unique<Deployment>(std::move(options), tokenizer_, clock_);
  }

  // Answers to `requests` prompts of a domain, all at once; from number `first` on.
  void run(const std::string& domain, int64_t first, int64_t requests) {
    const auto prompts = read_prompts(o_, domain);
    if (prompts.empty()) throw std::runtime_error("no prompts of " + domain);
    for (int64_t i = first; i < first + requests; ++i) {
      std::vector<int32_t> ids = tokenizer_->encode(prompts[static_cast<size_t>(i) % prompts.size()], true);
      ids.resize(std::min<size_t>(ids.size(), 200));
      GenerationRequest request{.prompt = std::move(ids), .sampling = {.temperature = 0.8, .seed = static_cast<uint64_t>(i), .max_tokens = 64, .ignore_eos = true},
                                .data_parallel_rank = i % o_.ranks};  // the same rows in every run
      deployment_->controller().submit(std::move(request), [](Delta&&) {});
    }
    deployment_->controller().wait_until_idle(600'000);
  }

  eplb::LoadRecorder& recorder() { return *deployment_->recorder(); }
  eplb::Balancer& balancer() { return *deployment_->balancer(); }

  std::vector<eplb::BalancedStep> steps;

 private:
  const Options o_;
  const SteadyClock clock_;
  const ModelConfig config_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Deployment> deployment_;
};

// Rows of ranks since the last call, as they were computed.
class RowMeter {
 public:
  explicit RowMeter(eplb::Balancer& balancer) : balancer_(balancer) { take(); }
  // Over what a layer and step waited for: mean of ranks / maximum, by the balancer's reports of eight steps each.
  double take() {
    const eplb::Histogram now = balancer_.stats().balancedness_by_rows;
    int64_t reports = -reports_;
    for (const int64_t count : now.counts) reports += count;
    const double mean = reports > 0 ? (now.sum - sum_) / static_cast<double>(reports) : 0;
    reports_ += reports, sum_ = now.sum;
    return mean;
  }

 private:
  eplb::Balancer& balancer_;
  int64_t reports_ = 0;
  double sum_ = 0;
};

double balancedness(Served& served, const std::vector<ExpertPlacement>& placements) {
  const eplb::RecorderStatus status = served.recorder().status();
  const size_t experts = static_cast<size_t>(served.recorder().num_experts());
  double means = 0, maxima = 0;
  for (size_t l = 0; l < placements.size(); ++l) {
    const std::vector<double> rows(status.counts.begin() + static_cast<std::ptrdiff_t>(l * experts), status.counts.begin() + static_cast<std::ptrdiff_t>((l + 1) * experts));
    const auto loads = rank_loads(placements[l], rows);
    double sum = 0;
    for (const double load : loads) sum += load;
    means += sum / static_cast<double>(loads.size()), maxima += *std::max_element(loads.begin(), loads.end());
  }
  return maxima > 0 ? means / maxima : 1;
}

// By domain: a window of it, a rebalance, and other prompts of the same domain.
void by_domain(const Options& o, const std::vector<std::string>& domains) {
  std::printf("| domain | as loaded | balanced | gap closed | slots moved | bytes |\n|---|---|---|---|---|---|\n");
  for (const std::string& domain : domains) {
    Served served(o, true);
    const auto initial = served.balancer().placements();
    served.run(domain, 0, o.requests);
    while (served.balancer().stats().num_rebalances == 0) served.run(domain, 0, o.ranks);
    served.recorder().start(eplb::RecorderMode::kStat);
    const auto placed = served.balancer().placements();
    served.run(domain, o.requests, o.requests);
    const double before = balancedness(served, initial), after = balancedness(served, placed);
    const eplb::BalancerStats stats = served.balancer().stats();
    std::printf("| %s | %.3f | %.3f | %.0f %% | %lld | %lld |\n", domain.c_str(), before, after, 100 * (after - before) / (1 - before), static_cast<long long>(stats.moved_slots),
                static_cast<long long>(stats.moved_bytes));
    std::fflush(stdout);
  }
}

void shift(const Options& o, const std::vector<std::string>& domains) {
  std::printf("\n| text | experts stay | balanced, at once | balanced, after a rebalance | slots moved |\n|---|---|---|---|---|\n");
  Served fixed(o, false), moving(o, true);
  const auto initial = fixed.balancer().placements();
  RowMeter meter(moving.balancer());
  int64_t moved = 0;
  for (const std::string& domain : domains) {
    for (Served* s : {&fixed, &moving}) s->recorder().start(eplb::RecorderMode::kStat);
    fixed.run(domain, 0, 2 * o.requests);
    const auto before = moving.balancer().placements();
    const int64_t rebalances = moving.balancer().stats().num_rebalances;
    moving.run(domain, 0, o.requests);
    const double at_once = balancedness(moving, before);
    while (moving.balancer().stats().num_rebalances == rebalances) moving.run(domain, 0, o.ranks);
    const auto after = moving.balancer().placements();
    moving.recorder().start(eplb::RecorderMode::kStat);
    moving.run(domain, o.requests, o.requests);
    const int64_t all = moving.balancer().stats().moved_slots;
    std::printf("| %s | %.3f | %.3f | %.3f | %lld |\n", domain.c_str(), balancedness(fixed, initial), at_once, balancedness(moving, after), static_cast<long long>(all - moved));
    std::fflush(stdout);
    moved = all;
  }
  const eplb::BalancerStats stats = moving.balancer().stats();
  std::printf("\n%lld rebalances, %lld bytes moved, %.3f s added to steps of %.1f s in all; rows as computed, mean over reports: %.3f\n", static_cast<long long>(stats.num_rebalances),
              static_cast<long long>(stats.moved_bytes), static_cast<double>(stats.stall_us) * 1e-6,
              [&] { double sum = 0; for (const auto& s : moving.steps) sum += static_cast<double>(s.step_us + s.stall_us) * 1e-6; return sum; }(), meter.take());

  // Steps with as many rows of prompts and answers differ anyway: each is put beside the median of its kind.
  std::vector<int64_t> times;
  for (const eplb::BalancedStep& s : moving.steps) times.push_back(s.step_us);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  const double median_us = static_cast<double>(times[times.size() / 2]);
  constexpr std::array<double, 8> kBounds = {0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 4};
  std::array<std::array<int64_t, kBounds.size() + 1>, 2> added{}, whole{};
  for (const eplb::BalancedStep& s : moving.steps) {
    const auto bin = [&](double ratio) { return static_cast<size_t>(std::lower_bound(kBounds.begin(), kBounds.end(), ratio) - kBounds.begin()); };
    ++added[s.is_moving][bin(static_cast<double>(s.stall_us) / median_us)];
    ++whole[s.is_moving][bin(static_cast<double>(s.step_us + s.stall_us) / median_us)];
  }
  std::printf("\nsteps of %.1f ms at the median, by what was added after them and by their whole time, as parts of that median\n| at most | added, experts at rest | added, on their way | whole, at rest | whole, on their way |\n|---|---|---|---|---|\n", median_us / 1000);
  for (size_t i = 0; i <= kBounds.size(); ++i)
    std::printf("| %s | %lld | %lld | %lld | %lld |\n", i < kBounds.size() ? fmt::format("{}", kBounds[i]).c_str() : "more", static_cast<long long>(added[0][i]), static_cast<long long>(added[1][i]),
                static_cast<long long>(whole[0][i]), static_cast<long long>(whole[1][i]));
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  cadre::Options o;
  const char* data = std::getenv("CADRE_DATA");
  o.prompts = std::string(data ? data : "../shared/data") + "/prompts/domain_shift";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--model") o.model = value;
    else if (flag == "--prompts") o.prompts = value;
    else if (flag == "--ranks") o.ranks = std::atoi(value.c_str());
    else if (flag == "--redundant") o.redundant = std::atoll(value.c_str());
    else if (flag == "--requests") o.requests = std::atoll(value.c_str());
    else if (flag == "--interval") o.interval = std::atoll(value.c_str());
    else return std::fprintf(stderr, "expert_shift: expected a flag of the first lines of its source, found %s\n", argv[i]), 2;
  }
  try {
    cadre::by_domain(o, {"stories", "german", "code", "translation", "math", "medical", "legal", "finance", "summarization", "general_qa"});
    cadre::shift(o, {"stories", "code", "german"});
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "expert_shift: %s\n", e.what()), 1;
  }
  return 0;
}
