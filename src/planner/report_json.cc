#include "planner/report.h"

namespace cadre::planner {
namespace {

json::object rows_json(const std::vector<std::pair<std::string, int64_t>>& rows) {
  json::object out;
  for (const auto& [what, value] : rows) out[what] = value;
  return out;
}

json::object time_json(const StepTime& t) {
  json::object parts;
  for (size_t i = 0; i < kNumStepParts; ++i) {
    const StepPart part = static_cast<StepPart>(i);
    if (t[part].us() <= 0) continue;
    parts[step_part_name(part)] = {{"us", t[part].us()},
                                   {"bytes_us", t[part].bytes_us},
                                   {"compute_us", t[part].compute_us},
                                   {"latency_us", t[part].latency_us},
                                   {"bound_by", bound_name(t.bound_of(part))}};
  }
  return {{"total_us", t.total_us()},
          {"longest", step_part_name(t.longest())},
          {"domain_bytes", t.domain_bytes},
          {"network_bytes", t.network_bytes},
          {"parts", std::move(parts)}};
}

json::object candidate_json(const Candidate& c) {
  const Layout& l = c.layout;
  json::object out{{"layout", layout_text(c)},
                   {"flags", option_flags(c.options)},
                   {"replicas", c.replicas},
                   {"world", l.world},
                   {"attn_dp", l.attn_dp},
                   {"attn_tp", l.attn_tp},
                   {"ep", l.ep},
                   {"moe_tp", l.moe_tp},
                   {"dense_tp", l.dense_tp},
                   {"exchange", exchange_name(l.exchange)},
                   {"redundant_experts", l.redundant_experts},
                   {"balancedness", c.balancedness},
                   {"fits", c.fits()},
                   {"memory", rows_json(memory_rows(c.memory))},
                   {"kv_bytes_per_token", c.memory.kv_bytes_per_token},
                   {"tokens_per_rank", c.memory.tokens},
                   {"tokens_in_all", c.memory.cluster_tokens * c.replicas}};
  if (!c.fits()) {
    json::array missing;
    for (const std::string& m : c.missing) missing.push_back(json::string(m));
    out["missing"] = std::move(missing);
    if (!c.remedy.empty()) out["remedy"] = c.remedy;
    return out;
  }
  out["batch_per_rank"] = c.batch_per_rank;
  out["tpot_us"] = c.tpot_us;
  out["tokens_per_s"] = c.tokens_per_s;
  out["prefill_tokens_per_s"] = c.prefill_tokens_per_s;
  out["decode"] = time_json(c.decode);
  out["prefill"] = time_json(c.prefill);
  return out;
}

}  // namespace

json::object plan_json(const Plan& p) {
  const PlanRequest& r = p.request;
  json::array steps, ranked, infeasible, commands;
  for (const DecisionStep& s : p.decision.steps) steps.push_back({{"what", s.what}, {"choice", s.choice}, {"reason", s.reason}});
  for (const Candidate* c : distinct(p.search.ranked, 20)) ranked.push_back(candidate_json(*c));
  for (const Candidate* c : distinct(p.search.infeasible, 5)) infeasible.push_back(candidate_json(*c));
  for (const EngineCommand& c : p.commands) {
    json::array lines, notes;
    for (const std::string& line : c.lines) lines.push_back(json::string(line));
    for (const std::string& note : c.notes) notes.push_back(json::string(note));
    commands.push_back({{"engine", c.engine}, {"lines", std::move(lines)}, {"notes", std::move(notes)}});
  }
  json::object sources;
  for (const auto& [figure, source] : r.hardware.sources) sources[figure] = source;
  json::object out{{"model",
                    {{"name", p.model},
                     {"family", family_name(p.planned.config().family)},
                     {"weight_type", weight_type_name(p.planned.type())},
                     {"parameters", p.planned.parameters().total()},
                     {"active_parameters", p.planned.active_parameters()},
                     {"bytes", p.planned.bytes().total()},
                     {"parameters_by_kind", rows_json(weight_rows(p.planned.parameters()))},
                     {"bytes_by_kind", rows_json(weight_rows(p.planned.bytes()))},
                     {"next_token_parameters", p.planned.next_token_parameters()}}},
                   {"hardware",
                    {{"name", r.hardware.name},
                     {"what", r.hardware.what},
                     {"devices", r.devices},
                     {"ranks_per_domain", ranks_per_domain(r)},
                     {"memory_bytes", r.hardware.memory_bytes},
                     {"sources", std::move(sources)}}},
                   {"request",
                    {{"context", r.context},
                     {"batch", r.batch},
                     {"max_tpot_us", r.max_tpot_us},
                     {"kv_type", r.kv_type},
                     {"prefill_rows", r.prefill_rows},
                     {"redundant_experts", r.redundant_experts}}},
                   {"procedure", std::move(steps)},
                   {"num_legal", p.search.num_legal},
                   {"num_fit", static_cast<int64_t>(p.search.ranked.size())},
                   {"ranked", std::move(ranked)},
                   {"infeasible", std::move(infeasible)},
                   {"commands", std::move(commands)}};
  if (p.decided) out["procedure_layout"] = candidate_json(*p.decided);
  if (p.fewest_devices > 0) out["fewest_devices"] = p.fewest_devices;
  if (!p.search.ranked.empty()) out["compute_bound_rows"] = p.search.ranked[0].compute_bound_rows;
  return out;
}

}  // namespace cadre::planner
