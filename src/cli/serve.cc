#include <pthread.h>
#include <spdlog/spdlog.h>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <chrono>
#include <csignal>
#include <ctime>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/expert_admin.h"
#include "cli/version.h"
#include "dp/controller.h"
#include "server/api_service.h"
#include "server/http_server.h"

namespace cadre::cli {
namespace {

struct ServeFlags {
  bool checks = false, checks_as_json = false;
  EngineFlags engine;
  HttpServerOptions http{.port = 8000};
  ControllerOptions controller;
  ApiServiceOptions api;
  std::vector<std::string> names;
  std::string api_key_file;
  int64_t drain_timeout_s = 60;
  std::string load_balance = "total_tokens";
};

// SIGINT and SIGTERM, taken by the main thread when it asks; every thread started later inherits the block.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
  }
  // True when a signal came within the time; a negative time waits for ever.
  bool wait(int64_t timeout_ms) const {
    if (timeout_ms < 0) {
      int signal = 0;
      return sigwait(&set_, &signal) == 0;
    }
    const timespec t{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000};
    return sigtimedwait(&set_, nullptr, &t) > 0;
  }

 private:
  sigset_t set_{};
};

struct Interrupted {};

json::object layout_json(const Layout& l, const std::string& dp_sync) {
  return {{"world", l.world}, {"attn_dp", l.attn_dp}, {"attn_cp", l.attn_cp}, {"attn_tp", l.attn_tp}, {"ep", l.ep}, {"moe_tp", l.moe_tp}, {"dense_tp", l.dense_tp},
          {"exchange", exchange_name(l.exchange)}, {"combine", l.combine == CombineOrder::kExact ? "exact" : "per_rank"},
          {"placement", l.placement == PlacementStrategy::kLinear ? "linear" : "round_robin"}, {"dp_sync", dp_sync}};
}

std::shared_ptr<const ServedModel> served_model(const ServeFlags& flags, const LoadedModel& loaded) {
  auto model = std::make_shared<ServedModel>();
  model->names = flags.names.empty() ? std::vector<std::string>{flags.engine.model} : flags.names;
  model->tokenizer = loaded.tokenizer;
  model->render_chat = chat_renderer(loaded.tokenizer);
  model->chat_template = loaded.tokenizer->chat_template();
  model->vocab_size = loaded.config.vocab_size;
  model->max_model_len = loaded.deployment->controller().engine(0).max_model_len();
  model->created_unix_s = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  model->defaults = loaded.defaults;
  model->experts = expert_admin(*loaded.deployment);
  model->layout = layout_json(loaded.deployment->layout(), flags.engine.dp_sync);
  return model;
}

void read_api_keys(const ServeFlags& flags, std::vector<std::string>& keys) {
  if (flags.api_key_file.empty()) return;
  const size_t before = keys.size();
  std::FILE* file = std::fopen(flags.api_key_file.c_str(), "r");
  if (!file) throw Error(ErrorKind::kNotFound, fmt::format("--api-key-file: expected a readable file, found none at {}; check the path", flags.api_key_file));
  std::string line;
  for (int c; (c = std::fgetc(file)) != EOF;) {
    if (c == '\n' || c == '\r') {
      if (!line.empty()) keys.push_back(std::exchange(line, {}));
    } else {
      line += static_cast<char>(c);
    }
  }
  std::fclose(file);
  if (!line.empty()) keys.push_back(line);
  if (keys.size() == before) throw invalid_input("--api-key-file: expected a key on a line, found none in {}; write one", flags.api_key_file);
}

// Runs until a signal, then drains. A second signal ends at once.
int run_until_stopped(const ServeFlags& flags, const StopSignals& signals, ApiService& service, Controller& controller, HttpServer& http) {
  signals.wait(-1);
  spdlog::info("stopping: no new requests; running ones have {} s (a second signal ends at once)", flags.drain_timeout_s);
  service.begin_drain();
  controller.begin_drain();
  http.begin_close();
  for (int64_t waited_ms = 0; waited_ms < flags.drain_timeout_s * 1000; waited_ms += 100) {
    if (controller.wait_until_idle(0) && http.wait_until_quiet(0)) return kExitOk;
    if (signals.wait(100)) return kExitFailed;
  }
  spdlog::warn("{} requests did not end in time; cancelling them", http.num_active_exchanges());
  service.cancel_all();
  http.wait_until_quiet(2000);
  return kExitFailed;
}

