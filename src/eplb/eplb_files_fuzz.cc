// The readers of loads and placements on arbitrary text: what they accept is whole, is written and read back as it was, and can
// be planned from.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "eplb/balance.h"
#include "eplb/load_series.h"
#include "eplb/placement_file.h"

namespace {

using namespace cadre;
using namespace cadre::eplb;

void check_load(std::string_view text) {
  const LoadSeries series = parse_load(text, "load");
  CADRE_CHECK(!series.layers.empty() && !series.steps.empty());
  remarks(series);
  const LoadSeries again = parse_load(to_json_lines(series), "again");
  CADRE_CHECK(again.layers == series.layers && again.num_experts == series.num_experts && again.steps.size() == series.steps.size());
  for (size_t s = 0; s < series.steps.size(); ++s)
    for (size_t i = 0; i < series.steps[s].rows.size(); ++i) {
      // Fractions of rows may come back a last bit off, as JSON is read.
      const double a = series.steps[s].rows[i], b = again.steps[s].rows[i];
      CADRE_CHECK(a == b || std::abs(a - b) <= 1e-15 * a, "{} of step {} is read back as {}", a, s, b);
    }
  if (series.num_experts > 64) return;
  const Cluster cluster{.num_experts = series.num_experts, .ranks = 2, .num_replicas = series.num_experts + 1 + series.num_experts % 2};
  if (cluster.num_replicas < cluster.ranks) return;
  const LayerPlan plan = cadre::eplb::cadre(series.of(0, 0), cluster);
  CADRE_CHECK(plan.balancedness > 0 && plan.balancedness <= 1 + 1e-9 && !has_doubled(plan.placement), "balancedness {}", plan.balancedness);
}

void check_placement(std::string_view text, int ranks) {
  const ModelPlacement placement = parse_placement(text, "placement", {.ranks = ranks});
  CADRE_CHECK(placement.layers.size() == placement.placements.size() && !placement.layers.empty());
  CADRE_CHECK(parse_placement(to_json(placement), "again") == placement, "a placement is read back otherwise");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 2 == 0) check_load(text);
    else check_placement(text, data[0] / 2 % 5);
  } catch (const Error&) {
  }
  return 0;
}
