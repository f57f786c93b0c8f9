#include "planner/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace cadre::planner {
namespace {

constexpr int kRanksWeighedInFull = 64;

std::vector<std::vector<std::string>> step_table(const Candidate& c) {
  std::vector<std::vector<std::string>> table{{"part of a step", "decode", "bound by", "prefill", "bound by"}};
  for (size_t i = 0; i < kNumStepParts; ++i) {
    const StepPart part = static_cast<StepPart>(i);
    if (c.decode[part].us() <= 0 && c.prefill[part].us() <= 0) continue;
    table.push_back({std::string(step_part_name(part)), duration(c.decode[part].us()), std::string(bound_name(c.decode.bound_of(part))),
                     duration(c.prefill[part].us()), std::string(bound_name(c.prefill.bound_of(part)))});
  }
  table.push_back({"all", duration(c.decode.total_us()), std::string(step_part_name(c.decode.longest())), duration(c.prefill.total_us()),
                   std::string(step_part_name(c.prefill.longest()))});
  return table;
}

std::string table_text(const std::vector<std::vector<std::string>>& rows, std::string_view indent = "  ") {
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string out;
  for (const auto& row : rows) {
    std::string line(indent);
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}", row[i], widths[i] + 2);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

void add_head(const Plan& p, std::string* out) {
  const ModelConfig& c = p.planned.config();
  const RankBytes parameters = p.planned.parameters();
  *out += fmt::format("model     {}: {}, {} layers, {} parameters, {} of them active, {} in {}\n", p.model, family_name(c.family),
                      c.num_layers, thousands(parameters.total()), thousands(p.planned.active_parameters()),
                      bytes_si(static_cast<double>(p.planned.bytes().total())),
                      p.planned.type() == WeightType::kCheckpoint ? "the checkpoint's types" : weight_type_name(p.planned.type()));
  const PlanRequest& r = p.request;
  *out += fmt::format("hardware  {} x {} ({}), {} a domain; {} each, {} kept back\n", r.devices, r.hardware.name, r.hardware.what,
                      ranks_per_domain(r), bytes_si(r.hardware.memory_bytes), bytes_si(r.hardware.reserve_bytes));
  *out +=
      fmt::format("asked     sequences of {} tokens{}{}{}\n", thousands(r.context), r.batch > 0 ? fmt::format(", {} at once", r.batch) : "",
                  r.max_tpot_us > 0 ? fmt::format(", at most {} a token", duration(r.max_tpot_us)) : "",
                  r.balancedness < 1 && !r.load ? fmt::format(", balancedness {:.2f}", r.balancedness) : "");
  std::vector<std::vector<std::string>> table{{"weights", "parameters", "bytes"}};
  const auto bytes = weight_rows(p.planned.bytes());
  const auto counts = weight_rows(parameters);
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i].second > 0) table.push_back({bytes[i].first, thousands(counts[i].second), bytes_si(static_cast<double>(bytes[i].second))});
  if (p.planned.next_token_parameters() > 0)
    table.push_back({"next-token layers", thousands(p.planned.next_token_parameters()),
                     fmt::format("{} (not loaded)", bytes_si(static_cast<double>(p.planned.next_token_bytes())))});
  *out += table_text(table);
}

void add_chosen(const Plan& p, const Candidate& c, std::string* out) {
  *out += fmt::format("\nchosen    {}\n", layout_text(c));
  std::vector<std::vector<std::string>> table{{"memory of a rank", ""}};
  for (const auto& [what, bytes] : memory_rows(c.memory)) table.push_back({what, bytes_si(static_cast<double>(bytes))});
  *out += table_text(table);
  *out += fmt::format("  {} bytes of cache a token: {} tokens a rank, {} distinct ones in all\n\n", thousands(c.memory.kv_bytes_per_token),
                      thousands(c.memory.tokens), thousands(c.memory.cluster_tokens * c.replicas));
  *out += table_text(step_table(c));
  *out += fmt::format("  {} sequences a rank: {} a token, {:.0f} tokens/s ({:.0f} a device); prompts {:.0f} tokens/s\n", c.batch_per_rank,
                      duration(c.tpot_us), c.tokens_per_s, c.tokens_per_s / p.request.devices, c.prefill_tokens_per_s);
  *out += fmt::format("  a rank sends {} inside its domain and {} over the network in a decode step\n", bytes_si(c.decode.domain_bytes),
                      bytes_si(c.decode.network_bytes));
  *out += c.compute_bound_rows > 0
              ? fmt::format("  a step turns from reading memory to computing at {} sequences a rank\n", c.compute_bound_rows)
              : std::string("  a step of this context reads memory longer than it computes, whatever the batch\n");
}

