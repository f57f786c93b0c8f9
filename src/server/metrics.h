// What the server measures, in Prometheus text form. Counters and histograms are fed by the server as answers grow; the
// engines' own counters are read when somebody asks. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dp/controller.h"
#include "server/expert_admin.h"

namespace cadre {

class Metrics {
 public:
  Metrics();
  ~Metrics();

  void count_http(std::string_view route, int status);
  void count_finished(std::string_view reason);  // per choice: stop, length, abort, error
  void observe_first_token(double seconds);      // per choice, from the request's arrival
  void observe_inter_token(double seconds);
  void observe_request(double seconds, int64_t prompt_tokens, int64_t completion_tokens);

  // The text of GET /metrics. ranks: one snapshot per data-parallel rank, empty while the model loads.
  // experts: where they move.
  std::string text(const std::string& model_name, const std::vector<RankStatus>& ranks, const std::optional<ExpertMetrics>& experts = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre
