#include "cli/engine_flags.h"

#include <signal.h>
#include <unistd.h>

#include <CLI/Validators.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/process_ranks.h"
#include "cli/units.h"
#include "config/bytes.h"
#include "host/facts.h"
#include "models/activation_dtype.h"
#include "models/quantization.h"
#include "parallel/kv_budget.h"
#include "parallel/rank_bytes.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/chat_template.h"
#include "weights/weight_source.h"

namespace cadre::cli {
namespace {

// Where one rank's long prompt would hold up the tokens of all: docs/ranks.md, "Long prompts", has the figures.
constexpr int64_t kSharedStepPrefill = 128;

SamplingDefaults load_defaults(const std::filesystem::path& dir) {
  SamplingDefaults d;
  const auto path = dir / "generation_config.json";
  if (!std::filesystem::exists(path)) return d;
  const json::value file = parse_json_file(path);
  if (!file.is_object()) throw invalid_input("{}: expected a JSON object, found {}", path.string(), describe(file));
  const JsonObject config(file.get_object(), "generation_config.json");
  const bool samples = config.maybe_boolean("do_sample").value_or(true);
  d.temperature = samples ? config.maybe_number("temperature").value_or(1.0) : 0.0;
  d.top_p = config.maybe_number("top_p").value_or(1.0);
  d.min_p = config.maybe_number("min_p").value_or(0.0);
  d.repetition_penalty = config.maybe_number("repetition_penalty").value_or(1.0);
  d.top_k = static_cast<int32_t>(config.maybe_integer("top_k", 0, 1 << 30).value_or(0));
  return d;
}

std::filesystem::path model_dir(const EngineFlags& flags) {
  const std::filesystem::path path(flags.model);
  return std::filesystem::is_directory(path) ? path : path.parent_path();
}

DType activation_dtype_of(const EngineFlags& flags) { return flags.activation_dtype == "fp8" ? DType::kF8E4M3 : DType::kF32; }

DType kv_dtype_of(const std::string& name) { return name == "bfloat16" ? DType::kBF16 : DType::kF32; }

// Blocks of each rank. Memory is given, or found, for all ranks of this machine together.
int64_t choose_kv_blocks(const EngineFlags& flags, const planner::StartBudget& memory, int num_ranks, int64_t max_model_len) {
  if (flags.num_kv_blocks > 0) return flags.num_kv_blocks;
  const int64_t budget = flags.kv_cache_memory.empty() ? kv_bytes_unless_told(memory.memory, memory.fixed())
                                                       : parse_bytes(flags.kv_cache_memory, "--kv-cache-memory");
  const int64_t blocks =
      kv_blocks_in({.bytes = budget, .num_ranks = num_ranks, .token_bytes = memory.kv_block_bytes / kKvBlockTokens, .max_num_seqs = flags.max_num_seqs, .max_model_len = max_model_len});
  // Where weights alone do not fit, that is what has to be said.
  if (blocks < 1 && memory.fixed() <= memory.memory)
    throw invalid_input("expected room for at least one KV block of {} on each of {} ranks, found {} in all; give more with --kv-cache-memory",
                        bytes_text(static_cast<uint64_t>(memory.kv_block_bytes)), num_ranks, bytes_text(static_cast<uint64_t>(std::max<int64_t>(budget, 0))));
  return blocks;
}

// Ranks whose memory is this machine's: all of them, unless a launcher may have put them on several.
std::vector<int> ranks_here(const std::optional<LaunchEnv>& place, int world) {
  if (place && place->launcher != "cadre") return {place->rank};
  std::vector<int> out(static_cast<size_t>(world));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace

void add_engine_flags(CLI::App& command, EngineFlags& f) {
  command.add_option("MODEL", f.model, "Model folder: config.json, safetensors, tokenizer.json")->required();
  add_run_flags(command, f);
}

void add_run_flags(CLI::App& command, EngineFlags& f) {
  command.add_option("--load-format", f.load_format, "auto: the checkpoint; dummy: seeded random weights of its shapes")
      ->check(CLI::IsMember({"auto", "dummy"}))->capture_default_str();
  command.add_option("--max-num-seqs", f.max_num_seqs, "Sequences that run at once")->check(CLI::Range(int64_t{1}, int64_t{65536}))->capture_default_str();
  command.add_option("--max-num-batched-tokens", f.max_num_batched_tokens, "Rows of one step: decoding first, the rest for pieces of prompts")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))->capture_default_str();
  command.add_option("--max-prefill-tokens-per-step", f.max_prefill_tokens_per_step,
                     "Rows of them for pieces of prompts while any rank decodes; 0: no further bound. 128 unless told where data-parallel ranks step together, else 0")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  command.add_option("--max-model-len", f.max_model_len, "Prompt and answer together, at most; the model's context unless told")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  auto* memory = command.add_option("--kv-cache-memory", f.kv_cache_memory, "Memory for the KV cache of all ranks here, such as 2GiB; 40 % of what is free unless told");
  command.add_option("--num-kv-blocks", f.num_kv_blocks, "The same as blocks of 16 tokens on each rank")->check(CLI::Range(int64_t{1}, int64_t{1} << 31))->excludes(memory);
  command.add_option("--kv-cache-dtype", f.kv_cache_dtype, "auto (float32 on CPUs), float32 or bfloat16")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}))->capture_default_str();
  command.add_option("--activation-dtype", f.activation_dtype,
                     "Inputs of products with block-FP8 weights: float32 (as they are) or fp8 (rounded, one scale for 128 values, as activation_scheme dynamic asks)")
      ->check(CLI::IsMember({"float32", "fp8"}))->capture_default_str();
  command.add_option("--quantization,-q", f.quantization,
                     "Weights of matrix products when they are loaded: none (as stored), float32, bfloat16, int8 (groups of 64) or int4 (groups of 32); with integers, inputs are quantised too")
      ->check(CLI::IsMember({"none", "float32", "bfloat16", "int8", "int4"}))->capture_default_str();
  command.add_option("--compute-mode", f.compute_mode,
                     "fast: prompts may use a faster form of latent attention than decoding does; reference: one form for all. In both, "
                     "neither chunking nor batch mates change a bit")
      ->check(CLI::IsMember({"fast", "reference"}))->capture_default_str();
  command.add_option("--threads", f.threads, "Threads that compute; one a core unless told")->check(CLI::Range(1, 1024));
  command.add_option("--seed", f.seed, "Makes unseeded sampling repeatable, and names the dummy weights")->check(CLI::NonNegativeNumber);
  add_balance_flags(command, f.balance, f.layout.options);
  add_layout_flags(command, f.layout);
  command.add_option("--moe-backend,--moe-runner-backend", f.moe_backend, "What computes the routed experts: auto, cpu_grouped or cpu_reference (the scalar definition)")
      ->capture_default_str();
  command.add_option("--dp-sync", f.dp_sync, "How data-parallel ranks step together: lockstep (agree before each step) or waves (as vLLM: pauses weighed every 32 turns)")
      ->check(CLI::IsMember({"lockstep", "waves"}))->capture_default_str();
  command.add_option("--step-timeout", f.step_timeout_s, "Seconds a rank waits for another one within a step before it counts as lost")
      ->check(CLI::Range(int64_t{1}, int64_t{86400}))->capture_default_str();
}

