#include "planner/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace cadre::planner {
namespace {

// Arguments that a shell leaves alone stay bare.
std::string shell_word(const std::string& word) {
  const bool is_plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) || std::string_view("_-./:=,@+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (is_plain) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

int nodes_of_replica(const PlanRequest& request, const Candidate& c) {
  // A rack-wide domain says nothing of nodes: those are the user's.
  const int per_node = request.nodes > 0                     ? std::max(1, request.devices / request.nodes)
                       : request.hardware.domain_spans_nodes ? c.layout.world
                                                             : ranks_per_domain(request);
  return std::max(1, (c.layout.world + per_node - 1) / per_node);
}

int64_t step_rows(const PlanRequest& request, const Candidate& c) { return std::max({request.prefill_rows, c.batch_per_rank, int64_t{1}}); }

// Of the whole memory: weights and cache.
double static_share(const PlanRequest& request) {
  const double share = (request.hardware.memory_bytes - request.hardware.reserve_bytes) / request.hardware.memory_bytes;
  return std::floor(share * 100) / 100;
}

EngineCommand cadre_command(const std::string& model, const PlanRequest& request, const Candidate& c) {
  EngineCommand out{"Cadre", {}, {}};
  const int nodes = nodes_of_replica(request, c);
  std::string flags = fmt::format("serve {} {} --max-model-len {} --max-num-seqs {} --max-num-batched-tokens {}", shell_word(model),
                                  option_flags(c.options), request.context, std::max<int64_t>(1, c.batch_per_rank), step_rows(request, c));
  if (request.kv_type == "bf16" || (request.kv_type == "auto" && !request.hardware.is_cpu)) flags += " --kv-cache-dtype bfloat16";
  if (request.kv_value_bytes < 2) out.notes.push_back("Cadre caches float32 or bfloat16: this cache type is planned, not served");
  if (request.weight_type != WeightType::kCheckpoint)
    out.notes.push_back(
        fmt::format("Cadre loads the types that a checkpoint stores: use one stored in {}", weight_type_name(request.weight_type)));
  if (!request.hardware.is_cpu)
    out.notes.push_back("this build computes on CPUs; the layout, its collectives and its bytes are the same there");
  if (nodes == 1)
    out.lines.push_back("cadre " + flags);
  else {
    std::string hosts;
    for (int n = 0; n < nodes; ++n) hosts += fmt::format("{}node{}:{}", n == 0 ? "" : ",", n, (c.layout.world + nodes - 1) / nodes);
    out.lines.push_back(fmt::format("mpirun -n {} -H {} cadre {}", c.layout.world, hosts, flags));
  }
  return out;
}

EngineCommand sglang_command(const std::string& model, const PlannedModel& planned, const PlanRequest& request, const Candidate& c) {
  EngineCommand out{"SGLang", {}, {}};
  const Layout& l = c.layout;
  const bool is_all_to_all = l.ep > 1 && l.exchange != ExchangeKind::kAllGatherReduceScatter;
  std::string line = fmt::format("python -m sglang.launch_server --model-path {} --tp-size {}", shell_word(model), l.world);
  if (l.attn_dp > 1) line += fmt::format(" --dp-size {} --enable-dp-attention", l.attn_dp);
  if (l.ep > 1) line += fmt::format(" --ep-size {}", l.ep);
  if (is_all_to_all && l.ep == l.world)
    line += " --moe-a2a-backend deepep";
  else if (is_all_to_all)
    out.notes.push_back(fmt::format(
        "its all-to-all backends need --ep-size equal to --tp-size ({}), so rows are gathered here (--moe-a2a-backend none)", l.world));
  // Its dense layers are split over all ranks, or over none.
  if (c.memory.weights.dense > 0 && c.memory.weights.routed > 0 && l.world > 1) {
    if (l.dense_tp == 1)
      line += " --moe-dense-tp-size 1";
    else if (l.dense_tp != l.world)
      out.notes.push_back(fmt::format("its dense layers are split over all {} ranks or none, not over {}", l.world, l.dense_tp));
  }
  if (l.redundant_experts > 0) line += fmt::format(" --enable-eplb --ep-num-redundant-experts {}", l.redundant_experts);
  if (request.weight_type == WeightType::kFp8 && planned.config().quant != WeightQuant::kFp8Block)
    line += " --quantization fp8";
  else if (request.weight_type == WeightType::kFp8)
    out.notes.push_back("a checkpoint stored in fp8 needs no flag; a bfloat16 one --quantization fp8");
  if (request.kv_value_bytes == 1) line += " --kv-cache-dtype fp8_e4m3";
  line +=
      fmt::format(" --context-length {} --max-running-requests {} --chunked-prefill-size {} --mem-fraction-static {:.2f}", request.context,
                  std::max<int64_t>(1, c.batch_per_rank) * l.attn_dp, step_rows(request, c) * l.attn_dp, static_share(request));
  const int nodes = nodes_of_replica(request, c);
  if (nodes == 1)
    out.lines.push_back(line);
  else
    for (int n = 0; n < nodes; n += std::max(1, nodes - 1))
      out.lines.push_back(fmt::format("{} --nnodes {} --node-rank {} --dist-init-addr node0:20000", line, nodes, n));
  return out;
}

EngineCommand vllm_command(const std::string& model, const PlannedModel& planned, const PlanRequest& request, const Candidate& c) {
  EngineCommand out{"vLLM", {}, {}};
  const Layout& l = c.layout;
  std::string line = fmt::format("vllm serve {} --tensor-parallel-size {}", shell_word(model), l.attn_tp);
  if (l.attn_dp > 1) line += fmt::format(" --data-parallel-size {}", l.attn_dp);
  if (l.ep > 1) {
    line += " --enable-expert-parallel";
    if (l.ep != l.world)
      out.notes.push_back(fmt::format("its expert parallelism is all {} ranks or none: expert groups of {} are not there", l.world, l.ep));
    if (l.exchange != ExchangeKind::kAllGatherReduceScatter && l.attn_dp > 1) line += " --all2all-backend deepep_low_latency";
  }
  if (l.redundant_experts > 0) line += fmt::format(" --enable-eplb --eplb-config '{{\"num_redundant_experts\": {}}}'", l.redundant_experts);
  if (l.dense_tp != l.attn_tp) out.notes.push_back("its dense layers are split as attention is");
  if (request.weight_type == WeightType::kFp8 && planned.config().quant != WeightQuant::kFp8Block) line += " --quantization fp8";
  if (request.kv_value_bytes == 1) line += " --kv-cache-dtype fp8";
  line += fmt::format(" --max-model-len {} --max-num-seqs {} --max-num-batched-tokens {} --gpu-memory-utilization {:.2f}", request.context,
                      std::max<int64_t>(1, c.batch_per_rank), step_rows(request, c), static_share(request));
  const int nodes = nodes_of_replica(request, c);
  if (nodes == 1 || l.attn_dp < nodes) {
    out.lines.push_back(line);
    if (nodes > 1) out.notes.push_back("ranks of one data-parallel group lie on several nodes: start it on a Ray cluster over them");
    return out;
  }
  const int local = (l.attn_dp + nodes - 1) / nodes;
  for (int n = 0; n < nodes; n += std::max(1, nodes - 1))
    out.lines.push_back(fmt::format("{} --data-parallel-size-local {} --data-parallel-address node0 --data-parallel-rpc-port 13345{}", line,
                                    local, n == 0 ? "" : fmt::format(" --data-parallel-start-rank {} --headless", n * local)));
  return out;
}

}  // namespace

std::string option_flags(const ParallelOptions& o) {
  std::string out;
  const auto add = [&](std::string_view text) { out += fmt::format("{}{}", out.empty() ? "" : " ", text); };
  if (o.tp_size) add(fmt::format("--tp-size {}", *o.tp_size));
  if (o.dp_size) add(fmt::format("--dp-size {}", *o.dp_size));
  if (o.enable_dp_attention) add("--enable-dp-attention");
  if (o.ep_size) add(fmt::format("--ep-size {}", *o.ep_size));
  if (o.attn_cp_size) add(fmt::format("--attn-cp-size {}", *o.attn_cp_size));
  if (o.moe_dense_tp_size) add(fmt::format("--moe-dense-tp-size {}", *o.moe_dense_tp_size));
  if (o.moe_a2a_backend) add(fmt::format("--moe-a2a-backend {}", *o.moe_a2a_backend));
  if (o.tensor_parallel_size) add(fmt::format("--tensor-parallel-size {}", *o.tensor_parallel_size));
  if (o.data_parallel_size) add(fmt::format("--data-parallel-size {}", *o.data_parallel_size));
  if (o.prefill_context_parallel_size) add(fmt::format("--prefill-context-parallel-size {}", *o.prefill_context_parallel_size));
  if (o.enable_expert_parallel) add("--enable-expert-parallel");
  if (o.all2all_backend) add(fmt::format("--all2all-backend {}", *o.all2all_backend));
  if (o.expert_placement_strategy) add(fmt::format("--expert-placement-strategy {}", *o.expert_placement_strategy));
  if (o.enable_eplb) add("--enable-eplb");
  if (o.num_redundant_experts != 0) add(fmt::format("--ep-num-redundant-experts {}", o.num_redundant_experts));
  if (o.dispatch_dtype) add(fmt::format("--dispatch-dtype {}", *o.dispatch_dtype));
  if (o.combine_order) add(fmt::format("--combine-order {}", *o.combine_order));
  return out;
}

std::vector<EngineCommand> engine_commands(const std::string& model, const PlannedModel& planned, const PlanRequest& request,
                                           const Candidate& chosen) {
  std::vector<EngineCommand> out{cadre_command(model, request, chosen), sglang_command(model, planned, request, chosen),
                                 vllm_command(model, planned, request, chosen)};
  if (chosen.replicas > 1)
    for (EngineCommand& c : out)
      c.notes.insert(c.notes.begin(), fmt::format("{} independent servers like this one, behind a router", chosen.replicas));
  return out;
}

}  // namespace cadre::planner
