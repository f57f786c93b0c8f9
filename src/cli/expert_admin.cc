#include "cli/expert_admin.h"

#include <algorithm>

#include "base/error.h"
#include "eplb/balance.h"
#include "eplb/placement_file.h"
#include "parallel/expert_load.h"

namespace cadre::cli {
namespace {

HistogramCounts counts_of(const eplb::Histogram& h) { return {{h.bounds.begin(), h.bounds.end()}, h.counts, h.sum}; }

double seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

class DeployedExperts final : public ExpertAdmin {
 public:
  explicit DeployedExperts(const Deployment& deployment) : balancer_(deployment.balancer()), recorder_(*deployment.recorder()) {}

  json::object placement() const override {
    const eplb::BalancerStats s = balancer().stats();
    const auto layers = balancer().layers();
    json::object out = parse_json(eplb::to_json({{layers.begin(), layers.end()}, balancer().placements()}), "placement").as_object();
    out["generation"] = s.generation;
    out["balancedness"] = s.balancedness;
    out["steps"] = s.num_steps;
    out["rebalances"] = s.num_rebalances;
    out["layers_switched"] = s.num_layers_switched;
    out["plans_refused"] = s.num_refused;
    out["moved_slots"] = s.moved_slots;
    out["moved_bytes"] = s.moved_bytes;
    out["stall_seconds"] = seconds(s.stall_us);
    return out;
  }

  json::object place(const std::string& body) override {
    const auto now = balancer().placements();
    eplb::ModelPlacement wanted = eplb::parse_placement(body, "request", {.num_experts = now[0].num_experts(), .ranks = now[0].ep()});
    if (!std::ranges::equal(wanted.layers, balancer().layers()))
      throw invalid_input("request: expected a placement for each sparse layer of the model ({} of them), found {} layers; GET /expert_placement shows which", now.size(), wanted.layers.size());
    balancer().request(std::move(wanted.placements));
    return {{"accepted", true}, {"generation", balancer().stats().generation}};
  }

  json::object start_recording(const std::string& body) override {
    eplb::RecorderMode mode = eplb::RecorderMode::kStat;
    int64_t sample_every = 1;
    if (!body.empty()) {
      const json::value value = parse_json(body, "request");
      if (!value.is_object()) throw invalid_input("request: expected a JSON object, found {}", describe(value));
      const JsonObject request(value.get_object(), "request");
      if (const auto name = request.maybe_string("mode")) mode = eplb::parse_recorder_mode(*name);
      sample_every = request.maybe_integer("sample_every", 1, int64_t{1} << 31).value_or(1);
      if (sample_every > 1 && mode != eplb::RecorderMode::kPerToken)
        throw invalid_input("sample_every: expected the mode per_token, found {}; the other modes count every row", eplb::name_of(mode));
    }
    recorder_.start(mode, sample_every);
    return {{"recording", true}, {"mode", eplb::name_of(mode)}, {"sample_every", sample_every}};
  }

  json::object stop_recording() override {
    recorder_.stop();
    return {{"recording", false}, {"steps", recorder_.status().num_steps}};
  }

  json::object distribution() const override {
    const eplb::RecorderStatus s = recorder_.status();
    const size_t experts = static_cast<size_t>(recorder_.num_experts());
    json::array counts, balancedness;
    const auto placements = balancer_ ? balancer_->placements() : std::vector<ExpertPlacement>{};
    Balancedness overall;
    for (size_t l = 0; l < recorder_.layers().size(); ++l) {
      const auto of_layer = std::span(s.counts).subspan(l * experts, experts);
      counts.emplace_back(json::array(of_layer.begin(), of_layer.end()));
      if (placements.empty()) continue;
      Balancedness layer;
      layer.add(rank_loads(placements[l], of_layer));
      overall.add(rank_loads(placements[l], of_layer));
      balancedness.emplace_back(layer.value());
    }
    json::object out{{"recording", s.is_recording}, {"mode", eplb::name_of(s.mode)}, {"sample_every", s.sample_every}, {"full", s.is_full}, {"steps", s.num_steps},
                     {"rows_of_rank", json::array(s.rows_of_rank.begin(), s.rows_of_rank.end())}, {"num_experts", experts},
                     {"layers", json::array(recorder_.layers().begin(), recorder_.layers().end())}, {"logical_count", std::move(counts)}};
    if (balancer_) out["balancedness"] = overall.value(), out["balancedness_of_layers"] = std::move(balancedness);
    return out;
  }

  std::string dump() const override { return recorder_.dump(); }

  std::optional<ExpertMetrics> metrics() const override {
    if (!balancer_) return std::nullopt;
    const eplb::BalancerStats s = balancer_->stats();
    ExpertMetrics out{.balancedness = s.balancedness, .num_rebalances = s.num_rebalances, .num_layers_switched = s.num_layers_switched, .num_plans_refused = s.num_refused,
                      .num_moved_slots = s.moved_slots, .num_moved_bytes = s.moved_bytes, .stall_seconds = seconds(s.stall_us), .rows_of_rank = s.rows_of_rank, .waited_seconds_of_rank = {},
                      .balancedness_by_rows = counts_of(s.balancedness_by_rows), .stall_seconds_of_steps = counts_of(s.stall_seconds)};
    for (const int64_t us : s.waited_us_of_rank) out.waited_seconds_of_rank.push_back(seconds(us));
    return out;
  }

 private:
  eplb::Balancer& balancer() const {
    if (!balancer_) throw invalid_input("expected a server that moves experts, found one whose experts stay where they are; start it with --enable-eplb and expert parallelism");
    return *balancer_;
  }

  eplb::Balancer* const balancer_;  // null: experts stay
  eplb::LoadRecorder& recorder_;
};

}  // namespace

std::shared_ptr<ExpertAdmin> expert_admin(const Deployment& deployment) {
  if (!deployment.recorder()) return nullptr;
  return std::make_shared<DeployedExperts>(deployment);
}

}  // namespace cadre::cli
