// Measures what steps of a model take on this machine, so that cadre plan --replay can stand for it; then, where a
// trace is given, serves it and says how far the replay was from what happened.
#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "cli/calibration.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/process_ranks.h"
#include "cli/step_recorder.h"
#include "replay/summary.h"

namespace cadre::cli {
namespace {

struct CalibrateFlags {
  EngineFlags engine;
  std::string out, check;
  int64_t rounds = 3, limit = 300;
  double rate = 1;
  bool as_json = false;
};

// Answers are as long as asked, whatever the model says.
GenerationRequest request_of(int64_t prompt_tokens, int64_t output_tokens, int64_t vocab_size, Rng& rng) {
  GenerationRequest request;
  for (int64_t i = 0; i < prompt_tokens; ++i)
    request.prompt.push_back(static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab_size))));
  request.sampling.temperature = 0;
  request.sampling.max_tokens = output_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = 1;
  return request;
}

void wait_until_idle(Controller& controller) {
  while (!controller.wait_until_idle(1'000'000'000)) {
  }
}

// A batch of requests at once, with prompts up to a part of the context.
void run_batch(LoadedModel& loaded, int64_t batch, int64_t part, Rng& rng) {
  Controller& controller = loaded.deployment->controller();
  const Engine& engine = controller.engine(0);
  const int64_t context = std::min(engine.max_model_len(), engine.options().num_kv_blocks * 16);
  constexpr int64_t kMostNew = 32;
  const int64_t most_prompt = std::max<int64_t>(context / part - kMostNew, 1);
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t prompt = 1 + rng.below(static_cast<uint32_t>(most_prompt));
    controller.submit(
        request_of(prompt, std::min<int64_t>(1 + rng.below(kMostNew), context - prompt), engine.vocab_size(), rng),
        [](Delta&&) {});
  }
  wait_until_idle(controller);
}

// Batches of all sizes with prompts of all lengths: single rows, full batches, prompts in pieces, long contexts. Then
// more requests than run at once, of which some begin while others go on: the steps of a busy server.
void run_workload(const CalibrateFlags& flags, LoadedModel& loaded) {
  Controller& controller = loaded.deployment->controller();
  const int64_t most = controller.engine(0).options().max_num_seqs * controller.num_ranks();
  Rng rng(1, 1);
  for (int64_t round = 0; round < flags.rounds; ++round) {
    for (int64_t batch = 1; batch <= most; batch = batch < most ? std::min(batch * 2, most) : most + 1)
      for (const int64_t part : {16, 4, 1}) run_batch(loaded, batch, part, rng);
    for (const int64_t part : {16, 8, 4}) run_batch(loaded, 3 * most, part, rng);
  }
}

struct Served {
  double arrival_us = 0, first_us = -1, last_us = -1;
  int64_t num_tokens = 0;
  bool is_refused = false;
};

// The trace as clients would send it, each request at its time.
std::vector<Served> serve_trace(LoadedModel& loaded, const replay::Trace& trace) {
  Controller& controller = loaded.deployment->controller();
  const int64_t vocab_size = controller.engine(0).vocab_size();
  const auto start = std::chrono::steady_clock::now();
  const auto now_us = [start] {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<Served> served(trace.requests.size());
  std::mutex mutex;  // ranks deliver on their own threads
  Rng rng(2, 1);
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const replay::TraceRequest& request = trace.requests[i];
    GenerationRequest generation = request_of(request.prompt_tokens, request.output_tokens, vocab_size, rng);
    std::this_thread::sleep_until(start + std::chrono::microseconds(request.arrival_us));
    served[i].arrival_us = now_us();
    try {
      controller.submit(std::move(generation), [&, i](Delta&& delta) {
        const std::lock_guard lock(mutex);
        if (served[i].first_us < 0) served[i].first_us = now_us();
        if (delta.finish) served[i].last_us = now_us(), served[i].num_tokens = delta.num_completion_tokens;
      });
    } catch (const Error&) {
      served[i].is_refused = true;
    }
  }
  wait_until_idle(controller);
  return served;
}

struct Figure {
  const char* name;
  double ms = 0;
};

