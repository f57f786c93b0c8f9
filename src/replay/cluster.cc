#include "replay/cluster.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "base/check.h"
#include "base/error.h"
#include "config/bytes.h"

namespace cadre::replay {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A request while it is being served.
struct Live : SchedSequence {
  uint32_t request = 0;
  int64_t num_left = 0;  // tokens of its answer still to come
};

// Blocks that a rank could ever hold, if it got every request and kept all of it: a larger pool changes nothing.
int64_t blocks_of(const Trace& trace, const ClusterOptions& options) {
  int64_t sum = options.scheduler.max_num_seqs + 1;  // kept free for who runs
  for (const TraceRequest& request : trace.requests) {
    if (sum >= options.num_kv_blocks) return options.num_kv_blocks;
    sum += (request.prompt_tokens + request.output_tokens) / kKvBlockTokens + 2;
  }
  return std::min(sum, options.num_kv_blocks);
}

struct Rank {
  Rank(const ClusterOptions& options, int64_t num_blocks, int64_t blocks_per_entry) : pool(num_blocks) {
    if (options.has_prefix_cache && blocks_per_entry > 0) cache.emplace(pool, blocks_per_entry);
    scheduler.emplace(options.scheduler, pool, cache ? &*cache : nullptr);
  }
  BlockPool pool;
  std::optional<PrefixCache> cache;
  std::optional<Scheduler> scheduler;
  std::vector<uint32_t> inbox;
  uint64_t num_taken = 0;
  std::span<const ScheduledRows> scheduled;
  bool others_decode = false;
};

// Ranks that step together.
struct Server {
  explicit Server(DpSync sync) : agreement(sync) {}
  std::vector<std::unique_ptr<Rank>> ranks;
  int first_rank = 0;
  StepAgreement agreement;
  int64_t num_wakes = 0;
  double busy_until_us = kNever;  // a step or a round ends then; kNever: it rests
  std::vector<StepVote> votes;
  std::vector<StepShape> shapes;
  std::optional<ExpertBalance> balance;
};

class Cluster {
 public:
  Cluster(const Trace& trace, const ClusterOptions& options);
  ClusterResult run();

 private:
  void arrive(uint32_t request);
  void begin_turn(Server& server, double now_us);
  void end_turn(Server& server, double now_us);
  void take_inbox(Server& server, size_t rank);
  void give_token(Rank& rank, Live& live, double now_us);
  void publish(Server& server, size_t rank);
  void count_step(const Server& server, double us);
  Live* new_live();

