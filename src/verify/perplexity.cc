#include "verify/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace cadre {
namespace {

// Log-probabilities of one row of logits, in float64.
void log_softmax(std::span<const float> logits, std::vector<double>* out) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(l - most);
  const double log_sum = most + std::log(sum);
  out->resize(logits.size());
  std::transform(logits.begin(), logits.end(), out->begin(), [&](float l) { return l - log_sum; });
}

struct Sums {
  double nll = 0, base_nll = 0, kl = 0;
  int64_t same_best = 0;
  std::vector<double> kls;
};

void compare_rows(const std::vector<double>& p, const std::vector<double>& base, Sums* sums) {
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(base[i]) * (base[i] - p[i]);
  sums->kl += kl;
  sums->kls.push_back(kl);
  sums->same_best += std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(base.begin(), base.end()) - base.begin();
}

}  // namespace

double PerplexityReport::perplexity() const { return std::exp(mean_nll); }
double PerplexityReport::ratio() const { return std::exp(mean_nll - against->mean_nll); }

PerplexityReport measure_perplexity(ModelRunner& model, ModelRunner* against, std::span<const int32_t> tokens, int64_t context, const std::function<void(int64_t, int64_t)>& progress) {
  if (context < 2 || context > model.config().max_position)
    throw invalid_input("--context: expected 2 to {} tokens, the model's context, found {}; correct it", model.config().max_position, context);
  if (tokens.size() < 2) throw invalid_input("expected a text of at least two tokens, found {}; give more text", tokens.size());
  const size_t vocab = static_cast<size_t>(model.vocab_size()), step = static_cast<size_t>(context);
  PerplexityReport out;
  Sums sums;
  std::vector<double> p, base;
  for (size_t first = 0; first + 1 < tokens.size(); first += step) {
    const auto window = tokens.subspan(first, std::min(step, tokens.size() - first));
    if (window.size() < 2) break;
    const std::vector<float> logits = model.prompt_logits(window, 0), base_logits = against ? against->prompt_logits(window, 0) : std::vector<float>{};
    for (size_t i = 0; i + 1 < window.size(); ++i) {
      const size_t next = static_cast<size_t>(window[i + 1]);
      log_softmax(std::span(logits).subspan(i * vocab, vocab), &p);
      sums.nll -= p[next];
      ++out.num_tokens;
      if (!against) continue;
      log_softmax(std::span(base_logits).subspan(i * vocab, vocab), &base);
      sums.base_nll -= base[next];
      compare_rows(p, base, &sums);
    }
    if (progress) progress(static_cast<int64_t>(std::min(first + step, tokens.size())), static_cast<int64_t>(tokens.size()));
  }
  const double n = static_cast<double>(out.num_tokens);
  out.mean_nll = sums.nll / n;
  if (against) {
    const auto p99 = sums.kls.begin() + static_cast<std::ptrdiff_t>(sums.kls.size() * 99 / 100);
    std::nth_element(sums.kls.begin(), p99, sums.kls.end());
    out.against = {.mean_nll = sums.base_nll / n, .mean_kl = sums.kl / n, .p99_kl = *p99, .same_best = static_cast<double>(sums.same_best) / n};
  }
  return out;
}

std::string report_text(const PerplexityReport& r) {
  std::string out = fmt::format("perplexity {:.4f} over {} tokens ({:.4f} nats a token)\n", r.perplexity(), r.num_tokens, r.mean_nll);
  if (r.against)
    out += fmt::format("against: perplexity {:.4f}, ratio {:.5f}; divergence {:.6f} nats at the mean, {:.6f} at the 99th percentile; same best token {:.2f} %\n",
                       std::exp(r.against->mean_nll), r.ratio(),
                       r.against->mean_kl, r.against->p99_kl, 100 * r.against->same_best);
  return out;
}

json::object report_json(const PerplexityReport& r) {
  json::object out{{"tokens", r.num_tokens}, {"nll", r.mean_nll}, {"perplexity", r.perplexity()}};
  if (r.against)
    out["against"] = {{"perplexity", std::exp(r.against->mean_nll)}, {"ratio", r.ratio()}, {"mean_kl", r.against->mean_kl}, {"p99_kl", r.against->p99_kl}, {"same_best", r.against->same_best}};
  return out;
}

}  // namespace cadre