int explain_layout(const EngineFlags& flags) {
  const ModelConfig config = load_model_config(flags.model);
  const DType kv_dtype = kv_dtype_of(flags.kv_cache_dtype);
  const ResolvedLayout resolved = resolve_layout(flags.layout.options, config, kv_dtype);
  const DType activation_dtype = activation_dtype_of(flags);
  check_activation_dtype(config, resolved.layout, activation_dtype);
  if (flags.layout.explain_as_json) std::printf("%s\n", json::serialize(explain_json(config, resolved, kv_dtype, activation_dtype)).c_str());
  else std::fputs(explain_text(config, resolved, kv_dtype, activation_dtype).c_str(), stdout);
  return kExitOk;
}

DecoderOptions decoder_options(const EngineFlags& flags, const ResolvedLayout& resolved) {
  DecoderOptions out;
  out.max_batched_tokens = flags.max_num_batched_tokens;
  out.kv_dtype = kv_dtype_of(flags.kv_cache_dtype);
  // Ranks share the machine: each gets its part of the threads.
  const int threads = flags.threads > 0 ? flags.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  out.num_threads = std::max(1, threads / resolved.layout.world);
  out.compute_mode = flags.compute_mode == "fast" ? ComputeMode::kFast : ComputeMode::kReference;
  out.fp8_dispatch = resolved.is_fp8_dispatch;
  out.moe_backend = flags.moe_backend;
  out.activation_dtype = activation_dtype_of(flags);
  out.quantization = parse_quantization(flags.quantization);
  return out;
}

std::unique_ptr<WeightSource> open_weights(const EngineFlags& flags) {
  if (flags.load_format != "dummy") return open_checkpoint(model_dir(flags));
  return make_dummy_weights(load_model_config(flags.model), flags.seed < 0 ? 0 : static_cast<uint64_t>(flags.seed));
}