void add_ranking(const Plan& p, std::string* out) {
  *out += fmt::format("\n{} layouts are legal ({} combinations are not), {} fit:\n", p.search.num_legal, p.search.num_refused,
                      p.search.ranked.size());
  std::vector<std::vector<std::string>> table{
      {"", "layout", "tokens/s", "a token", "batch/rank", "weights/rank", "tokens held", "longest part"}};
  int place = 0;
  for (const Candidate* c : distinct(p.search.ranked, 8))
    table.push_back({fmt::format("{}", ++place), layout_text(*c), fmt::format("{:.0f}", c->tokens_per_s), duration(c->tpot_us),
                     fmt::format("{}", c->batch_per_rank), bytes_si(static_cast<double>(c->memory.weights.total())),
                     thousands(c->memory.cluster_tokens * c->replicas), std::string(step_part_name(c->decode.longest()))});
  if (table.size() > 1) *out += table_text(table);
  if (p.decided && p.decided->fits() && !p.search.ranked.empty())
    *out += fmt::format("  the procedure's layout comes to {:.0f} tokens/s, {:.1f} % of the first\n", p.decided->tokens_per_s,
                        100 * p.decided->tokens_per_s / p.search.ranked[0].tokens_per_s);
  if (p.search.infeasible.empty()) return;
  *out += p.search.ranked.empty() ? "\nNothing fits. Nearest:\n" : "\nNearest that do not fit:\n";
  for (const Candidate* c : distinct(p.search.infeasible, 3))
    *out += fmt::format("  {}: {}{}\n", layout_text(*c), fmt::join(c->missing, "; "), c->remedy.empty() ? "" : "; " + c->remedy);
  if (p.fewest_devices > 0) *out += fmt::format("  {} of these devices would hold it\n", p.fewest_devices);
}

}  // namespace

std::string bytes_si(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit < 4) bytes /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.{}f} {}", bytes, bytes < 10 ? 2 : 1, kUnits[unit]);
}

std::string duration(double us) {
  if (us < 1000) return fmt::format("{:.{}f} us", us, us < 10 ? 2 : 0);
  if (us < 1e6) return fmt::format("{:.2f} ms", us / 1e3);
  return fmt::format("{:.2f} s", us / 1e6);
}

std::string thousands(int64_t number) {
  std::string digits = fmt::format("{}", number < 0 ? -number : number);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return (number < 0 ? "-" : "") + digits;
}

std::vector<std::pair<std::string, int64_t>> weight_rows(const RankBytes& b) {
  return {{"embedding", b.embedding},   {"attention", b.attention}, {"dense layers", b.dense}, {"routed experts", b.routed},
          {"shared experts", b.shared}, {"router", b.router},       {"norms", b.norms},        {"head", b.head}};
}

std::vector<std::pair<std::string, int64_t>> memory_rows(const MemoryBudget& m) {
  std::vector<std::pair<std::string, int64_t>> out;
  for (auto& [what, bytes] : weight_rows(m.weights)) {
    if (bytes == 0) continue;
    const bool has_replicas = what == "routed experts" && m.replicas > 0;
    out.emplace_back(what, has_replicas ? bytes - m.replicas : bytes);
    if (has_replicas) out.emplace_back("redundant experts", m.replicas);
  }
  out.emplace_back("exchange buffers", m.exchange);
  out.emplace_back("workspace", m.workspace);
  out.emplace_back("kept back", m.reserve);
  out.emplace_back("KV pool", m.kv_pool);
  if (m.missing > 0) out.emplace_back("missing", m.missing);
  return out;
}

