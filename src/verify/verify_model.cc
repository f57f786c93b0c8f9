#include "verify/verify_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "config/bytes.h"

namespace cadre {
namespace {

constexpr int64_t kChunks[] = {1, 3, 16};

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void compare_logits(const std::vector<float>& found, const ReferencePrompt& reference, PromptReport* report) {
  const size_t vocab = reference.logits.size() / reference.tokens.size();
  for (size_t i = 0; i < found.size(); ++i) {
    double error = std::abs(static_cast<double>(found[i]) - static_cast<double>(reference.logits[i]));
    if (!std::isfinite(error)) error = std::numeric_limits<double>::infinity();
    if (error <= report->max_logit_error) continue;
    report->max_logit_error = error;
    report->max_logit_error_position = static_cast<int64_t>(i / vocab);
  }
  double error_squares = 0, spread_squares = 0;
  for (size_t at = 0; at < found.size(); at += vocab) {
    double mean = 0;
    for (size_t i = at; i < at + vocab; ++i) mean += static_cast<double>(reference.logits[i]) / static_cast<double>(vocab);
    for (size_t i = at; i < at + vocab; ++i) {
      const double expected = static_cast<double>(reference.logits[i]), error = static_cast<double>(found[i]) - expected;
      error_squares += error * error;
      spread_squares += (expected - mean) * (expected - mean);
    }
  }
  report->relative_logit_error = error_squares == 0 ? 0 : std::sqrt(error_squares / spread_squares);
  if (!std::isfinite(report->relative_logit_error)) report->relative_logit_error = std::numeric_limits<double>::infinity();
}

// Whether a row chose the reference's experts with its weights, in any order; experts whose scores tie may stand in for
// each other.
bool same_route(const ReferenceRoutes& reference, size_t row, const int32_t* ids, const float* weights, const VerifyBounds& bounds) {
  const size_t k = static_cast<size_t>(reference.top_k);
  const int32_t* expected = reference.ids.data() + row * k;
  std::vector<int32_t> missing;
  std::vector<int32_t> extra(ids, ids + k);
  for (size_t j = 0; j < k; ++j) {
    const auto at = std::find(extra.begin(), extra.end(), expected[j]);
    if (at == extra.end()) {
      missing.push_back(expected[j]);
      continue;
    }
    extra.erase(at);
    const size_t mine = static_cast<size_t>(std::find(ids, ids + k, expected[j]) - ids);
    // Negated, so that a NaN differs.
    if (!(std::abs(static_cast<double>(weights[mine]) - static_cast<double>(reference.weights[row * k + j])) <= bounds.route_weight)) return false;
  }
  if (missing.empty()) return true;
  if (reference.scores.empty()) return false;
  const float* scores = reference.scores.data() + row * static_cast<size_t>(reference.num_experts);
  const auto score = [&](int32_t id) { return id >= 0 && id < reference.num_experts ? static_cast<double>(scores[id]) : std::nan(""); };
  const auto by_score = [&](int32_t a, int32_t b) { return score(a) < score(b); };
  std::sort(missing.begin(), missing.end(), by_score);
  std::sort(extra.begin(), extra.end(), by_score);
  for (size_t j = 0; j < missing.size(); ++j)
    if (!(std::abs(score(missing[j]) - score(extra[j])) <= bounds.route_tie)) return false;
  return true;
}

void compare_routes(const std::map<int64_t, SeenRoutes>& seen, const ReferencePrompt& reference, const VerifyBounds& bounds, PromptReport* report) {
  for (const ReferenceRoutes& expected : reference.routes) {
    const size_t rows = reference.tokens.size(), k = static_cast<size_t>(expected.top_k);
    report->num_routes += static_cast<int64_t>(rows);
    const auto found = seen.find(expected.layer);
    if (found == seen.end() || found->second.ids.size() != expected.ids.size()) {
      report->num_route_differences += static_cast<int64_t>(rows);
      continue;
    }
    for (size_t row = 0; row < rows; ++row)
      if (!same_route(expected, row, found->second.ids.data() + row * k, found->second.weights.data() + row * k, bounds)) ++report->num_route_differences;
  }
}

void compare_greedy(ModelRunner& runner, const ReferencePrompt& reference, int dp_rank, const VerifyBounds& bounds, PromptReport* report) {
  const int64_t prompt = static_cast<int64_t>(reference.tokens.size());
  report->num_greedy = static_cast<int64_t>(reference.greedy.size());
  if (reference.greedy.empty()) return;
  const auto blocks = runner.take_blocks(dp_rank, prompt + report->num_greedy);
  std::vector<int32_t> tokens = reference.tokens;
  std::vector<float> logits;
  for (int64_t at = 0; at < prompt;) {  // in as few steps as the model takes
    const int64_t n = std::min(prompt - at, runner.max_batched_tokens());
    const RankedRows rows{dp_rank, {std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(n)), at, blocks, at + n == prompt ? 1 : 0, prompt}};
    logits = runner.step(std::span(&rows, 1));
    at += n;
  }
  for (int64_t i = 0; i < report->num_greedy; ++i) {
    const int32_t expected = reference.greedy[static_cast<size_t>(i)];
    const auto best = std::max_element(logits.begin(), logits.end());
    const int32_t token = static_cast<int32_t>(best - logits.begin());
    if (token != expected) {
      // Where the two are this close, the reference was not decided itself, and from here on it goes its own way.
      if (!(*best - logits[static_cast<size_t>(expected)] <= bounds.greedy_margin)) report->first_greedy_difference = i;
      break;
    }
    ++report->num_greedy_compared;
    const RankedRows rows{dp_rank, {std::span(&token, 1), prompt + i, blocks, 1, prompt}};
    if (i + 1 < report->num_greedy) logits = runner.step(std::span(&rows, 1));
  }
  runner.give_back(dp_rank, blocks);
}

}  // namespace

