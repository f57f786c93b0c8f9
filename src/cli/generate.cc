#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/process_ranks.h"
#include "cli/report.h"
#include "cli/trace.h"

namespace cadre::cli {
namespace {

struct GenerateFlags {
  EngineFlags engine;
  std::vector<std::string> prompts;
  std::string file;
  bool chat = false, as_json = false, ignore_eos = false;
  int64_t max_tokens = 128;
  double temperature = -1, top_p = -1;
  int32_t top_k = -1;
  std::vector<std::string> stop;
  bool report = false;
  std::string report_file;
  int64_t trace_token = 0, trace_layer = -1;
};

struct Answer {
  std::string prompt, text, finish, error;
  int64_t num_prompt_tokens = 0, num_completion_tokens = 0;
};

// One prompt a line, or JSON lines with "prompt". "-" is standard input.
std::vector<std::string> read_prompts(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) throw Error(ErrorKind::kNotFound, fmt::format("--file: expected a readable file, found none at {}; check the path", path));
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::vector<std::string> prompts;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    if (line[0] == '{') {
      const std::string where = fmt::format("{}:{}", path, number);
      const json::value value = parse_json(line, where);
      prompts.push_back(JsonObject(value.as_object(), where).string("prompt"));
    } else {
      prompts.push_back(std::move(line));
    }
  }
  if (prompts.empty()) throw invalid_input("--file: expected a prompt on a line, found none in {}; write one", path);
  return prompts;
}

SamplingParams sampling_of(const GenerateFlags& f, const SamplingDefaults& d) {
  SamplingParams s;
  s.temperature = f.temperature >= 0 ? f.temperature : d.temperature;
  s.top_p = f.top_p > 0 ? f.top_p : d.top_p;
  s.top_k = f.top_k >= 0 ? f.top_k : d.top_k;
  s.min_p = d.min_p;
  s.repetition_penalty = d.repetition_penalty;
  s.max_tokens = f.max_tokens;
  s.ignore_eos = f.ignore_eos;
  s.stop = f.stop;
  if (f.engine.seed >= 0) s.seed = static_cast<uint64_t>(f.engine.seed);
  return s;
}

std::vector<int32_t> prompt_ids(const GenerateFlags& flags, const Tokenizer& tokenizer, const std::function<std::string(const json::object&)>& render,
                                const std::string& prompt) {
  if (!flags.chat) return tokenizer.encode(prompt, true);
  if (!render) throw invalid_input("--chat: expected a model with a chat template, found none in {}; leave --chat out", flags.engine.model);
  json::object variables;
  variables["messages"] = json::array{{{"role", "user"}, {"content", prompt}}};
  variables["add_generation_prompt"] = true;
  const auto text_of = [&](std::optional<TokenId> id) { return id ? std::string(tokenizer.piece(*id)) : std::string(); };
  variables["bos_token"] = text_of(tokenizer.bos_id());
  variables["eos_token"] = text_of(tokenizer.eos_id());
  return tokenizer.encode(render(variables), false);  // the template writes the begin token itself
}

const char* finish_text(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  return "?";
}

void print_answer(const Answer& a, bool as_json, bool show_prompt) {
  if (as_json) {
    const json::object line{{"prompt", a.prompt}, {"text", a.text}, {"finish_reason", a.finish}, {"prompt_tokens", a.num_prompt_tokens},
                            {"completion_tokens", a.num_completion_tokens}};
    std::printf("%s\n", json::serialize(line).c_str());
  } else {
    std::printf("%s%s\n", show_prompt ? ("=== " + a.prompt + "\n").c_str() : "", a.text.c_str());
  }
}

// Text behind the answers, or on standard error where those are JSON; the same as JSON in a file.
void write_report(const GenerateFlags& flags, LoadedModel& loaded) {
  const RunReport report = make_report(loaded);
  if (flags.report) std::fputs(report_text(report).c_str(), flags.as_json ? stderr : stdout);
  if (flags.report_file.empty()) return;
  std::ofstream file(flags.report_file);
  file << json::serialize(report_json(report)) << '\n';
  if (!file.flush()) throw Error(ErrorKind::kNotFound, fmt::format("--report-file: expected a file to write, found none at {}; check the path", flags.report_file));
}

int trace(const GenerateFlags& flags, const std::vector<std::string>& prompts) {
  const ModelConfig config = load_model_config(flags.engine.model);
  const auto tokenizer = open_tokenizer(flags.engine, config);
  const auto render = flags.chat ? chat_renderer(tokenizer) : nullptr;
  TraceFlags trace{.new_token = flags.trace_token, .layer = flags.trace_layer, .as_json = flags.as_json, .prompts = {}};
  for (const std::string& prompt : prompts) trace.prompts.push_back(prompt_ids(flags, *tokenizer, render, prompt));
  return trace_one_token(flags.engine, config, *tokenizer, std::move(trace));
}

