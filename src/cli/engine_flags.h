// What `serve` and `generate` share: the flags of an engine and how it is put together from a model folder.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "cli/balance_flags.h"
#include "cli/layout_flags.h"
#include "config/model_config.h"
#include "dp/deployment.h"
#include "engine/engine.h"
#include "models/decoder.h"
#include "comm/launch_env.h"
#include "parallel/expert_load.h"
#include "planner/start_budget.h"
#include "server/api_request.h"

namespace cadre::cli {

struct EngineFlags {
  std::string model;  // folder with config.json; with dummy weights also a config.json itself
  std::string load_format = "auto", compute_mode = "fast", kv_cache_dtype = "auto", kv_cache_memory, activation_dtype = "float32", quantization = "none";
  int64_t max_num_seqs = 64, max_num_batched_tokens = 512, max_model_len = 0, num_kv_blocks = 0;
  std::optional<int64_t> max_prefill_tokens_per_step;
  int threads = 0;
  int64_t seed = -1;
  int64_t step_timeout_s = 60;
  bool records_load = false;  // LoadedModel::load is there
  std::string dp_sync = "lockstep", moe_backend = "auto";
  LayoutFlags layout;
  BalanceFlags balance;
};

void add_engine_flags(CLI::App& command, EngineFlags& flags);  // MODEL and the rest
void add_run_flags(CLI::App& command, EngineFlags& flags);     // the rest: how the model runs

// Called with what is being done and how far it is; may throw to give up.
using Progress = std::function<void(const char* what, int64_t done, int64_t total)>;

struct LoadedModel {
  ModelConfig config;
  std::shared_ptr<const Tokenizer> tokenizer;
  SamplingDefaults defaults;               // of generation_config.json
  std::shared_ptr<ExpertLoad> load;        // of all ranks since the start, where flags say so
  std::unique_ptr<Deployment> deployment;  // the model on all its ranks
  std::vector<std::string> budget;         // lines: layout, weights and KV cache of a rank, tokens in all
};

// All that is known, and refused, before weights are read: flags, layout, memory.
struct CheckedRun {
  ModelConfig config;
  ResolvedLayout resolved;
  std::optional<LaunchEnv> place;  // nullopt: all ranks are threads of this process
  int64_t max_model_len = 0;
  planner::StartBudget budget;     // with KV blocks; may exceed the memory
};
// Throws Error for what cannot run, memory apart.
CheckedRun check_run(const EngineFlags& flags);
// --check: prints the budget; throws Error where it exceeds the memory. Returns the exit code.
int check_only(const EngineFlags& flags, bool as_json);

// --explain: prints the layout that the flags come to. Returns the exit code.
int explain_layout(const EngineFlags& flags);

// What the flags say of how one rank computes.
DecoderOptions decoder_options(const EngineFlags& flags, const ResolvedLayout& resolved);
// The checkpoint, or dummy weights of its configuration.
std::unique_ptr<WeightSource> open_weights(const EngineFlags& flags);

// The folder's tokenizer; text as bytes where dummy weights come without one.
std::shared_ptr<const Tokenizer> open_tokenizer(const EngineFlags& flags, const ModelConfig& config);

// Checks flags and files, then loads every rank. Throws Error.
LoadedModel load_model(const EngineFlags& flags, const ControllerOptions& controller, const Clock& clock, const Progress& progress);
// For a process that a launcher made another rank than 0: loads its part and takes part until rank 0 ends. nullopt: this
// process is rank 0, or the only one. Returns the exit code.
std::optional<int> run_as_other_rank(const EngineFlags& flags, const Clock& clock);

// Renders chat messages with the model's template; empty when it has none. The result keeps the tokenizer alive.
std::function<std::string(const json::object&)> chat_renderer(std::shared_ptr<const Tokenizer> tokenizer);

// A bar on standard error when that is a terminal and the work takes a while; nothing otherwise.
Progress terminal_progress();

}  // namespace cadre::cli