VerifyBounds rounded_activation_bounds() {
  VerifyBounds out;
  out.logit = std::numeric_limits<double>::max();  // finite
  out.relative_logit = 0.25;
  out.judges_choices = false;
  return out;
}

bool PromptReport::passed(const VerifyBounds& bounds) const {
  const bool has_choices = !first_greedy_difference && num_route_differences == 0;
  return max_logit_error <= bounds.logit && relative_logit_error <= bounds.relative_logit && (has_choices || !bounds.judges_choices) && unequal_forms.empty();
}

bool ModelReport::passed() const {
  return !prompts.empty() && std::all_of(prompts.begin(), prompts.end(), [&](const PromptReport& p) { return p.passed(bounds); });
}

int64_t verify_blocks(const ReferenceSet& reference) {
  int64_t blocks = 0;
  for (const std::string& prompt : reference.prompts()) blocks += (reference.num_tokens(prompt) + kKvBlockTokens - 1) / kKvBlockTokens;
  return blocks;
}

ModelReport verify_model(ModelRunner& runner, const ReferenceSet& reference, const VerifyBounds& bounds, uint64_t seed,
                         const std::function<void(int64_t, int64_t)>& progress) {
  ModelReport out{bounds, {}};
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<float>> whole;
  for (const std::string& name : reference.prompts()) {
    const ReferencePrompt expected = reference.read(name, runner.vocab_size());
    PromptReport report;
    report.name = name;
    report.num_tokens = static_cast<int64_t>(expected.tokens.size());
    runner.routes().clear();
    // Its sequence lives on one data-parallel rank; the others take part without rows.
    const int dp_rank = static_cast<int>(out.prompts.size()) % runner.layout().attn_dp;
    std::vector<float> logits = runner.prompt_logits(expected.tokens, 0, dp_rank);
    compare_logits(logits, expected, &report);
    compare_routes(runner.routes(), expected, bounds, &report);
    for (const int64_t chunk : kChunks)
      if (!equal_bits(runner.prompt_logits(expected.tokens, chunk, dp_rank), logits)) report.unequal_forms.push_back(fmt::format("chunks of {}", chunk));
    compare_greedy(runner, expected, dp_rank, bounds, &report);
    prompts.push_back(expected.tokens);
    whole.push_back(std::move(logits));
    out.prompts.push_back(std::move(report));
    if (progress) progress(static_cast<int64_t>(out.prompts.size()), static_cast<int64_t>(reference.prompts().size()));
  }
  const auto batch = runner.batch_logits(prompts, seed);
  for (size_t i = 0; i < batch.size(); ++i)
    if (!equal_bits(batch[i], whole[i])) out.prompts[i].unequal_forms.push_back("batch");
  runner.routes().clear();
  return out;
}