int generate(const GenerateFlags& flags) {
  if (flags.engine.layout.explain) return explain_layout(flags.engine);
  if (flags.prompts.empty() && flags.file.empty()) throw invalid_input("expected --prompt or --file, found neither; give one");
  const bool looks_into_ranks = flags.trace_token > 0 || flags.report || !flags.report_file.empty();
  if (const auto place = launched_place(); place && looks_into_ranks)
    throw invalid_input("--trace-token and --report: expected ranks as threads of one process, found {} processes; leave the launcher out, the answers and counts are the same", place->size);
  SteadyClock clock;
  if (const auto code = run_as_other_rank(flags.engine, clock)) return *code;
  std::vector<std::string> prompts = flags.prompts;
  if (!flags.file.empty()) prompts = read_prompts(flags.file);
  if (flags.trace_token > 0) return trace(flags, prompts);
  // All of them at once: nobody else is served.
  const ControllerOptions all{.max_queued_requests = INT64_MAX, .max_queued_tokens = INT64_MAX};
  EngineFlags engine = flags.engine;
  engine.records_load = flags.report || !flags.report_file.empty();
  LoadedModel loaded = load_model(engine, all, clock, terminal_progress());
  Controller& controller = loaded.deployment->controller();
  const auto render = flags.chat ? chat_renderer(loaded.tokenizer) : nullptr;
  const bool streams = prompts.size() == 1 && !flags.as_json;
  std::vector<Answer> answers(prompts.size());
  int64_t num_done = 0;
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    requests.push_back({.request_id = fmt::format("prompt {}", i), .prompt = prompt_ids(flags, *loaded.tokenizer, render, prompts[i]), .sampling = sampling_of(flags, loaded.defaults)});
    controller.engine(0).validate(requests.back());
    answers[i].prompt = std::move(prompts[i]);
    answers[i].num_prompt_tokens = static_cast<int64_t>(requests[i].prompt.size());
  }
  const auto start = std::chrono::steady_clock::now();
  std::mutex mutex;  // guards answers and num_done: ranks deliver on their own threads
  for (size_t i = 0; i < requests.size(); ++i) {
    controller.submit(std::move(requests[i]), [&, i](Delta&& delta) {
      const std::lock_guard lock(mutex);
      Answer& a = answers[i];
      a.text += delta.text;
      a.num_completion_tokens = delta.num_completion_tokens;
      if (streams) std::fwrite(delta.text.data(), 1, delta.text.size(), stdout), std::fflush(stdout);
      if (!delta.finish) return;
      a.finish = finish_text(*delta.finish);
      a.error = delta.error;
      ++num_done;
    });
  }
  const Progress bar = streams ? Progress{} : terminal_progress();
  while (!controller.wait_until_idle(bar ? 100 : 1'000'000'000)) {
    const std::lock_guard lock(mutex);
    bar("generating", num_done, static_cast<int64_t>(answers.size()));
  }
  if (bar) bar("generating", num_done, static_cast<int64_t>(answers.size()));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  int64_t num_prompt = 0, num_completion = 0;
  bool has_failed = false;
  for (const Answer& a : answers) {
    num_prompt += a.num_prompt_tokens;
    num_completion += a.num_completion_tokens;
    if (!streams) print_answer(a, flags.as_json, answers.size() > 1);
    if (a.finish != "error") continue;
    std::fprintf(stderr, "cadre generate: %s\n", a.error.c_str());
    has_failed = true;
  }
  if (streams) std::printf("\n");
  std::fflush(stdout);
  std::fprintf(stderr, "%lld prompt and %lld new tokens in %.2f s: %.1f new tokens/s, %.1f tokens/s in all\n", static_cast<long long>(num_prompt),
               static_cast<long long>(num_completion), seconds, static_cast<double>(num_completion) / seconds, static_cast<double>(num_prompt + num_completion) / seconds);
  if (engine.records_load) write_report(flags, loaded);
  return has_failed ? kExitFailed : kExitOk;
}

}  // namespace

void add_generate(CLI::App& app, Run* run) {
  CLI::App* command = app.add_subcommand("generate", "Continue one prompt, or a file of prompts as one batch, without a server");
  auto f = std::make_shared<GenerateFlags>();
  add_engine_flags(*command, f->engine);
  auto* source = command->add_option_group("prompts", "Where the prompts come from");
  source->add_option("--prompt", f->prompts, "A prompt; may be given several times");
  source->add_option("--file", f->file, "A prompt a line, or JSON lines with \"prompt\"; - reads standard input");
  source->require_option(0, 1);  // none is asked for by --explain alone
  command->add_flag("--chat", f->chat, "Each prompt is a user's message, put into the model's chat template");
  command->add_flag("--json", f->as_json, "One JSON object a line for each answer");
  command->add_option("--max-tokens", f->max_tokens, "New tokens at most, each")->check(CLI::Range(int64_t{1}, int64_t{1} << 30))->capture_default_str();
  command->add_option("--temperature", f->temperature, "0: always the likeliest token; the model's own value unless told")->check(CLI::Range(0.0, 2.0));
  command->add_option("--top-p", f->top_p, "Nucleus sampling")->check(CLI::Range(0.0, 1.0));
  command->add_option("--top-k", f->top_k, "Only the k likeliest; 0: all")->check(CLI::NonNegativeNumber);
  command->add_option("--stop", f->stop, "Text that ends an answer; may be given several times");
  command->add_flag("--ignore-eos", f->ignore_eos, "Go on to --max-tokens whatever the model says");
  command->add_flag("--report", f->report, "Then tell what moved between ranks (calls, bytes) and how even the experts' load was");
  command->add_option("--report-file", f->report_file, "The same as JSON into this file");
  command->add_option("--trace-token", f->trace_token, "Follow this new token (1: the first one) of the first prompt, decoded greedily, through one sparse layer: ranks, routing, bytes, times")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command->add_option("--trace-layer", f->trace_layer, "Through this layer, from 0; the first sparse one unless told")->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  command->callback([run, f] { *run = [f] { return generate(*f); }; });
}

}  // namespace cadre::cli