  const Trace& trace_;
  const ClusterOptions& options_;
  Admission admission_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::unique_ptr<Live>> lives_;
  std::vector<Live*> free_lives_;
  ClusterResult result_;
};

void check_options(const ClusterOptions& o) {
  if (o.replicas < 1 || o.ranks < 1 || static_cast<int64_t>(o.replicas) * o.ranks > 65536)
    throw invalid_input("replay: expected 1 to 65536 ranks, found {} servers of {}; correct them", o.replicas, o.ranks);
  if (o.num_kv_blocks < 1 || o.num_kv_blocks > std::numeric_limits<BlockId>::max())
    throw invalid_input("replay: expected 1 to 2^31 - 1 KV blocks a rank, found {}; correct the memory",
                        o.num_kv_blocks);
  if (o.max_model_len < 2)
    throw invalid_input("replay: expected a context of at least 2 tokens, found {}; raise it", o.max_model_len);
  if (o.scheduler.max_num_seqs < 1 || o.scheduler.max_num_batched_tokens < 1 ||
      o.scheduler.max_prefill_tokens_per_step < 0)
    throw invalid_input("replay: expected sequences and rows of a step of at least 1, found {} and {}; raise them",
                        o.scheduler.max_num_seqs, o.scheduler.max_num_batched_tokens);
  CADRE_CHECK(o.cost != nullptr, "a replay without a cost");
}

Cluster::Cluster(const Trace& trace, const ClusterOptions& options)
    : trace_(trace),
      options_(options),
      admission_(options.load_balance, options.replicas * options.ranks, options.queue) {
  // Ids of the trace name whole numbers of KV blocks, or nothing can be found again.
  const int64_t per_id = trace.block_tokens % kKvBlockTokens == 0 ? trace.block_tokens / kKvBlockTokens : 0;
  const int64_t num_blocks = blocks_of(trace, options);
  for (int s = 0; s < options.replicas; ++s) {
    auto server = std::make_unique<Server>(options.sync);
    server->first_rank = s * options.ranks;
    for (int r = 0; r < options.ranks; ++r) server->ranks.push_back(std::make_unique<Rank>(options, num_blocks, per_id));
    server->votes.resize(static_cast<size_t>(options.ranks));
    server->shapes.resize(static_cast<size_t>(options.ranks));
    if (options.balance) server->balance.emplace(options.balance());
    servers_.push_back(std::move(server));
  }
  result_.outcomes.resize(trace.requests.size());
  result_.totals.requests_of_rank.resize(static_cast<size_t>(options.replicas * options.ranks));
}

ClusterResult Cluster::run() {
  const auto num_requests = static_cast<uint32_t>(trace_.requests.size());
  for (uint32_t next = 0;;) {
    Server* first = servers_[0].get();
    for (const auto& server : servers_)
      if (server->busy_until_us < first->busy_until_us) first = server.get();
    const double arrival_us = next < num_requests ? static_cast<double>(trace_.requests[next].arrival_us) : kNever;
    if (arrival_us == kNever && first->busy_until_us == kNever) break;
    if (first->busy_until_us < arrival_us) {
      const double now_us = first->busy_until_us;
      end_turn(*first, now_us);
      begin_turn(*first, now_us);
      continue;
    }
    // All that come at this moment, before anybody steps.
    const int64_t moment = trace_.requests[next].arrival_us;
    while (next < num_requests && trace_.requests[next].arrival_us == moment) arrive(next++);
    for (const auto& server : servers_)
      if (server->busy_until_us == kNever) begin_turn(*server, arrival_us);
  }
  ClusterTotals& totals = result_.totals;
  double balancedness = 0;
  for (const auto& server : servers_) {
    for (const auto& rank : server->ranks) totals.preemptions += rank->scheduler->num_preemptions();
    if (!server->balance) continue;
    totals.rebalances += server->balance->num_rebalances();
    totals.moved_slots += server->balance->num_moved();
    totals.stall_us += server->balance->stall_us();
    balancedness += server->balance->mean_balancedness() / static_cast<double>(servers_.size());
  }
  if (balancedness > 0) totals.balancedness = balancedness;
  return std::move(result_);
}

// As Controller::submit, after Engine::validate.
void Cluster::arrive(uint32_t idx) {
  const TraceRequest& request = trace_.requests[idx];
  Outcome& outcome = result_.outcomes[idx];
  const int64_t longest = std::min(options_.max_model_len, options_.num_kv_blocks * kKvBlockTokens + 1);
  if (request.prompt_tokens + request.output_tokens > longest) {
    outcome.end = Outcome::End::kTooLong;
    return;
  }
  try {
    outcome.rank = admission_.assign({}, {1, request.prompt_tokens});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kOverloaded) throw;
    outcome.end = Outcome::End::kOverloaded;
    return;
  }
  ++result_.totals.requests_of_rank[static_cast<size_t>(outcome.rank)];
  Server& server = *servers_[static_cast<size_t>(outcome.rank / options_.ranks)];
  server.ranks[static_cast<size_t>(outcome.rank % options_.ranks)]->inbox.push_back(idx);
  ++server.num_wakes;
}

Live* Cluster::new_live() {
  if (free_lives_.empty()) {
    lives_.push_back(std::make_unique<Live>());
    return lives_.back().get();
  }
  Live* live = free_lives_.back();
  free_lives_.pop_back();
  return live;
}

void Cluster::take_inbox(Server& server, size_t r) {
  Rank& rank = *server.ranks[r];
  for (const uint32_t idx : rank.inbox) {
    const TraceRequest& request = trace_.requests[idx];
    Live* live = new_live();
    live->request = idx;
    live->num_left = request.output_tokens;
    live->num_prompt = live->num_tokens = request.prompt_tokens;
    live->max_tokens = request.prompt_tokens + request.output_tokens - 1;
    live->has_started = false;
    if (rank.cache)
      live->prefix_keys = trace_.blocks_of(request).first(
          std::min<size_t>(request.num_blocks, static_cast<size_t>(request.prompt_tokens / trace_.block_tokens)));
    rank.scheduler->add(live);
  }
  rank.inbox.clear();
  rank.num_taken = admission_.router().num_assigned(server.first_rank + static_cast<int>(r));
}