std::string layout_text(const Candidate& c) {
  const Layout& l = c.layout;
  std::string out = c.replicas > 1 ? fmt::format("{} servers of {}: ", c.replicas, l.world) : "";
  if (l.world == 1) return out + "one rank";
  out += l.attn_dp == 1   ? fmt::format("attention tp {}", l.attn_tp)
         : l.attn_tp == 1 ? fmt::format("attention dp {}", l.attn_dp)
                          : fmt::format("attention dp {} x tp {}", l.attn_dp, l.attn_tp);
  if (l.ep > 1)
    out += l.moe_tp == 1 ? fmt::format(", experts ep {}", l.ep) : fmt::format(", experts ep {} x tp {}", l.ep, l.moe_tp);
  else if (c.memory.weights.routed > 0)
    out += fmt::format(", experts tp {}", l.moe_tp);
  if (l.dense_tp != l.attn_tp && c.memory.weights.dense > 0) out += fmt::format(", dense tp {}", l.dense_tp);
  if (l.ep > 1) out += l.exchange == ExchangeKind::kAllGatherReduceScatter ? ", all-gather" : ", all-to-all";
  return out;
}

std::vector<const Candidate*> distinct(const std::vector<Candidate>& candidates, size_t most) {
  std::vector<const Candidate*> out;
  std::set<std::string> seen;
  for (const Candidate& c : candidates) {
    if (out.size() >= most) break;
    if (seen.insert(layout_text(c)).second) out.push_back(&c);
  }
  return out;
}

Plan make_plan(std::string model, PlannedModel planned, const PlanRequest& request) {
  Plan out{std::move(model), std::move(planned), request, {}, {}, {}, 0, {}};
  out.decision = decide(out.planned, request);
  if (out.decision.resolved)
    out.decided = weigh(out.planned, request, out.decision.options, *out.decision.resolved, 1, kRanksWeighedInFull);
  out.search = search_layouts(out.planned, request);
  if (out.search.ranked.empty()) {
    const bool is_memory = !out.search.infeasible.empty() &&
                           (out.search.infeasible[0].memory.missing > 0 || out.search.infeasible[0].memory.tokens < request.context);
    if (is_memory) out.fewest_devices = fewest_devices(out.planned, request);
    return out;
  }
  Candidate& first = out.search.ranked[0];
  const ResolvedLayout resolved = resolve_layout(first.options, out.planned.config(), DType::kBF16);
  first = weigh(out.planned, request, first.options, resolved, first.replicas, kRanksWeighedInFull);
  const StepTimeModel time(out.planned, first.layout, request.hardware,
                           {.kv_value_bytes = request.kv_value_bytes,
                            .is_fp8_dispatch = first.is_fp8_dispatch,
                            .balancedness = first.balancedness,
                            .ranks_per_domain = ranks_per_domain(request)});
  first.compute_bound_rows = compute_bound_rows(time, request.context, 1 << 16);
  out.commands = engine_commands(out.model, out.planned, request, first);
  return out;
}

std::string plan_text(const Plan& p) {
  std::string out;
  add_head(p, &out);
  out += "\nby the procedure:\n";
  for (const DecisionStep& s : p.decision.steps) out += fmt::format("  {}: {}\n    {}\n", s.what, s.choice, s.reason);
  if (!p.search.ranked.empty()) add_chosen(p, p.search.ranked[0], &out);
  add_ranking(p, &out);
  for (const EngineCommand& c : p.commands) {
    out += fmt::format("\n{}:\n", c.engine);
    for (const std::string& line : c.lines) out += fmt::format("  {}\n", line);
    for (const std::string& note : c.notes) out += fmt::format("  ({})\n", note);
  }
  return out;
}

}  // namespace cadre::planner
