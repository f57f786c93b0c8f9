// Chooses the next token of one sequence from its logits, and scores tokens. A choice depends on the logits, the
// parameters and (seed, stream, index) alone: never on other sequences, on how often it is asked, or on the machine.
// Scratch memory is taken at construction; sample() and score() allocate only for OutputToken::top.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace cadre {

struct SampleInput {
  const SamplingParams* params = nullptr;
  std::span<const int32_t> tokens;           // prompt, then output so far
  int64_t num_prompt = 0;
  std::span<const int32_t> forbidden_ids;    // must not be chosen (ending ids before min_tokens)
  uint64_t seed = 0;
  uint64_t stream = 0;                       // choice index
  int64_t index = 0;                         // output index of the token to choose
};

enum class SampleStatus {
  kOk,
  kNotFinite,   // the logits hold NaN or +infinity
  kNoneLeft,    // every token is forbidden or has the logit -infinity
};

class Sampler {
 public:
  explicit Sampler(int64_t vocab_size);

  // Order: logit bias and forbidden ids, penalties (repetition, frequency, presence), temperature, then min_p, top_k
  // and top_p, each over what the ones before left; ties go to the lower id. logits are changed. The log-probabilities
  // are those of the logits as they came in. Ids beyond the vocabulary are a bug (validated before).
  SampleStatus sample(std::span<float> logits, const SampleInput& input, OutputToken* out);

  // Log-probability of a given token, and of the num_top best ones. kOk or kNotFinite.
  SampleStatus score(std::span<const float> logits, int32_t token, int32_t num_top, OutputToken* out);

 private:
  // A place in the order "higher logit first, then lower id".
  struct Place {
    float logit = 0;
    int32_t id = 0;
    bool before(const Place& other) const { return logit != other.logit ? logit > other.logit : id < other.id; }
  };
  struct Candidate {
    Place place;
    float weight = 0;  // exp((logit - best logit) / temperature)
  };
  struct Draw {
    double uniform = 0;  // in [0, 1)
    float best = 0, inverse_temperature = 0;
  };

  // A row's normaliser: log-probability = logit - log_sum.
  static double log_sum(std::span<const float> logits, float best);
  void fill_logprobs(std::span<const float> logits, double log_sum, int32_t token, int32_t num_top, OutputToken* out);
  void apply_penalties(std::span<float> logits, const SampleInput& input);
  void select_best(std::span<const float> logits, int64_t k);
  int32_t draw_from_all(std::span<const float> logits, const Draw& draw);
  int32_t draw_truncated(std::span<const float> logits, const SamplingParams& params, const Draw& draw);
  void collect(std::span<const float> logits, const Draw& draw, Place last, double min_weight);
  void keep_nucleus(double mass);

  std::vector<int32_t> counts_;         // per id: occurrences in the output; all 0 between calls
  std::vector<uint8_t> in_prompt_;      // per id; all 0 between calls
  std::vector<int32_t> touched_;        // ids with an entry in the two above
  std::vector<float> raw_;              // the row as it came in, when log-probabilities of it are wanted
  std::vector<Place> places_;           // select_best's answer, in no order
  std::vector<Candidate> candidates_;   // by id
  std::vector<Candidate> selection_;    // a permuted copy while the nucleus is found
  std::vector<double> block_sums_;      // of weights, per kBlock ids
};

}  // namespace cadre