std::vector<Figure> figures_of(const replay::Percentiles& ttft, const replay::Percentiles& tpot,
                               const replay::Percentiles& answer) {
  return {{"TTFT mean", ttft.mean},   {"TTFT p50", ttft.p50},    {"TTFT p90", ttft.p90}, {"TTFT p99", ttft.p99},
          {"TPOT mean", tpot.mean},   {"TPOT p50", tpot.p50},    {"TPOT p90", tpot.p90}, {"TPOT p99", tpot.p99},
          {"answer p50", answer.p50}, {"answer p99", answer.p99}};
}

std::vector<Figure> figures_of(const std::vector<Served>& served, const replay::Trace& trace) {
  std::vector<double> ttft, tpot, answer;
  for (size_t i = 0; i < served.size(); ++i) {
    const Served& s = served[i];
    if (s.is_refused || s.last_us < 0) continue;
    ttft.push_back((s.first_us - s.arrival_us) / 1e3);
    answer.push_back((s.last_us - s.arrival_us) / 1e3);
    if (trace.requests[i].output_tokens > 1)
      tpot.push_back((s.last_us - s.first_us) / 1e3 / static_cast<double>(trace.requests[i].output_tokens - 1));
  }
  return figures_of(replay::percentiles_of(ttft), replay::percentiles_of(tpot), replay::percentiles_of(answer));
}

replay::Summary replay_with(const Calibration& c, const replay::LinearCost& cost, const replay::Trace& trace) {
  const replay::ClusterOptions options{.ranks = c.ranks,
                                       .scheduler = c.scheduler,
                                       .num_kv_blocks = c.num_kv_blocks,
                                       .max_model_len = c.max_model_len,
                                       .queue = {.max_requests = INT64_MAX, .max_tokens = INT64_MAX},
                                       .cost = cost,
                                       .balance = {}};
  return replay::summarize(trace, options, replay::replay_trace(trace, options));
}

// Serves the trace and replays it twice: with what was measured before, which is a prediction, and with a fit to the
// very steps that were served, which leaves the form of the cost as the only thing to err. The error of a figure is of
// the replayed against the served.
json::object check(const CalibrateFlags& flags, LoadedModel& loaded, const Calibration& calibration,
                   StepRecorder& recorder, std::string* text) {
  const replay::Trace trace = replay::read_trace(flags.check, {.limit = flags.limit, .rate = flags.rate});
  recorder.clear();
  const std::vector<Served> served = serve_trace(loaded, trace);
  const auto own_steps = recorder.steps();
  const replay::CostError steps = replay::cost_error(calibration.cost, own_steps);
  const bool has_own = own_steps.size() >= replay::LinearCost::kNumFeatures;
  const replay::LinearCost own =
      has_own ? replay::fit_linear_cost(own_steps, calibration.cost.num_experts, calibration.cost.top_k)
              : calibration.cost;
  const replay::Summary predicted = replay_with(calibration, calibration.cost, trace),
                        fitted = replay_with(calibration, own, trace);
  const auto num_refused = std::count_if(served.begin(), served.end(), [](const Served& s) { return s.is_refused; });
  *text += fmt::format(
      "\n{}: {} requests in {:.1f} s, {} refused (replay: {}), {} steps (replay: {}), step times off by {:.1f} % on "
      "average, {:+.1f} % in all\n",
      flags.check, trace.requests.size(), trace.duration_s(), num_refused, predicted.too_long + predicted.overloaded,
      own_steps.size(), predicted.totals.steps, 100 * steps.mean, 100 * (steps.total - 1));
  *text += fmt::format("  {:<11} {:>12} {:>12} {:>8} {:>14} {:>8}\n", "", "served", "replayed", "error", "by own steps",
                       "error");
  const auto a = figures_of(served, trace), b = figures_of(predicted.ttft_ms, predicted.tpot_ms, predicted.answer_ms),
             c = figures_of(fitted.ttft_ms, fitted.tpot_ms, fitted.answer_ms);
  json::object figures;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto error = [&](const Figure& figure) { return a[i].ms > 0 ? figure.ms / a[i].ms - 1 : 0.0; };
    *text += fmt::format("  {:<11} {:>9.2f} ms {:>9.2f} ms {:>+7.1f}% {:>11.2f} ms {:>+7.1f}%\n", a[i].name, a[i].ms,
                         b[i].ms, 100 * error(b[i]), c[i].ms, 100 * error(c[i]));
    figures[a[i].name] = {{"served_ms", a[i].ms},
                          {"replayed_ms", b[i].ms},
                          {"error", error(b[i])},
                          {"by_own_steps_ms", c[i].ms},
                          {"own_error", error(c[i])}};
  }
  return {{"trace", flags.check},
          {"requests", trace.requests.size()},
          {"refused", num_refused},
          {"figures", std::move(figures)},
          {"replayed", replay::summary_json(predicted)},
          {"step_error_mean", steps.mean},
          {"step_error_total", steps.total - 1}};
}

