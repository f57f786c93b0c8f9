#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <type_traits>

namespace cadre {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const prometheus::Histogram::BucketBoundaries kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                                                    0.1,   0.25,  0.5,  0.75, 1.0,  2.5,  5.0,
                                                                    7.5,   10.0,  20.0, 40.0, 80.0, 160.0};
const prometheus::Histogram::BucketBoundaries kInterTokenSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                                                                    0.1,   0.15,   0.2,   0.3,  0.4,   0.5,  0.75,
                                                                    1.0,   2.5,    5.0,   7.5,  10.0,  20.0};
const prometheus::Histogram::BucketBoundaries kRequestSeconds = {0.01, 0.05, 0.1,  0.3,   0.5,   0.8,   1.0,
                                                                 1.5,  2.0,  2.5,  5.0,   10.0,  15.0,  20.0,
                                                                 30.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0};
const prometheus::Histogram::BucketBoundaries kTokens = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                                         1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};

// Families of what the ranks count, one metric each; read takes an EngineStats or a RankStatus.
class EngineFamilies {
 public:
  EngineFamilies(const std::string& model_name, const std::vector<RankStatus>& ranks)
      : model_name_(model_name), ranks_(ranks) {}

  template <typename Read>
  void gauge(const char* name, const char* help, Read read) {
    add(name, help, MetricType::Gauge, {}, read);
  }
  template <typename Read>
  void counter(const char* name, const char* help, Read read, std::pair<const char*, const char*> label = {}) {
    add(name, help, MetricType::Counter, label, read);
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  template <typename Read>
  void add(const char* name, const char* help, MetricType type, std::pair<const char*, const char*> label, Read read) {
    if (families_.empty() || families_.back().name != name) families_.push_back({name, help, type, {}});
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ClientMetric metric;
      metric.label = {{"engine", std::to_string(rank)}, {"model_name", model_name_}};
      if (label.first) metric.label.push_back({label.first, label.second});
      double value = 0;
      if constexpr (std::is_invocable_v<Read, const EngineStats&>)
        value = static_cast<double>(read(ranks_[rank].stats));
      else
        value = static_cast<double>(read(ranks_[rank]));
      if (type == MetricType::Gauge)
        metric.gauge.value = value;
      else
        metric.counter.value = value;
      families_.back().metric.push_back(std::move(metric));
    }
  }

  const std::string& model_name_;
  const std::vector<RankStatus>& ranks_;
  std::vector<MetricFamily> families_;
};

std::vector<MetricFamily> engine_families(const std::string& model_name, const std::vector<RankStatus>& ranks) {
  EngineFamilies out(model_name, ranks);
  using S = EngineStats;
  out.gauge("cadre:num_requests_running", "Sequences running now.", [](const S& s) { return s.num_running; });
  out.gauge("cadre:num_requests_waiting", "Sequences waiting for admission now.",
            [](const S& s) { return s.num_waiting; });
  out.gauge("cadre:num_waiting_tokens", "Prompt tokens of waiting sequences.",
            [](const S& s) { return s.num_waiting_tokens; });
  out.gauge("cadre:num_running_tokens", "Known tokens of running sequences.",
            [](const S& s) { return s.num_running_tokens; });
  out.gauge("cadre:rank_healthy", "1 while the rank makes steps or has nothing to do.",
            [](const RankStatus& r) { return r.is_healthy ? 1 : 0; });
  out.counter("cadre:requests_assigned_total", "Requests given to the rank.",
              [](const RankStatus& r) { return r.num_assigned; });
  out.gauge("cadre:kv_cache_usage_perc", "Share of KV blocks in use, from 0 to 1.", [](const S& s) {
    return s.num_blocks > 0 ? 1.0 - static_cast<double>(s.num_free_blocks) / static_cast<double>(s.num_blocks) : 0.0;
  });
  out.gauge("cadre:num_kv_blocks", "KV blocks of 16 tokens in the pool.", [](const S& s) { return s.num_blocks; });
  out.counter("cadre:num_preemptions_total", "Sequences put back to be computed again.",
              [](const S& s) { return s.num_preemptions; });
  out.counter("cadre:prompt_tokens_total", "Prompt tokens processed.", [](const S& s) { return s.num_prompt_tokens; });
  out.counter("cadre:generation_tokens_total", "Tokens generated.", [](const S& s) { return s.num_generated_tokens; });
  out.counter("cadre:engine_steps_total", "Steps made.", [](const S& s) { return s.num_steps; });
  const char* aborts = "cadre:request_aborts_total";
  const char* aborts_help = "Sequences cancelled, by the state they were in.";
  out.counter(aborts, aborts_help, [](const S& s) { return s.num_cancelled_waiting; }, {"phase", "waiting"});
  out.counter(aborts, aborts_help, [](const S& s) { return s.num_cancelled_prefill; }, {"phase", "prefill"});
  out.counter(aborts, aborts_help, [](const S& s) { return s.num_cancelled_decode; }, {"phase", "decode"});
  return out.take();
}

// Families of a server whose experts move, one metric each or one for each world rank.
class ExpertFamilies {
 public:
  explicit ExpertFamilies(const std::string& model_name) : model_name_(model_name) {}