// As Controller::run_together; a server of one rank is a group of one.
void Cluster::begin_turn(Server& server, double now_us) {
  server.busy_until_us = kNever;
  if (!server.agreement.must_vote(server.num_wakes)) return;
  for (size_t r = 0; r < server.ranks.size(); ++r) {
    Rank& rank = *server.ranks[r];
    take_inbox(server, r);
    rank.scheduled = rank.scheduler->schedule(rank.others_decode);
    StepVote& vote = server.votes[r];
    server.shapes[r] = shape_of(rank.scheduled);
    vote = {.num_rows = server.shapes[r].rows(), .num_wakes = server.num_wakes, .has_work = rank.scheduler->has_work()};
    for (const ScheduledRows& rows : rank.scheduled) {
      vote.num_samples += rows.samples;
      auto& live = static_cast<Live&>(*rows.sequence);
      if (rows.start == live.num_cached &&
          live.num_tokens == live.num_prompt) {  // its first rows, or its first after preemption
        Outcome& outcome = result_.outcomes[live.request];
        if (outcome.started_us < 0) outcome.started_us = now_us;
        outcome.cached_tokens = live.num_cached;
      }
    }
    publish(server, r);
  }
  const StepVerdict verdict = server.agreement.decide(server.votes);
  for (size_t r = 0; r < server.ranks.size(); ++r)
    server.ranks[r]->others_decode = others_decode(server.votes, static_cast<int>(r));
  if (verdict == StepVerdict::kRun) {
    const double balancedness = server.balance ? server.balance->balancedness() : 1;
    double us = options_.cost(server.shapes, balancedness);
    CADRE_CHECK(us > 0 && us < 1e15, "a step of {} us", us);
    if (server.balance) us += server.balance->after_step(us);
    count_step(server, us);
    server.busy_until_us = now_us + us;
  } else if (verdict == StepVerdict::kRound) {
    ++result_.totals.rounds;
    server.busy_until_us = now_us + options_.round_us;
  }
}

void Cluster::end_turn(Server& server, double now_us) {
  result_.totals.end_us = std::max(result_.totals.end_us, now_us);
  for (size_t r = 0; r < server.ranks.size(); ++r) {
    Rank& rank = *server.ranks[r];
    if (rank.scheduled.empty()) continue;
    for (const ScheduledRows& rows : rank.scheduled) {
      Scheduler::advance(rows);
      if (rows.samples) give_token(rank, static_cast<Live&>(*rows.sequence), now_us);
    }
    rank.scheduled = {};
    publish(server, r);
  }
}

void Cluster::give_token(Rank& rank, Live& live, double now_us) {
  Outcome& outcome = result_.outcomes[live.request];
  const TraceRequest& request = trace_.requests[live.request];
  if (live.num_left == request.output_tokens) outcome.first_token_us = now_us;
  if (--live.num_left > 0) {
    ++live.num_tokens;
    return;
  }
  outcome.last_token_us = now_us;
  result_.totals.prompt_tokens += request.prompt_tokens;
  result_.totals.cached_tokens += outcome.cached_tokens;
  result_.totals.output_tokens += request.output_tokens;
  rank.scheduler->remove(&live);
  live.prefix_keys = {};
  free_lives_.push_back(&live);
}

void Cluster::publish(Server& server, size_t r) {
  const Rank& rank = *server.ranks[r];
  const Scheduler& s = *rank.scheduler;
  admission_.publish(server.first_rank + static_cast<int>(r),
                     {s.num_waiting(), s.num_running(), s.num_waiting_tokens(), s.num_running_tokens()},
                     rank.num_taken);
}

void Cluster::count_step(const Server& server, double us) {
  ClusterTotals& totals = result_.totals;
  ++totals.steps;
  totals.step_us += us;
  int64_t waiting = 0;
  for (size_t r = 0; r < server.ranks.size(); ++r) {
    const Rank& rank = *server.ranks[r];
    const int64_t running = rank.scheduler->num_running(), blocks = rank.pool.num_blocks() - rank.pool.num_free() -
                                                                    (rank.cache ? rank.cache->num_idle_blocks() : 0);
    totals.decode_rows += server.shapes[r].decode_rows;
    totals.prefill_rows += server.shapes[r].prefill_rows;
    totals.most_rows = std::max(totals.most_rows, server.shapes[r].rows());
    totals.most_running = std::max(totals.most_running, running);
    totals.most_blocks = std::max(totals.most_blocks, blocks);
    totals.running_us += static_cast<double>(running) * us;
    totals.blocks_us += static_cast<double>(blocks) * us;
    waiting += rank.scheduler->num_waiting();
  }
  totals.waiting_us += static_cast<double>(waiting) * us;
  totals.most_waiting = std::max(totals.most_waiting, waiting);
}

}  // namespace

StepShape shape_of(std::span<const ScheduledRows> scheduled) {
  StepShape shape;
  for (const ScheduledRows& rows : scheduled) {
    const int64_t end = rows.start + rows.num_rows;
    if (rows.num_rows == 1 && rows.samples) {
      ++shape.decode_rows;
      shape.decode_context += end;
    } else {
      ++shape.prefill_sequences;
      shape.prefill_rows += rows.num_rows;
      shape.prefill_pairs += (end * (end + 1) - rows.start * (rows.start + 1)) / 2;
    }
  }
  return shape;
}

ClusterResult replay_trace(const Trace& trace, const ClusterOptions& options) {
  check_options(options);
  return Cluster(trace, options).run();
}

}  // namespace cadre::replay