std::string report_text(const ModelReport& report) {
  std::string out = fmt::format("{:>6} {:>7} {:>12} {:>9} {:>9} {:>14} {:>14}  {}\n", "prompt", "tokens", "logit error", "at token", "relative", "greedy", "routes", "verdict");
  for (const PromptReport& p : report.prompts) {
    const std::string greedy = p.first_greedy_difference ? fmt::format("differs at {}", *p.first_greedy_difference) : fmt::format("{} of {}", p.num_greedy_compared, p.num_greedy);
    const std::string routes = p.num_routes == 0 ? "-" : p.num_route_differences == 0 ? fmt::format("{} equal", p.num_routes) : fmt::format("{} differ", p.num_route_differences);
    std::string verdict = p.passed(report.bounds) ? "ok" : "FAILED";
    for (const std::string& form : p.unequal_forms) verdict += fmt::format(", {} not equal to the bit", form);
    out += fmt::format("{:>6} {:>7} {:>12.3g} {:>9} {:>9.2g} {:>14} {:>14}  {}\n", p.name, p.num_tokens, p.max_logit_error, p.max_logit_error_position, p.relative_logit_error, greedy, routes,
                       verdict);
  }
  if (!report.bounds.judges_choices)
    return out + fmt::format("{}: relative error of logits within {:g}, chunks and batch equal to the bit; the reference's activations are not rounded, so other differences are only reported\n",
                             report.passed() ? "passed" : "FAILED", report.bounds.relative_logit);
  out += fmt::format("{}: logits within {:g}, greedy tokens equal where decided by more than {:g}, routes equal, chunks and batch equal to the bit\n",
                     report.passed() ? "passed" : "FAILED", report.bounds.logit, report.bounds.greedy_margin);
  return out;
}

json::object report_json(const ModelReport& report) {
  json::array prompts;
  for (const PromptReport& p : report.prompts) {
    json::object o{{"prompt", p.name}, {"tokens", p.num_tokens}};
    // JSON has no infinity.
    o["max_logit_error"] = std::isfinite(p.max_logit_error) ? json::value(p.max_logit_error) : json::value(nullptr);
    o["relative_logit_error"] = std::isfinite(p.relative_logit_error) ? json::value(p.relative_logit_error) : json::value(nullptr);
    o["max_logit_error_position"] = p.max_logit_error_position;
    o["first_greedy_difference"] = p.first_greedy_difference ? json::value(*p.first_greedy_difference) : json::value(nullptr);
    o["greedy_tokens"] = p.num_greedy;
    o["greedy_tokens_equal"] = p.num_greedy_compared;
    o["routes"] = p.num_routes;
    o["router_differences"] = p.num_route_differences;
    o["unequal_forms"] = json::array(p.unequal_forms.begin(), p.unequal_forms.end());
    o["passed"] = p.passed(report.bounds);
    prompts.push_back(std::move(o));
  }
  json::object bounds{{"logit", report.bounds.logit}, {"greedy_margin", report.bounds.greedy_margin}};
  if (!report.bounds.judges_choices) bounds = {{"relative_logit", report.bounds.relative_logit}};
  return {{"bounds", std::move(bounds)}, {"prompts", std::move(prompts)}, {"passed", report.passed()}};
}

}  // namespace cadre
