#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/rng.h"
#include "engine/logit_math.h"

namespace cadre {
namespace {

constexpr size_t kBlock = 1024;     // ids per entry of block_sums_
constexpr size_t kScanBlock = 64;   // ids looked at together by scans that expect few hits
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kImpossible = -9999.0;
// Below this the quotient by the temperature leaves the range of float; the limit is greedy anyway.
constexpr double kMinTemperature = 1e-5;

// Uniform in [0, 1) with 53 random bits: 24 would be coarse beside the tail of a vocabulary of 150 000.
double uniform53(uint64_t seed, uint64_t stream, int64_t index) {
  const auto i = static_cast<uint64_t>(index);
  const uint64_t high = random_u32(seed, stream, 2 * i), low = random_u32(seed, stream, 2 * i + 1);
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

// Keeps sums of extreme biases and quotients of extreme penalties ordinary numbers; -infinity stays.
float limited(float logit) { return std::min(logit, std::numeric_limits<float>::max()); }

float as_logprob(double value) { return static_cast<float>(std::max(value, kImpossible)); }

bool changes_logits(const SampleInput& input) {
  const SamplingParams& p = *input.params;
  return !p.logit_bias.empty() || !input.forbidden_ids.empty() || p.repetition_penalty != 1.0 ||
         p.frequency_penalty != 0.0 || p.presence_penalty != 0.0;
}

}  // namespace

Sampler::Sampler(int64_t vocab_size) {
  const auto v = static_cast<size_t>(vocab_size);
  counts_.resize(v, 0);
  in_prompt_.resize(v, 0);
  touched_.reserve(v);
  raw_.reserve(v);
  places_.reserve(v);
  candidates_.reserve(v);
  selection_.reserve(v);
  block_sums_.reserve(v / kBlock + 1);
}

SampleStatus Sampler::sample(std::span<float> logits, const SampleInput& input, OutputToken* out) {
  CADRE_CHECK(logits.size() == counts_.size(), "{} logits for a vocabulary of {}", logits.size(), counts_.size());
  const SamplingParams& params = *input.params;
  RowSummary row = summarize(logits);
  if (!row.is_finite) return SampleStatus::kNotFinite;

  std::span<const float> raw = logits;
  const float raw_best = row.best;
  if (changes_logits(input)) {
    if (params.num_logprobs >= 0) {
      raw_.assign(logits.begin(), logits.end());
      raw = raw_;
    }
    for (const auto& [id, bias] : params.logit_bias) logits[id] = limited(logits[id] + bias);
    for (const int32_t id : input.forbidden_ids) logits[id] = -kInfinity;
    apply_penalties(logits, input);
    row = summarize(logits);
  }
  if (row.best == -kInfinity) return SampleStatus::kNoneLeft;

  if (params.temperature < kMinTemperature || params.top_k == 1) {
    out->token = row.best_id;
  } else {
    const Draw draw{uniform53(input.seed, input.stream, input.index), row.best,
                    static_cast<float>(1.0 / params.temperature)};
    const bool truncates = params.top_k > 0 || params.top_p < 1.0 || params.min_p > 0.0;
    out->token = truncates ? draw_truncated(logits, params, draw) : draw_from_all(logits, draw);
  }
  if (params.num_logprobs >= 0) fill_logprobs(raw, log_sum(raw, raw_best), out->token, params.num_logprobs, out);
  return SampleStatus::kOk;
}

SampleStatus Sampler::score(std::span<const float> logits, int32_t token, int32_t num_top, OutputToken* out) {
  CADRE_CHECK(logits.size() == counts_.size(), "{} logits for a vocabulary of {}", logits.size(), counts_.size());
  const RowSummary row = summarize(logits);
  if (!row.is_finite || row.best == -kInfinity) return SampleStatus::kNotFinite;
  out->token = token;
  fill_logprobs(logits, log_sum(logits, row.best), token, num_top, out);
  return SampleStatus::kOk;
}

double Sampler::log_sum(std::span<const float> logits, float best) {
  return double{best} + std::log(sum_weights(logits, best, 1.0f));
}

void Sampler::fill_logprobs(std::span<const float> logits, double log_sum, int32_t token, int32_t num_top,
                            OutputToken* out) {
  out->logprob = as_logprob(double{logits[token]} - log_sum);
  out->top.clear();
  if (num_top <= 0) return;
  select_best(logits, num_top);
  std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) { return a.before(b); });
  for (const Place& place : places_) out->top.push_back({place.id, as_logprob(double{place.logit} - log_sum)});
}

