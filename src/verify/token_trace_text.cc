#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/plan_text.h"
#include "verify/token_trace.h"

namespace cadre {
namespace {

std::string token_of(int32_t id, const std::string& text) {
  return text.empty() ? fmt::format("{}", id) : fmt::format("{} {}", id, text);
}

std::string rows_text(int64_t rows) { return fmt::format("{} {}", rows, rows == 1 ? "row" : "rows"); }

template <typename Get>
std::string by_rank(const TokenTrace& t, Get get) {
  std::string out;
  for (const TracedWorldRank& r : t.ranks) out += fmt::format("{:>9}", get(r));
  return out;
}

int64_t total(const TokenTrace& t, size_t kind) {
  int64_t out = 0;
  for (const TracedWorldRank& r : t.ranks) out += r.counted[kind].bytes_sent;
  return out;
}

// The kinds of traffic that this layer had, in the order of the layer.
std::vector<size_t> kinds(const TokenTrace& t) {
  std::vector<size_t> out;
  for (size_t k = 0; k < kNumTraffic; ++k)
    if (std::any_of(t.ranks.begin(), t.ranks.end(),
                    [&](const TracedWorldRank& r) { return r.counted[k].calls > 0 || r.predicted[k].calls > 0; }))
      out.push_back(k);
  return out;
}

std::string place_text(const TokenTrace& t) {
  std::string out =
      fmt::format("token    new token {}: {}, at position {} behind a prompt of {}; the next one is {}\n", t.new_token,
                  token_of(t.token, t.token_text), t.position, t.prompt_tokens, token_of(t.next_token, t.next_text));
  out += fmt::format("rank     data-parallel rank {} of {}, for life ({})\n", t.dp_rank, t.dp_ranks.size(), t.why_rank);
  out += fmt::format("step     {}; agreed at its start:\n", t.step);
  for (size_t r = 0; r < t.dp_ranks.size(); ++r)
    out += fmt::format("         data-parallel rank {}: {}, {}{}\n", r, rows_text(t.dp_ranks[r].rows),
                       t.dp_ranks[r].phase(), t.dp_ranks[r].rows == 0 ? "; it takes the step with the others" : "");
  return out + fmt::format("         the row is in the slice of world rank {}, which owns it from here on\n", t.owner);
}

std::string traffic_text(const TokenTrace& t) {
  const auto moved = kinds(t);
  if (moved.empty()) return "moved    nothing: this layer has no collective\n";
  std::string out =
      fmt::format("moved    {:<18}{:>6}{:>11}   bytes sent by world rank\n", "collective", "calls", "bytes");
  for (const size_t k : moved)
    out += fmt::format("         {:<18}{:>6}{:>11}{}\n", traffic_name(static_cast<Traffic>(k)),
                       t.ranks[0].counted[k].calls, total(t, k),
                       by_rank(t, [&](const TracedWorldRank& r) { return r.counted[k].bytes_sent; }));
  return out + fmt::format("         counted calls and bytes {} what the cost functions predict, rank by rank\n",
                           t.counts_are_as_predicted() ? "equal" : "DIFFER FROM");
}

std::string route_text(const TokenTrace& t) {
  std::string out = fmt::format("router   {}\n         {:>6}{:>10}{:>7}{:>12}   on world rank\n", t.routing_rule,
                                "expert", "weight", "slot", "local slot");
  for (const TracedExpert& e : t.experts) {
    std::string where = fmt::format("{}", e.ep_rank * t.layout.moe_tp);
    if (t.layout.moe_tp > 1) where += fmt::format("-{}, a part of it on each", (e.ep_rank + 1) * t.layout.moe_tp - 1);
    out += fmt::format("         {:>6}{:>10.6f}{:>7}{:>12}   {}\n", e.expert, e.weight, e.slot, e.local_slot, where);
  }
  return out + fmt::format("         {} distinct destination ranks ({}), {} of them remote; this row sends {} bytes\n",
                           t.destinations.size(), fmt::join(t.destinations, ", "), t.num_remote(), t.sent_bytes);
}

std::string experts_text(const TokenTrace& t) {
  std::string out = "experts  rows of all tokens of this step\n";
  for (size_t r = 0; r < t.ranks.size(); ++r) {
    const TracedWorldRank& rank = t.ranks[r];
    std::string rows;
    for (size_t s = 0; s < rank.rows_of_slot.size(); ++s)
      if (rank.rows_of_slot[s] > 0)
        rows += fmt::format("{}{}: {}", rows.empty() ? "" : ", ", rank.experts[s], rank.rows_of_slot[s]);
    out += fmt::format("         rank {}: {:>4} rows in {:>6} us, done at +{} us{}{}\n", r, rank.rows, rank.compute_us,
                       rank.finished_after_us, rows.empty() ? "" : fmt::format("   (expert: rows) {}", rows),
                       static_cast<int>(r) == t.last_rank && t.ranks.size() > 1 ? "   <- finished last" : "");
  }
  if (t.ranks.size() > 1)
    out += fmt::format("         rank {} finished last, {} us after the first; the combine waits for it\n", t.last_rank,
                       t.ranks[static_cast<size_t>(t.last_rank)].finished_after_us);
  return out;
}

json::array collectives_json(const TokenTrace& t) {
  json::array out;
  for (const size_t k : kinds(t)) {
    json::array ranks;
    for (const TracedWorldRank& r : t.ranks)
      ranks.push_back({{"calls", r.counted[k].calls},
                       {"bytes", r.counted[k].bytes_sent},
                       {"predicted_calls", r.predicted[k].calls},
                       {"predicted_bytes", r.predicted[k].bytes_sent}});
    out.push_back(
        {{"kind", traffic_name(static_cast<Traffic>(k))}, {"bytes", total(t, k)}, {"ranks", std::move(ranks)}});
  }
  return out;
}

json::array experts_json(const TokenTrace& t) {
  json::array out;
  for (const TracedExpert& e : t.experts)
    out.push_back({{"expert", e.expert},
                   {"weight", e.weight},
                   {"slot", e.slot},
                   {"local_slot", e.local_slot},
                   {"ep_rank", e.ep_rank}});
  return out;
}

json::array ranks_json(const TokenTrace& t) {
  json::array out;
  for (const TracedWorldRank& r : t.ranks) {
    json::object rows;
    for (size_t s = 0; s < r.rows_of_slot.size(); ++s)
      if (r.rows_of_slot[s] > 0) rows[std::to_string(r.experts[s])] = r.rows_of_slot[s];
    out.push_back({{"own_rows", r.own_rows},
                   {"rows", r.rows},
                   {"rows_of_expert", std::move(rows)},
                   {"compute_us", r.compute_us},
                   {"finished_after_us", r.finished_after_us}});
  }
  return out;
}

}  // namespace

std::string trace_text(const TokenTrace& t) {
  std::string out = place_text(t);
  out += fmt::format("layer    {} of {}, sparse\n         attention     {}\n         feed-forward  {}\n", t.layer,
                     t.num_layers, half_text(t.plan.attention), half_text(t.plan.feed_forward));
  if (t.exchange != t.plan.feed_forward.exchange)
    out += fmt::format("         {} is {} at this many rows\n", exchange_name(t.plan.feed_forward.exchange),
                       exchange_name(t.exchange));
  out += traffic_text(t) + route_text(t) + experts_text(t);
  out += fmt::format("combine  {}\n", t.combine_order);
  if (t.ranks.size() > 1)
    out += fmt::format("         {} rows came back for this one, {} of them from other ranks: {} bytes\n", t.rows_back,
                       t.remote_rows_back, t.back_bytes);
  return out;
}

json::object trace_json(const TokenTrace& t) {
  json::array dp_ranks, destinations;
  for (const TracedDpRank& r : t.dp_ranks)
    dp_ranks.push_back({{"rows", r.rows},
                        {"phase", r.phase()},
                        {"sequences_before", r.sequences_before},
                        {"tokens_before", r.tokens_before}});
  for (const int d : t.destinations) destinations.push_back(d);
  return {{"token",
           {{"new_token", t.new_token},
            {"id", t.token},
            {"text", t.token_text},
            {"position", t.position},
            {"prompt_tokens", t.prompt_tokens},
            {"next_id", t.next_token},
            {"next_text", t.next_text}}},
          {"rank", {{"attn_dp", t.dp_rank}, {"world", t.owner}, {"why", t.why_rank}}},
          {"step", {{"number", t.step}, {"dp_ranks", std::move(dp_ranks)}}},
          {"layer",
           {{"index", t.layer},
            {"attention", half_json(t.plan.attention)},
            {"feed_forward", half_json(t.plan.feed_forward)},
            {"exchange", exchange_name(t.exchange)}}},
          {"collectives", collectives_json(t)},
          {"counts_are_as_predicted", t.counts_are_as_predicted()},
          {"router", {{"rule", t.routing_rule}, {"experts", experts_json(t)}}},
          {"dispatch",
           {{"destinations", std::move(destinations)}, {"num_remote", t.num_remote()}, {"bytes", t.sent_bytes}}},
          {"ranks", ranks_json(t)},
          {"last_rank", t.last_rank},
          {"combine",
           {{"order", t.combine_order},
            {"rows_back", t.rows_back},
            {"remote_rows_back", t.remote_rows_back},
            {"bytes", t.back_bytes}}}};
}

}  // namespace cadre