  void gauge(const char* name, const char* help, double value) { add(name, help, MetricType::Gauge).gauge.value = value; }
  void counter(const char* name, const char* help, double value) { add(name, help, MetricType::Counter).counter.value = value; }
  template <typename T>
  void counter_of_ranks(const char* name, const char* help, const std::vector<T>& values) {
    for (size_t rank = 0; rank < values.size(); ++rank) {
      ClientMetric& metric = add(name, help, MetricType::Counter);
      metric.label.push_back({"rank", std::to_string(rank)});
      metric.counter.value = static_cast<double>(values[rank]);
    }
  }
  void histogram(const char* name, const char* help, const HistogramCounts& counts) {
    ClientMetric& metric = add(name, help, MetricType::Histogram);
    uint64_t sum = 0;
    for (size_t i = 0; i < counts.counts.size(); ++i) {
      sum += static_cast<uint64_t>(counts.counts[i]);
      metric.histogram.bucket.push_back({sum, i < counts.bounds.size() ? counts.bounds[i] : std::numeric_limits<double>::infinity()});
    }
    metric.histogram.sample_count = sum;
    metric.histogram.sample_sum = counts.sum;
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  ClientMetric& add(const char* name, const char* help, MetricType type) {
    if (families_.empty() || families_.back().name != name) families_.push_back({name, help, type, {}});
    families_.back().metric.emplace_back().label = {{"model_name", model_name_}};
    return families_.back().metric.back();
  }

  const std::string& model_name_;
  std::vector<MetricFamily> families_;
};

std::vector<MetricFamily> expert_families(const std::string& model_name, const ExpertMetrics& m) {
  ExpertFamilies out(model_name);
  out.gauge("cadre:expert_balancedness", "Mean over ranks / maximum of the rows of experts, over all sparse layers, in the last interval.", m.balancedness);
  out.histogram("cadre:expert_balancedness_of_steps", "The same of the rows that ranks computed, every eighth step.", m.balancedness_by_rows);
  out.counter_of_ranks("cadre:expert_rows_total", "Pairs of a row and an expert that a rank computed.", m.rows_of_rank);
  out.counter_of_ranks("cadre:expert_imbalance_seconds_total", "Time a rank waited for slower ranks' experts.", m.waited_seconds_of_rank);
  out.counter("cadre:eplb_rebalances_total", "Rebalances that came to their end.", static_cast<double>(m.num_rebalances));
  out.counter("cadre:eplb_layers_switched_total", "Layers that got another placement.", static_cast<double>(m.num_layers_switched));
  out.counter("cadre:eplb_plans_refused_total", "Plans that failed; the old placement stayed.", static_cast<double>(m.num_plans_refused));
  out.counter("cadre:eplb_moved_experts_total", "Slots whose expert came from another rank.", static_cast<double>(m.num_moved_slots));
  out.counter("cadre:eplb_moved_bytes_total", "Bytes of experts sent between ranks.", static_cast<double>(m.num_moved_bytes));
  out.counter("cadre:eplb_stall_seconds_total", "Time that planning and moving added to steps.", m.stall_seconds);
  out.histogram("cadre:eplb_step_stall_seconds", "The same, of each step in which experts were on their way.", m.stall_seconds_of_steps);
  return out.take();
}

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& http = prometheus::BuildCounter()
                                                      .Name("cadre:http_requests_total")
                                                      .Help("Answers by route and status.")
                                                      .Register(registry);
  prometheus::Family<prometheus::Counter>& finished = prometheus::BuildCounter()
                                                          .Name("cadre:request_success_total")
                                                          .Help("Choices finished, by reason.")
                                                          .Register(registry);
  prometheus::Histogram& first_token = histogram("cadre:time_to_first_token_seconds",
                                                 "From a request's arrival to its first token.", kFirstTokenSeconds);
  prometheus::Histogram& inter_token =
      histogram("cadre:inter_token_latency_seconds", "Between tokens of one choice.", kInterTokenSeconds);
  prometheus::Histogram& request =
      histogram("cadre:e2e_request_latency_seconds", "From a request's arrival to its last token.", kRequestSeconds);
  prometheus::Histogram& prompt_tokens =
      histogram("cadre:request_prompt_tokens", "Prompt tokens of a request.", kTokens);
  prometheus::Histogram& completion_tokens =
      histogram("cadre:request_generation_tokens", "Generated tokens of a request.", kTokens);

  prometheus::Histogram& histogram(const char* name, const char* help,
                                   const prometheus::Histogram::BucketBoundaries& bounds) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, bounds);
  }
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {
  for (const char* reason : {"stop", "length", "abort", "error"}) impl_->finished.Add({{"finished_reason", reason}});
}
Metrics::~Metrics() = default;

void Metrics::count_http(std::string_view route, int status) {
  impl_->http.Add({{"route", std::string(route)}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::count_finished(std::string_view reason) {
  impl_->finished.Add({{"finished_reason", std::string(reason)}}).Increment();
}

void Metrics::observe_first_token(double seconds) { impl_->first_token.Observe(seconds); }

void Metrics::observe_inter_token(double seconds) { impl_->inter_token.Observe(seconds); }

void Metrics::observe_request(double seconds, int64_t prompt_tokens, int64_t completion_tokens) {
  impl_->request.Observe(seconds);
  impl_->prompt_tokens.Observe(static_cast<double>(prompt_tokens));
  impl_->completion_tokens.Observe(static_cast<double>(completion_tokens));
}

std::string Metrics::text(const std::string& model_name, const std::vector<RankStatus>& ranks, const std::optional<ExpertMetrics>& experts) const {
  std::vector<MetricFamily> families = engine_families(model_name, ranks);
  if (experts)
    for (MetricFamily& family : expert_families(model_name, *experts)) families.push_back(std::move(family));
  for (MetricFamily& family : impl_->registry.Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace cadre
