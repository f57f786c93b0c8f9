#include "replay/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cadre::replay {
namespace {

json::object percentiles_json(const Percentiles& p) {
  return {{"count", p.count}, {"mean", p.mean}, {"p50", p.p50}, {"p90", p.p90},
          {"p95", p.p95},     {"p99", p.p99},   {"max", p.max}};
}

std::string ms_text(double ms) {
  if (ms >= 100'000) return fmt::format("{:.0f} s", ms / 1e3);
  if (ms >= 10'000) return fmt::format("{:.1f} s", ms / 1e3);
  return ms >= 100 ? fmt::format("{:.0f} ms", ms) : fmt::format("{:.1f} ms", ms);
}

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

}  // namespace

Percentiles percentiles_of(std::vector<double> values) {
  Percentiles out{.count = static_cast<int64_t>(values.size())};
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(std::clamp(std::ceil(share * static_cast<double>(values.size())) - 1, 0.0,
                                                 static_cast<double>(values.size() - 1)))];
  };
  out.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  out.p50 = at(0.5), out.p90 = at(0.9), out.p95 = at(0.95), out.p99 = at(0.99), out.max = values.back();
  return out;
}

Summary summarize(const Trace& trace, const ClusterOptions& options, const ClusterResult& result) {
  Summary s{.requests = static_cast<int64_t>(trace.requests.size()), .totals = result.totals};
  std::vector<double> ttft, tpot, queue, answer;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const Outcome& o = result.outcomes[i];
    const TraceRequest& request = trace.requests[i];
    s.too_long += o.end == Outcome::End::kTooLong;
    s.overloaded += o.end == Outcome::End::kOverloaded;
    if (o.end != Outcome::End::kAnswered) continue;
    ++s.answered;
    const auto arrival = static_cast<double>(request.arrival_us);
    queue.push_back((o.started_us - arrival) / 1e3);
    ttft.push_back((o.first_token_us - arrival) / 1e3);
    answer.push_back((o.last_token_us - arrival) / 1e3);
    if (request.output_tokens > 1)
      tpot.push_back((o.last_token_us - o.first_token_us) / 1e3 / static_cast<double>(request.output_tokens - 1));
  }
  s.ttft_ms = percentiles_of(std::move(ttft));
  s.tpot_ms = percentiles_of(std::move(tpot));
  s.queue_ms = percentiles_of(std::move(queue));
  s.answer_ms = percentiles_of(std::move(answer));
  const ClusterTotals& t = result.totals;
  s.duration_s = t.end_us / 1e6;
  s.requests_per_s = ratio(static_cast<double>(s.answered), s.duration_s);
  s.output_tokens_per_s = ratio(static_cast<double>(t.output_tokens), s.duration_s);
  s.prompt_tokens_per_s = ratio(static_cast<double>(t.prompt_tokens), s.duration_s);
  s.cached_share = ratio(static_cast<double>(t.cached_tokens), static_cast<double>(t.prompt_tokens));
  // A server is stepping or it is empty: what stands in the pools is counted over all the time.
  const double ranks = static_cast<double>(options.replicas) * options.ranks;
  s.mean_running = ratio(t.running_us, t.end_us);
  s.mean_waiting = ratio(t.waiting_us, t.end_us);
  s.mean_kv_share = ratio(t.blocks_us, t.end_us * ranks * static_cast<double>(options.num_kv_blocks));
  s.most_kv_share = ratio(static_cast<double>(t.most_blocks), static_cast<double>(options.num_kv_blocks));
  s.mean_step_ms = ratio(t.step_us / 1e3, static_cast<double>(t.steps));
  s.mean_decode_rows = ratio(static_cast<double>(t.decode_rows), static_cast<double>(t.steps));
  const auto& of_rank = t.requests_of_rank;
  const double mean = static_cast<double>(std::accumulate(of_rank.begin(), of_rank.end(), int64_t{0})) /
                      static_cast<double>(of_rank.size());
  s.fullest_rank = ratio(static_cast<double>(*std::max_element(of_rank.begin(), of_rank.end())), mean);
  return s;
}