std::shared_ptr<const Tokenizer> open_tokenizer(const EngineFlags& flags, const ModelConfig& config) {
  const bool is_dummy = flags.load_format == "dummy";
  // Dummy weights say nothing anyway.
  if (is_dummy && !std::filesystem::exists(model_dir(flags) / "tokenizer.json")) return std::make_shared<ByteTokenizer>();
  std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(model_dir(flags));
  if (!is_dummy && tokenizer->vocab_size() > config.vocab_size)
    throw invalid_input("{}: expected a tokenizer of at most the model's {} ids, found {}; the files do not belong together", flags.model, config.vocab_size, tokenizer->vocab_size());
  return tokenizer;
}

CheckedRun check_run(const EngineFlags& flags) {
  CheckedRun out;
  out.config = load_model_config(flags.model);
  if (flags.max_model_len > out.config.max_position)
    throw invalid_input("--max-model-len: expected at most the model's context of {} tokens, found {}; lower it", out.config.max_position, flags.max_model_len);
  out.max_model_len = flags.max_model_len > 0 ? flags.max_model_len : out.config.max_position;
  if (flags.max_num_batched_tokens < flags.max_num_seqs)
    throw invalid_input("--max-num-batched-tokens: expected at least --max-num-seqs ({}), found {}; raise it, so that every sequence can step", flags.max_num_seqs,
                        flags.max_num_batched_tokens);
  out.place = launched_place();
  const DType kv_dtype = kv_dtype_of(flags.kv_cache_dtype);
  out.resolved = layout_to_run(flags.layout, out.config, kv_dtype, !out.place || out.place->rank == 0);
  const Layout& layout = out.resolved.layout;
  check_activation_dtype(out.config, layout, activation_dtype_of(flags));
  if (const auto format = parse_quantization(flags.quantization)) check_quantization(out.config, layout, *format, activation_dtype_of(flags));
  choose_experts_backend({.exchange = layout.exchange}, flags.moe_backend);  // names are checked before gigabytes are read
  out.budget = planner::start_budget({.config = &out.config, .layout = layout, .kv_dtype = kv_dtype, .quantization = parse_quantization(flags.quantization),
                                      .max_rows = flags.max_num_batched_tokens, .max_sequences = flags.max_num_seqs,
                                      .num_threads = decoder_options(flags, out.resolved).num_threads, .is_fp8_dispatch = out.resolved.is_fp8_dispatch,
                                      .ranks = ranks_here(out.place, layout.world), .memory = read_memory(SystemFiles()).usable_bytes()});
  out.budget.set_kv_blocks(choose_kv_blocks(flags, out.budget, layout.world, out.max_model_len));
  return out;
}

int check_only(const EngineFlags& flags, bool as_json) {
  const CheckedRun run = check_run(flags);
  if (as_json) std::printf("%s\n", json::serialize(planner::budget_json(run.budget)).c_str());
  else std::fputs(planner::budget_text(run.budget).c_str(), stdout);
  std::fflush(stdout);
  planner::refuse_what_does_not_fit(run.budget);
  return kExitOk;
}