int serve(const ServeFlags& flags) {
  if (flags.engine.layout.explain) return explain_layout(flags.engine);
  if (flags.checks) return check_only(flags.engine, flags.checks_as_json);
  SteadyClock clock;
  if (const auto code = run_as_other_rank(flags.engine, clock)) return *code;
  const StopSignals signals;
  ApiServiceOptions api = flags.api;
  api.version = kVersion;
  read_api_keys(flags, api.api_keys);
  ApiService service(api, clock);
  HttpServer http(flags.http, service);  // binds first: a taken port is known before gigabytes are read
  http.start();
  const auto started = std::chrono::steady_clock::now();
  spdlog::info("cadre {}: loading {}", kVersion, flags.engine.model);
  const Progress bar = terminal_progress();
  LoadedModel loaded;
  try {
    ControllerOptions controller = flags.controller;
    controller.load_balance = *load_balance_of(flags.load_balance);
    loaded = load_model(flags.engine, controller, clock, [&](const char* what, int64_t done, int64_t total) {
      if (bar) bar(what, done, total);
      if (signals.wait(0)) throw Interrupted{};
    });
    for (const std::string& line : loaded.budget) spdlog::info("{}", line);
    const auto model = served_model(flags, loaded);
    service.set_ready(model, loaded.deployment->controller());
    spdlog::info("ready in {:.1f} s: http://{}:{} serves {}", std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count(), flags.http.host,
                 http.port(), model->names[0]);
  } catch (const Interrupted&) {
    http.stop();
    return kExitFailed;
  }
  const int code = run_until_stopped(flags, signals, service, loaded.deployment->controller(), http);
  http.stop();
  spdlog::info("stopped");
  return code;
}

}  // namespace

void add_serve(CLI::App& app, Run* run) {
  CLI::App* command = app.add_subcommand("serve", "Serve a model over the OpenAI API until SIGTERM or SIGINT, which drain it");
  auto f = std::make_shared<ServeFlags>();
  add_engine_flags(*command, f->engine);
  command->add_flag("--check", f->checks, "Print what this would allocate, refuse it if it does not fit, and exit; loads no weights");
  command->add_flag_callback("--check-json", [f] { f->checks = f->checks_as_json = true; }, "The same as JSON");
  command->add_option("--host", f->http.host, "Address to listen on")->capture_default_str();
  command->add_option("--port", f->http.port, "Port; 0: a free one, told in the log")->capture_default_str();
  command->add_option("--served-model-name", f->names, "Names that requests may use; the first is the one in answers. MODEL unless told");
  command->add_option("--api-key", f->api.api_keys, "Keys that open the API (Authorization: Bearer); open to all unless told")->envname("CADRE_API_KEY");
  command->add_option("--api-key-file", f->api_key_file, "The same from a file, one a line");
  command->add_option("--max-queued-requests", f->controller.max_queued_requests, "Choices that may wait; more get 429")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--max-queued-tokens", f->controller.max_queued_tokens, "Prompt tokens that may wait")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--load-balance-method", f->load_balance,
                      "How requests are spread over data-parallel ranks: fewest tokens, fewest requests, in turn, or by the request's bootstrap_room")
      ->check(CLI::IsMember({"round_robin", "total_requests", "total_tokens", "follow_bootstrap_room"}))->capture_default_str();
  command->add_option("--max-connections", f->http.max_connections, "Open connections; more get 503")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--max-body-bytes", f->http.max_body_bytes, "Largest request body; more gets 413")->capture_default_str();
  command->add_option("--max-header-bytes", f->http.max_header_bytes, "Largest request head; more gets 431")->capture_default_str();
  command->add_option("--sse-keep-alive-ms", f->api.keep_alive_ms, "Comment lines in silent streams, every so many ms; 0: none")
      ->check(CLI::NonNegativeNumber)->capture_default_str();
  command->add_option("--cors-origin", f->api.cors_origin, "Value of Access-Control-Allow-Origin; no CORS headers unless told");
  command->add_option("--drain-timeout", f->drain_timeout_s, "Seconds that running requests get after SIGTERM")->check(CLI::NonNegativeNumber)->capture_default_str();
  command->callback([run, f] { *run = [f] { return serve(*f); }; });
}

}  // namespace cadre::cli
