#include "cli/calibration.h"

#include <limits>

#include "base/error.h"

namespace cadre::cli {

json::object calibration_json(const Calibration& c) {
  return {{"model", c.model},
          {"cost", replay::cost_json(c.cost)},
          {"error", {{"mean", c.error.mean}, {"max", c.error.max}, {"total", c.error.total}}},
          {"num_steps", c.num_steps},
          {"ranks", c.ranks},
          {"max_num_seqs", c.scheduler.max_num_seqs},
          {"max_num_batched_tokens", c.scheduler.max_num_batched_tokens},
          {"max_prefill_tokens_per_step", c.scheduler.max_prefill_tokens_per_step},
          {"num_kv_blocks", c.num_kv_blocks},
          {"max_model_len", c.max_model_len}};
}

Calibration read_calibration(const std::string& path) {
  const json::value file = parse_json_file(path);
  if (!file.is_object())
    throw invalid_input("{}: expected an object, as cadre calibrate writes it, found {}; calibrate again", path,
                        describe(file));
  const JsonObject object(file.get_object(), path);
  const auto cost = object.maybe_object("cost");
  if (!cost)
    throw invalid_input("{}: expected 'cost', as cadre calibrate writes it, found none; calibrate again", path);
  Calibration c;
  c.model = object.maybe_string("model").value_or("");
  c.cost = replay::parse_cost(*cost);
  c.ranks = static_cast<int>(object.integer("ranks", 1, 4096));
  c.num_steps = object.maybe_integer("num_steps", 0, INT64_MAX).value_or(0);
  c.scheduler.max_num_seqs = object.integer("max_num_seqs", 1, 65536);
  c.scheduler.max_num_batched_tokens = object.integer("max_num_batched_tokens", 1, 1 << 20);
  c.scheduler.max_prefill_tokens_per_step = object.integer("max_prefill_tokens_per_step", 0, 1 << 20);
  c.num_kv_blocks = object.integer("num_kv_blocks", 1, std::numeric_limits<BlockId>::max());
  c.max_model_len = object.integer("max_model_len", 2, int64_t{1} << 30);
  return c;
}

}  // namespace cadre::cli