LoadedModel load_model(const EngineFlags& flags, const ControllerOptions& controller, const Clock& clock, const Progress& progress) {
  LoadedModel out;
  const CheckedRun run = check_run(flags);
  planner::refuse_what_does_not_fit(run.budget);
  out.config = run.config;
  const int64_t max_model_len = run.max_model_len;
  const std::optional<LaunchEnv>& place = run.place;
  const ResolvedLayout& resolved = run.resolved;
  const Layout& layout = resolved.layout;
  out.tokenizer = open_tokenizer(flags, out.config);
  out.defaults = load_defaults(model_dir(flags));
  const uint64_t weight_bytes = [&] {
    const auto source = open_weights(flags);
    check_tensors(*source, out.config);
    return source->total_bytes();
  }();
  const bool is_moe = out.config.moe.router.num_experts > 0;
  // The format is each layer's own.
  const ExpertsChoice experts = choose_experts_backend({.exchange = layout.exchange}, flags.moe_backend);
  DeploymentOptions options{.config = out.config, .layout = layout, .open_weights = [flags] { return open_weights(flags); }, .decoder = decoder_options(flags, resolved)};
  const int64_t token_bytes = rank_kv_bytes_per_token(out.config, layout, options.decoder.kv_dtype);
  options.engine = {.max_num_seqs = flags.max_num_seqs, .max_num_batched_tokens = flags.max_num_batched_tokens,
                    .max_prefill_tokens_per_step = flags.max_prefill_tokens_per_step.value_or(layout.attn_dp > 1 ? kSharedStepPrefill : 0),
                    .num_kv_blocks = run.budget.num_kv_blocks, .max_model_len = max_model_len, .eos_ids = out.config.eos_ids};
  if (options.engine.eos_ids.empty() && out.tokenizer->eos_id()) options.engine.eos_ids.push_back(*out.tokenizer->eos_id());
  if (flags.seed >= 0) options.engine.seed = static_cast<uint64_t>(flags.seed);
  options.decoder.replica_choice = replica_choice_of(flags.balance);
  options.decoder.num_nodes = num_nodes(flags.balance, layout);
  options.decoder.expert_placements = initial_placements(flags.balance, resolved, out.config);
  options.decoder.balance = balancer_options(flags.balance, resolved, out.config);
  options.controller = controller;
  options.controller.sync = flags.dp_sync == "waves" ? DpSync::kWaves : DpSync::kLockstep;
  options.step_timeout_us = flags.step_timeout_s * 1'000'000;
  options.progress = [&](int64_t done, int64_t total) { if (progress) progress("loading layers", done, total); };
  if (flags.records_load && is_moe) {
    out.load = std::make_shared<ExpertLoad>(out.config.num_layers, out.config.moe.router.num_experts);
    options.route_observer = [load = out.load](int64_t layer, std::span<const int32_t> ids, std::span<const float>) { load->add(layer, ids); };
  }
  const int64_t num_tokens = kKvBlockTokens * options.engine.num_kv_blocks;
  int64_t weights_here = 0;
  for (const planner::RankBudget& r : run.budget.ranks) weights_here += r.weights.total();
  out.budget.push_back(fmt::format("{} weights in the checkpoint, {} in memory here; {} {} of {} threads, context {}",
                                   bytes_text(weight_bytes), bytes_text(static_cast<uint64_t>(weights_here)), layout.world, layout.world == 1 ? "rank" : "ranks",
                                   options.decoder.num_threads, with_commas(static_cast<uint64_t>(max_model_len))));
  out.budget.push_back(fmt::format("KV cache: {} tokens a rank ({}, {} bytes a token), {} distinct tokens in the cluster", with_commas(static_cast<uint64_t>(num_tokens)),
                                   bytes_text(static_cast<uint64_t>(token_bytes * num_tokens)), with_commas(static_cast<uint64_t>(token_bytes)),
                                   with_commas(static_cast<uint64_t>(num_tokens * layout.attn_dp))));
  if (options.engine.max_prefill_tokens_per_step > 0)
    out.budget.push_back(fmt::format("prompts: at most {} rows a rank and step while any rank decodes (--max-prefill-tokens-per-step)", options.engine.max_prefill_tokens_per_step));
  if (is_moe) out.budget.push_back(fmt::format("experts: {} ({}); passed over: {}", experts.backend->name, experts.backend->what, fmt::join(experts.passed_over, "; ")));
  if (place) options.process = join_ranks(*place, layout);
  out.deployment = std::make_unique<Deployment>(std::move(options), out.tokenizer, clock);
  return out;
}

std::optional<int> run_as_other_rank(const EngineFlags& flags, const Clock& clock) {
  const auto env = launched_place();
  if (!env || env->rank == 0) return std::nullopt;
  // Launchers signal every rank: rank 0 drains and then ends the others, which also end when it is gone.
  ::signal(SIGTERM, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);
  LoadedModel loaded = load_model(flags, {}, clock, {});
  if (loaded.deployment->run_until_stopped()) return kExitOk;
  std::fprintf(stderr, "cadre: rank %d: rank 0 is gone; ending\n", env->rank);
  return kExitFailed;
}

std::function<std::string(const json::object&)> chat_renderer(std::shared_ptr<const Tokenizer> tokenizer) {
  if (tokenizer->chat_template().empty()) return {};
  auto chat = std::make_shared<ChatTemplate>(tokenizer->chat_template());
  return [chat](const json::object& variables) {
    return chat->render(variables, std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count());
  };
}

Progress terminal_progress() {
  if (!::isatty(STDERR_FILENO)) return {};
  const auto start = std::chrono::steady_clock::now();
  return [start](const char* what, int64_t done, int64_t total) {
    constexpr int kWidth = 32;
    if (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(500)) return;
    const int filled = static_cast<int>(total > 0 ? kWidth * done / total : kWidth);
    std::fprintf(stderr, "\r%s [%s%s] %lld/%lld%s", what, std::string(static_cast<size_t>(filled), '=').c_str(),
                 std::string(static_cast<size_t>(kWidth - filled), ' ').c_str(), static_cast<long long>(done), static_cast<long long>(total), done == total ? "\n" : "");
    std::fflush(stderr);
  };
}

}  // namespace cadre::cli