// The repetition penalty divides positive logits and multiplies negative ones (Keskar et al. 2019, section 4.1);
// frequency and presence subtract as OpenAI's reference describes.
void Sampler::apply_penalties(std::span<float> logits, const SampleInput& input) {
  const SamplingParams& params = *input.params;
  const bool repetition = params.repetition_penalty != 1.0;
  if (!repetition && params.frequency_penalty == 0.0 && params.presence_penalty == 0.0) return;
  const auto num_prompt = static_cast<size_t>(input.num_prompt);
  for (size_t i = repetition ? 0 : num_prompt; i < input.tokens.size(); ++i) {
    const int32_t id = input.tokens[i];
    if (counts_[id] == 0 && in_prompt_[id] == 0) touched_.push_back(id);
    if (i < num_prompt) in_prompt_[id] = 1;
    else ++counts_[id];
  }
  for (const int32_t id : touched_) {
    double x = logits[id];
    if (repetition) x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    if (counts_[id] > 0) x -= params.frequency_penalty * counts_[id] + params.presence_penalty;
    // A finite logit that a huge penalty pushed out of range is impossible from now on.
    logits[id] = x < -double{std::numeric_limits<float>::max()} ? -kInfinity
                                                                : static_cast<float>(std::min(x, double{limited(kInfinity)}));
    counts_[id] = 0;
    in_prompt_[id] = 0;
  }
  touched_.clear();
}

// Leaves the first k places of the row's order in places_. Ids are scanned upwards, so that a later logit equal to
// the worst one kept comes after it in the order and need not be looked at.
void Sampler::select_best(std::span<const float> logits, int64_t k) {
  const size_t keep = std::min(static_cast<size_t>(k), logits.size());
  const size_t room = std::min(logits.size(), std::max<size_t>(2 * keep, 256));
  const auto before = [](const Place& a, const Place& b) { return a.before(b); };
  const auto shrink = [&] {
    if (places_.size() <= keep) return;
    std::nth_element(places_.begin(), places_.begin() + static_cast<int64_t>(keep) - 1, places_.end(), before);
    places_.resize(keep);
  };
  places_.clear();
  float worst = -kInfinity;
  bool has_worst = false;
  for (size_t from = 0; from < logits.size(); from += kScanBlock) {
    const auto block = logits.subspan(from, std::min(kScanBlock, logits.size() - from));
    if (has_worst && !any_above(block, worst)) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      if (has_worst && !(block[i] > worst)) continue;
      if (places_.size() == room) {
        shrink();
        worst = places_[keep - 1].logit;
        has_worst = true;
        if (!(block[i] > worst)) continue;
      }
      places_.push_back({block[i], static_cast<int32_t>(from + i)});
    }
  }
  shrink();
}

// Inverse of the distribution function, ids in order. Block sums spare a second pass over all: the block is found first,
// then the stretch in it, then the token. Where rounding leaves `left` at or above the last sum, the last token with a
// weight is meant.
int32_t Sampler::draw_from_all(std::span<const float> logits, const Draw& draw) {
  const auto sum_of = [&](size_t from, size_t size) {
    return sum_weights(logits.subspan(from, std::min(size, logits.size() - from)), draw.best, draw.inverse_temperature);
  };
  block_sums_.clear();
  double total = 0;
  for (size_t from = 0; from < logits.size(); from += kBlock) {
    block_sums_.push_back(sum_of(from, kBlock));
    total += block_sums_.back();
  }
  double left = draw.uniform * total;
  size_t last_block = block_sums_.size() - 1;
  while (last_block > 0 && block_sums_[last_block] == 0) --last_block;
  size_t block_idx = 0;
  while (block_idx < last_block && left >= block_sums_[block_idx]) left -= block_sums_[block_idx++];

  const size_t end = std::min(logits.size(), (block_idx + 1) * kBlock);
  size_t stretch = block_idx * kBlock;
  bool is_found = false;
  for (size_t from = stretch; from < end && !is_found; from += kScanBlock) {
    const double sum = sum_of(from, kScanBlock);
    if (sum == 0) continue;
    stretch = from;
    is_found = left < sum;
    if (!is_found) left -= sum;
  }
  if (!is_found) left = total;
  int32_t chosen = 0;
  for (size_t id = stretch; id < std::min(end, stretch + kScanBlock); ++id) {
    const double weight = exp_nonpositive((logits[id] - draw.best) * draw.inverse_temperature);
    if (weight == 0) continue;
    chosen = static_cast<int32_t>(id);
    if (left < weight) break;
    left -= weight;
  }
  return chosen;
}