std::string summaries_text(const Trace& trace, const std::vector<Summary>& runs) {
  std::string out =
      fmt::format("trace: {} requests in {:.1f} s ({})\n", trace.requests.size(), trace.duration_s(), trace.format);
  for (const std::string& note : trace.notes) out += fmt::format("  {}\n", note);
  size_t layout_width = 6, policy_width = 6;
  for (const Summary& s : runs)
    layout_width = std::max(layout_width, s.layout.size()), policy_width = std::max(policy_width, s.policy.size());
  out += fmt::format("\n{:<{}}  {:<{}}  {:>9} {:>9} {:>9}  {:>9} {:>9} {:>9}  {:>9}  {:>7} {:>7} {:>8}\n", "layout",
                     layout_width, "policy", policy_width, "TTFT p50", "p90", "p99", "TPOT p50", "p90", "p99",
                     "tokens/s", "cached", "refused", "preempted");
  for (const Summary& s : runs)
    out += fmt::format("{:<{}}  {:<{}}  {:>9} {:>9} {:>9}  {:>9} {:>9} {:>9}  {:>9.1f}  {:>6.1f}% {:>7} {:>8}\n",
                       s.layout, layout_width, s.policy, policy_width, ms_text(s.ttft_ms.p50), ms_text(s.ttft_ms.p90),
                       ms_text(s.ttft_ms.p99), ms_text(s.tpot_ms.p50), ms_text(s.tpot_ms.p90), ms_text(s.tpot_ms.p99),
                       s.output_tokens_per_s, 100 * s.cached_share, s.too_long + s.overloaded, s.totals.preemptions);
  for (const Summary& s : runs) {
    const ClusterTotals& t = s.totals;
    out += fmt::format("\n{}, {}: {} answered, {} too long, {} turned away; done after {:.1f} s\n", s.layout, s.policy,
                       s.answered, s.too_long, s.overloaded, s.duration_s);
    out += fmt::format(
        "  waiting: {} at the median, {} at p99 before the first rows; {:.1f} sequences at a time, {} at most\n",
        ms_text(s.queue_ms.p50), ms_text(s.queue_ms.p99), s.mean_waiting, t.most_waiting);
    out += fmt::format("  running: {:.1f} sequences at a time; KV cache {:.1f} % full, {:.1f} % at most on a rank\n",
                       s.mean_running, 100 * s.mean_kv_share, 100 * s.most_kv_share);
    out += fmt::format(
        "  {} steps of {:.2f} ms and {:.1f} decoding rows on average; the rank with the most requests had {:.2f} times "
        "the mean\n",
        t.steps, s.mean_step_ms, s.mean_decode_rows, s.fullest_rank);
    if (t.balancedness < 1)
      out += fmt::format("  experts: balancedness {:.3f}; {} rebalances moved {} slots and held up steps for {}\n",
                         t.balancedness, t.rebalances, t.moved_slots, ms_text(t.stall_us / 1e3));
    if (s.predicted_wall_s > 0)
      out += fmt::format("  simulated in {:.2f} s: {:.0f} requests a minute\n", s.predicted_wall_s,
                         60 * static_cast<double>(s.requests) / s.predicted_wall_s);
  }
  return out;
}

json::object summary_json(const Summary& s) {
  const ClusterTotals& t = s.totals;
  return {{"layout", s.layout},
          {"policy", s.policy},
          {"requests", s.requests},
          {"answered", s.answered},
          {"too_long", s.too_long},
          {"overloaded", s.overloaded},
          {"ttft_ms", percentiles_json(s.ttft_ms)},
          {"tpot_ms", percentiles_json(s.tpot_ms)},
          {"queue_ms", percentiles_json(s.queue_ms)},
          {"answer_ms", percentiles_json(s.answer_ms)},
          {"duration_s", s.duration_s},
          {"requests_per_s", s.requests_per_s},
          {"output_tokens_per_s", s.output_tokens_per_s},
          {"prompt_tokens_per_s", s.prompt_tokens_per_s},
          {"cached_share", s.cached_share},
          {"cached_tokens", t.cached_tokens},
          {"mean_running", s.mean_running},
          {"mean_waiting", s.mean_waiting},
          {"most_waiting", t.most_waiting},
          {"mean_kv_share", s.mean_kv_share},
          {"most_kv_share", s.most_kv_share},
          {"steps", t.steps},
          {"rounds", t.rounds},
          {"mean_step_ms", s.mean_step_ms},
          {"mean_decode_rows", s.mean_decode_rows},
          {"preemptions", t.preemptions},
          {"requests_of_rank", json::value_from(t.requests_of_rank)},
          {"balancedness", t.balancedness},
          {"rebalances", t.rebalances},
          {"moved_slots", t.moved_slots},
          {"stall_ms", t.stall_us / 1e3}};
}

json::object summaries_json(const Trace& trace, const std::vector<Summary>& runs) {
  json::array list;
  for (const Summary& run : runs) list.push_back(summary_json(run));
  return {{"trace",
           {{"format", trace.format},
            {"requests", trace.requests.size()},
            {"duration_s", trace.duration_s()},
            {"notes", json::value_from(trace.notes)}}},
          {"runs", std::move(list)}};
}

}  // namespace cadre::replay
