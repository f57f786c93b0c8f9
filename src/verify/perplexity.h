// How well a model predicts a text, and how far its distributions are from those of the same model in another number format:
// what quantisation costs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "verify/model_runner.h"

namespace cadre {

struct PerplexityReport {
  int64_t num_tokens = 0;  // that were predicted
  double mean_nll = 0;     // nats a token
  // Of the model to compare with, on the same tokens.
  struct Against {
    double mean_nll = 0;
    double mean_kl = 0, p99_kl = 0;  // divergence of this model's next-token distribution from that one's, in nats
    double same_best = 0;            // share of positions with the same likeliest token
  };
  std::optional<Against> against;
  double perplexity() const;
  // This model's perplexity over the other's.
  double ratio() const;
};

// Text in windows of `context` tokens, each beginning anew; every token but a window's first is predicted. against: may be null.
// progress(windows done, all) may be empty. Throws Error for a text that is too short, or where a model meets a NaN.
PerplexityReport measure_perplexity(ModelRunner& model, ModelRunner* against, std::span<const int32_t> tokens, int64_t context, const std::function<void(int64_t, int64_t)>& progress);

std::string report_text(const PerplexityReport& report);
json::object report_json(const PerplexityReport& report);

}  // namespace cadre
