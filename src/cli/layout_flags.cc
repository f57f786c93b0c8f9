#include "cli/layout_flags.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/error.h"

namespace cadre::cli {
namespace {

constexpr struct {
  std::string_view short_form, long_form;
} kShortForms[] = {{"-tp", "--tensor-parallel-size"}, {"-dp", "--data-parallel-size"}, {"-pcp", "--prefill-context-parallel-size"}, {"-ep", "--enable-expert-parallel"}};

}  // namespace

void add_layout_flags(CLI::App& command, LayoutFlags& f) {
  constexpr const char* kSglang = "Ranks, in SGLang's spelling";
  constexpr const char* kVllm = "Ranks, in vLLM's spelling";
  constexpr const char* kEither = "Ranks, beside either spelling";
  ParallelOptions& o = f.options;
  command.add_option("--tp-size,--tp", o.tp_size, "All ranks")->group(kSglang);
  command.add_option("--dp-size,--dp", o.dp_size, "Data-parallel ranks of attention among them, with --enable-dp-attention")->group(kSglang);
  command.add_flag("--enable-dp-attention", o.enable_dp_attention, "Each data-parallel rank has its own sequences and KV cache")->group(kSglang);
  command.add_option("--ep-size,--ep,--expert-parallel-size", o.ep_size, "Ranks (or groups of ranks) that hold whole experts; any divisor of all ranks")->group(kSglang);
  command.add_option("--attn-cp-size", o.attn_cp_size, "Context-parallel ranks of attention (layout only)")->group(kSglang);
  command.add_option("--moe-dense-tp-size", o.moe_dense_tp_size, "Ranks that split dense layers: 1, attention's share (unless told) or all")->group(kSglang);
  command.add_option("--moe-a2a-backend", o.moe_a2a_backend, fmt::format("How rows reach the experts: {}", exchange_names()))->group(kSglang);
  command.add_option("--tensor-parallel-size", o.tensor_parallel_size, "-tp: ranks that split attention's heads")->group(kVllm);
  command.add_option("--data-parallel-size", o.data_parallel_size, "-dp: times as many, each with its own sequences and KV cache")->group(kVllm);
  command.add_option("--prefill-context-parallel-size", o.prefill_context_parallel_size, "-pcp: times as many, splitting prompts (layout only)")->group(kVllm);
  command.add_flag("--enable-expert-parallel", o.enable_expert_parallel, "-ep: whole experts on each rank, instead of a part of each")->group(kVllm);
  command.add_option("--all2all-backend", o.all2all_backend, "As --moe-a2a-backend")->group(kVllm);
  command.add_option("--expert-placement-strategy", o.expert_placement_strategy, "linear (unless told): the first experts on the first rank; round_robin")->group(kEither);
  command.add_flag("--enable-eplb", o.enable_eplb, "Move experts to where the load is, while serving")->group(kEither);
  command.add_option("--ep-num-redundant-experts,--num-redundant-experts", o.num_redundant_experts, "Slots for second and further replicas of experts, over all ranks")->group(kEither)
      ->capture_default_str();
  command.add_option("--dispatch-dtype", o.dispatch_dtype, "Rows on the way to experts: auto (as they are) or fp8, with one scale for 128 values")->group(kEither);
  command.add_option("--combine-order", o.combine_order, "exact (unless told): outputs are added in a row's own order of experts, whatever the layout; per_rank: fewer bytes")->group(kEither);
  command.add_flag("--explain", f.explain, "Print the layout that these flags come to and exit; loads no weights")->group(kEither);
  command.add_flag_callback("--explain-json", [&f] { f.explain = f.explain_as_json = true; }, "The same as JSON")->group(kEither);
}

std::vector<std::string> spell_out_layout_flags(int argc, const char* const* argv) {
  std::vector<std::string> out;
  bool is_flag = true;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument == "--") is_flag = false;
    for (const auto& [short_form, long_form] : kShortForms)
      if (is_flag && argument.starts_with(short_form) && (argument.size() == short_form.size() || argument[short_form.size()] == '=')) {
        argument.replace(0, short_form.size(), long_form);
        break;
      }
    out.push_back(std::move(argument));
  }
  return out;
}

ResolvedLayout layout_to_run(const LayoutFlags& flags, const ModelConfig& config, DType kv_dtype, bool prints_notes) {
  ResolvedLayout resolved = resolve_layout(flags.options, config, kv_dtype);
  refuse_unrunnable(resolved);
  if (!prints_notes) return resolved;
  for (const std::string& note : resolved.notes) std::fprintf(stderr, "cadre: %s\n", note.c_str());
  return resolved;
}

}  // namespace cadre::cli