Calibration measure(const CalibrateFlags& flags, LoadedModel& loaded, StepRecorder& recorder) {
  run_workload(flags, loaded);
  const Engine& engine = loaded.deployment->controller().engine(0);
  const RouterConfig& router = loaded.config.moe.router;
  const auto steps = recorder.steps();
  Calibration c{.model = std::filesystem::path(flags.engine.model).filename().string(),
                .cost = {},
                .error = {},
                .num_steps = static_cast<int64_t>(steps.size())};
  c.cost = replay::fit_linear_cost(steps, router.num_experts, router.top_k);
  c.error = replay::cost_error(c.cost, steps);
  c.ranks = loaded.deployment->controller().num_ranks();
  c.scheduler = {.max_num_seqs = engine.options().max_num_seqs,
                 .max_num_batched_tokens = engine.options().max_num_batched_tokens,
                 .max_prefill_tokens_per_step = engine.options().max_prefill_tokens_per_step};
  c.num_kv_blocks = engine.options().num_kv_blocks;
  c.max_model_len = engine.max_model_len();
  return c;
}

int calibrate(const CalibrateFlags& flags) {
  if (const auto place = launched_place())
    throw invalid_input(
        "calibrate: expected ranks as threads of one process, found {} processes; leave the launcher out", place->size);
  std::ofstream out;
  if (!flags.out.empty()) out.open(flags.out);  // before minutes are spent
  if (!flags.out.empty() && !out)
    throw Error(ErrorKind::kNotFound,
                fmt::format("--out: expected a file to write, found none at {}; check the path", flags.out));
  SteadyClock clock;
  StepRecorder recorder(clock);
  ControllerOptions controller{
      .max_queued_requests = INT64_MAX, .max_queued_tokens = INT64_MAX, .step_observer = recorder.observer()};
  LoadedModel loaded = load_model(flags.engine, controller, clock, terminal_progress());
  recorder.set_num_ranks(loaded.deployment->controller().num_ranks());
  const Calibration calibration = measure(flags, loaded, recorder);
  json::object report = calibration_json(calibration);
  if (out.is_open() && !(out << json::serialize(report) << '\n').flush())
    throw Error(ErrorKind::kUnavailable, fmt::format("--out: expected room for {}, found none; free some", flags.out));
  std::string text = fmt::format("{} steps on {} {}: {:.1f} % off on average, {:+.2f} % in all\n",
                                 calibration.num_steps, calibration.ranks, calibration.ranks == 1 ? "rank" : "ranks",
                                 100 * calibration.error.mean, 100 * (calibration.error.total - 1));
  for (size_t i = 0; i < replay::LinearCost::kNumFeatures; ++i)
    text += fmt::format("  {:<22} {:>12.4f} us\n", replay::LinearCost::kNames[i], calibration.cost.us[i]);
  if (!flags.check.empty()) report["check"] = check(flags, loaded, calibration, recorder, &text);
  std::fputs((flags.as_json ? json::serialize(report) + "\n" : text).c_str(), stdout);
  return kExitOk;
}

}  // namespace

void add_calibrate(CLI::App& app, Run* run) {
  CLI::App* command = app.add_subcommand(
      "calibrate", "Measure what a model's steps take here, for cadre plan --replay --replay-cost FILE");
  auto f = std::make_shared<CalibrateFlags>();
  add_engine_flags(*command, f->engine);
  command->add_option("--out", f->out, "Write the result to this file");
  command->add_option("--rounds", f->rounds, "Times through batches of all sizes")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  command->add_option("--check", f->check, "Then serve this trace, replay it, and compare the two")
      ->check(CLI::ExistingFile);
  command->add_option("--check-rate", f->rate, "Its arrivals so many times as fast")->capture_default_str();
  command->add_option("--check-limit", f->limit, "Its first so many requests; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_flag("--json", f->as_json, "As JSON");
  command->callback([run, f] { *run = [f] { return calibrate(*f); }; });
}

}  // namespace cadre::cli