int32_t Sampler::draw_truncated(std::span<const float> logits, const SamplingParams& params, const Draw& draw) {
  Place last{-kInfinity, std::numeric_limits<int32_t>::max()};
  const bool uses_top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
  if (uses_top_k) {
    select_best(logits, params.top_k);
    last = *std::max_element(places_.begin(), places_.end(), [](const Place& a, const Place& b) { return a.before(b); });
  }
  double min_weight = params.min_p;
  double total = 0;
  const bool uses_top_p = params.top_p < 1.0;
  if (uses_top_p && !uses_top_k && params.min_p == 0.0) {
    // Tokens below (1 - top_p) / V of the mass hold less than 1 - top_p together: the nucleus lies above.
    total = sum_weights(logits, draw.best, draw.inverse_temperature);
    min_weight = (1.0 - params.top_p) * total / static_cast<double>(logits.size());
  }
  collect(logits, draw, last, min_weight);
  if (uses_top_p) {
    if (total == 0)
      for (const Candidate& c : candidates_) total += c.weight;
    keep_nucleus(params.top_p * total);
  }
  double kept = 0;
  for (const Candidate& c : candidates_) kept += c.weight;
  double left = draw.uniform * kept;
  for (const Candidate& c : candidates_) {
    if (left < c.weight) return c.place.id;
    left -= c.weight;
  }
  return candidates_.back().place.id;  // rounding
}

// Candidates in order of id: those not after `last` whose weight is positive and at least min_weight. The best token is
// always one, its weight being 1.
void Sampler::collect(std::span<const float> logits, const Draw& draw, Place last, double min_weight) {
  min_weight = std::min(min_weight, 1.0);
  // A limit on the logit, a little low, spares looking at most blocks; the weight decides.
  float limit = last.logit;
  if (min_weight > 0) {
    const auto from_weight = static_cast<float>(draw.best + std::log(min_weight) / draw.inverse_temperature);
    limit = std::max(limit, from_weight);
  }
  limit -= 1e-4f * (1.0f + std::abs(limit));
  if (!std::isfinite(limit)) limit = -kInfinity;
  candidates_.clear();
  for (size_t from = 0; from < logits.size(); from += kScanBlock) {
    const auto block = logits.subspan(from, std::min(kScanBlock, logits.size() - from));
    if (!any_above(block, limit)) continue;
    std::array<float, kScanBlock> weights;
    fill_weights(block, draw.best, draw.inverse_temperature, weights.data());
    for (size_t i = 0; i < block.size(); ++i) {
      const Place place{block[i], static_cast<int32_t>(from + i)};
      if (weights[i] > 0 && weights[i] >= min_weight && !last.before(place)) candidates_.push_back({place, weights[i]});
    }
  }
}

// Keeps the shortest beginning of the order (best first) that holds at least `mass`. The logits' range is cut into bins
// whose sums tell in which one the last token lies; inside it, weighted selection by halving finds the token.
void Sampler::keep_nucleus(double mass) {
  constexpr size_t kBins = 512;
  float best = -kInfinity, worst = kInfinity;
  for (const Candidate& c : candidates_) {
    best = std::max(best, c.place.logit);
    worst = std::min(worst, c.place.logit);
  }
  const float bins_per_logit = static_cast<float>(kBins) / (best - worst);
  const bool is_one_bin = !std::isnormal(bins_per_logit);  // all logits equal, or a range that floats cannot divide
  const auto bin_of = [&](const Candidate& c) {            // falls as the logit rises
    return is_one_bin ? 0 : std::min(kBins - 1, static_cast<size_t>((best - c.place.logit) * bins_per_logit));
  };
  std::array<double, kBins> sums{};
  for (const Candidate& c : candidates_) sums[bin_of(c)] += c.weight;
  size_t last_bin = kBins - 1;
  while (last_bin > 0 && sums[last_bin] == 0) --last_bin;
  size_t bin = 0;
  while (bin < last_bin && sums[bin] < mass) mass -= sums[bin++];
  while (sums[bin] == 0) ++bin;

  selection_.clear();
  for (const Candidate& c : candidates_)
    if (bin_of(c) == bin) selection_.push_back(c);
  auto low = selection_.begin(), high = selection_.end();
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, [](const Candidate& a, const Candidate& b) { return a.place.before(b.place); });
    double better = 0;
    for (auto it = low; it != middle; ++it) better += it->weight;
    if (better >= mass) {
      high = middle;
    } else {
      mass -= better;
      low = middle;
    }
  }
  const Place last = low->place;
  std::erase_if(candidates_, [&](const Candidate& c) { return last.before(c.place); });
}

}  // namespace cadre
