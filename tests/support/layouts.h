// The equivalence matrix: which models, over which layouts and exchanges.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "parallel/layout.h"

namespace cadre::testing {

// Every checkpoint of tests/reference, and "demo".
const std::vector<std::string>& reference_models();
// Those that the matrix through the engine runs: all; under a sanitizer, which is after code and not after numbers, one of each kind of attention,
// weight format and shared expert.
std::vector<std::string> matrix_models();
std::filesystem::path model_dir(const std::string& name);

// world = dp x attn_tp, moe_tp = world / ep; the exchange is all-to-all where experts are spread.
Layout make_layout(int dp, int attn_tp, int ep, ExchangeKind exchange = ExchangeKind::kAllToAll);

struct LayoutCase {
  const char* name;
  Layout layout;
};
const std::vector<LayoutCase>& layout_cases();
// The case with each exchange that its layout has, and with its name.
struct NamedLayout {
  std::string name;
  Layout layout;
};
std::vector<NamedLayout> with_every_exchange(const LayoutCase& layout_case);

// Whether a model divides over a layout. (options.h refuses the others with a sentence.)
bool can_run(const ModelConfig& config, const Layout& layout);
// Whether every sum of the model is made on one rank: then answers equal one rank's to the bit.
bool splits_no_sum(const ModelConfig& config, const Layout& layout);

}  // namespace cadre::testing
