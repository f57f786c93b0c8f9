// Follows one token that a model generated through one sparse layer of the step it is fed to, on any layout: who
// computed what, what moved and how much, with the values of that very step. Runs prompts greedily on a ModelRunner;
// the step is timed, so microseconds are real and differ from run to run, everything else repeats.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "parallel/expert_placement.h"
#include "parallel/layer_plan.h"
#include "parallel/traffic_cost.h"
#include "verify/model_runner.h"

namespace cadre {

struct TraceRequest {
  std::vector<std::vector<int32_t>> prompts;  // none empty; the first is followed, the others keep it company
  int64_t new_token = 1;                      // which of the first prompt's new tokens is followed, from 1
  std::optional<int64_t> layer;               // the first sparse one unless told
  bool is_fp8_dispatch = false;
};

// What a data-parallel rank had when the followed prompt came, and what it runs in the step.
struct TracedDpRank {
  int64_t sequences_before = 0, tokens_before = 0;
  int64_t rows = 0, prefill_rows = 0;
  const char* phase() const {
    return rows == 0 ? "idle" : prefill_rows == rows ? "prefill" : prefill_rows == 0 ? "decode" : "mixed";
  }
};

struct TracedExpert {
  int32_t expert = 0;
  float weight = 0;
  int32_t slot = 0;        // of the world
  int64_t local_slot = 0;  // on its rank
  int ep_rank = 0;
};

struct TracedWorldRank {
  int64_t own_rows = 0;                           // its slice of its data-parallel rank's rows
  std::vector<int32_t> experts;                   // of its slots
  std::vector<int64_t> rows_of_slot;              // rows that its experts computed
  int64_t rows = 0;                               // their sum
  int64_t compute_us = 0, finished_after_us = 0;  // after the first rank had finished
  TrafficCounts counted{}, predicted{};           // of the layer
};

struct TokenTrace {
  // The token.
  int64_t new_token = 0, position = 0, prompt_tokens = 0, step = 0;
  int32_t token = 0, next_token = 0;
  std::string token_text, next_text;  // for the owner of a tokenizer to fill in
  // Its place.
  Layout layout;
  int dp_rank = 0, owner = 0;  // owner: the world rank whose slice the row is in
  std::string why_rank;
  std::vector<TracedDpRank> dp_ranks;
  // The layer.
  int64_t layer = 0, num_layers = 0;
  LayerPlan plan;
  ExchangeKind exchange = ExchangeKind::kNone;  // that ran: auto has become one of two
  std::string routing_rule;
  std::vector<TracedExpert> experts;  // best first
  std::vector<int> destinations;      // world ranks, ascending
  std::vector<TracedWorldRank> ranks;
  int last_rank = 0;  // the one whose experts finished last
  // The way there and back, of this row alone.
  int64_t sent_bytes = 0, rows_back = 0, remote_rows_back = 0, back_bytes = 0;
  std::string combine_order;

  int num_remote() const;
  bool counts_are_as_predicted() const;
};

// The layer to follow. Throws Error when the model has no sparse layer, or the one asked for is not.
int64_t traced_layer(const ModelConfig& config, std::optional<int64_t> asked);

// Throws Error as traced_layer() does, and when the answer ends before that token.
TokenTrace trace_token(ModelRunner& runner, const TraceRequest& request, const Clock& clock);

// Blocks of each data-parallel rank that trace_token takes at most.
int64_t trace_blocks(const TraceRequest& request);

std::string trace_text(const TokenTrace& trace);
json::object trace_json(const TokenTrace& trace);

}  // namespace cadre
