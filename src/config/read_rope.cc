#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/read_parts.h"

namespace cadre {
namespace {

// The keys of rope_scaling and rope_parameters that some served scaling reads ("finetuned" is a remark).
constexpr std::string_view kRopeKeys[] = {"rope_type",
                                          "type",
                                          "factor",
                                          "original_max_position_embeddings",
                                          "beta_fast",
                                          "beta_slow",
                                          "mscale",
                                          "mscale_all_dim",
                                          "attention_factor",
                                          "attn_factor",
                                          "truncate",
                                          "low_freq_factor",
                                          "high_freq_factor",
                                          "rope_theta",
                                          "partial_rotary_factor",
                                          "finetuned"};

bool is_mla(Family family) { return family == Family::kDeepseekV2 || family == Family::kDeepseekV3; }

double positive_number(const JsonObject& object, std::string_view key, double absent, double max) {
  const auto value = object.maybe_number(key);
  if (!value) return absent;
  if (*value <= 0 || *value > max)
    throw invalid_input("{}: expected '{}' above 0 and at most {}, found {}; correct it", object.name(), key, max,
                        *value);
  return *value;
}

// rope_parameters may repeat one description per layer type; only one for all layers is served.
JsonObject flat_parameters(const JsonObject& parameters) {
  const json::object* first = nullptr;
  bool nested = false, flat = false;
  for (const auto& [key, value] : parameters.raw()) {
    if (!value.is_object()) {
      flat = flat || !value.is_null();
      continue;
    }
    nested = true;
    if (first && json::value(*first) != value)
      throw unsupported(
          "{}: expected one rotary embedding for all layers, found a different one for {}; choose another checkpoint",
          parameters.name(), cadre::quoted(key));
    first = &value.get_object();
  }
  if (!nested) return parameters;
  if (flat)
    throw unsupported("{}: expected either keys or one object per layer type, found both; keep one form",
                      parameters.name());
  return JsonObject(*first, parameters.name());
}

std::string scaling_type(const JsonObject& object) {
  const auto rope_type = object.maybe_string("rope_type"), type = object.maybe_string("type");
  if (rope_type && type && *rope_type != *type)
    throw invalid_input("{}: expected 'type' and 'rope_type' to agree, found {} and {}; keep the right one",
                        object.name(), cadre::quoted(*type), cadre::quoted(*rope_type));
  return rope_type ? *rope_type : type.value_or("default");
}

// YaRN's attention temperature for a context `factor` times as long (Peng et al. 2023, section 3.4; DeepSeek-V2's
// mscale).
double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

void read_yarn(const JsonObject& object, const FamilyTraits& traits, RopeConfig& rope) {
  rope.beta_fast = positive_number(object, "beta_fast", 32.0, 1e6);
  rope.beta_slow = positive_number(object, "beta_slow", 1.0, 1e6);
  if (rope.beta_fast < rope.beta_slow)
    throw invalid_input("{}: expected 'beta_fast' at least 'beta_slow', found {} and {}; correct them", object.name(),
                        rope.beta_fast, rope.beta_slow);
  rope.yarn_truncate = object.maybe_boolean("truncate").value_or(true);
  const double mscale = object.maybe_number("mscale").value_or(0.0);
  const double mscale_all_dim = object.maybe_number("mscale_all_dim").value_or(0.0);
  if (mscale < 0 || mscale_all_dim < 0 || mscale > 1e3 || mscale_all_dim > 1e3)
    throw invalid_input("{}: expected 'mscale' and 'mscale_all_dim' from 0 to 1000, found {} and {}; correct them",
                        object.name(), mscale, mscale_all_dim);
  if (object.has("attention_factor")) {
    rope.cos_sin_scale = positive_number(object, "attention_factor", 1.0, 1e3);
  } else if (is_mla(traits.family)) {
    // DeepSeek's own code: mscale is 1 when absent, mscale_all_dim 0.
    const double numerator = object.has("mscale") ? mscale : 1.0;
    rope.cos_sin_scale = yarn_mscale(rope.factor, numerator) / yarn_mscale(rope.factor, mscale_all_dim);
  } else if (mscale != 0 && mscale_all_dim != 0) {
    rope.cos_sin_scale = yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, mscale_all_dim);
  } else {
    rope.cos_sin_scale = yarn_mscale(rope.factor, 1.0);
  }
  // Of DeepSeek-R1-0528-Qwen3-8B: multiplies what the factor makes, there to undo it.
  rope.cos_sin_scale *= positive_number(object, "attn_factor", 1.0, 1e3);
}

void read_llama3(const JsonObject& object, RopeConfig& rope) {
  for (const std::string_view key : {"low_freq_factor", "high_freq_factor"}) object.number(key);
  rope.low_freq_factor = positive_number(object, "low_freq_factor", 1.0, 1e6);
  rope.high_freq_factor = positive_number(object, "high_freq_factor", 4.0, 1e6);
  if (rope.high_freq_factor <= rope.low_freq_factor)
    throw invalid_input("{}: expected 'high_freq_factor' above 'low_freq_factor', found {} and {}; correct them",
                        object.name(), rope.high_freq_factor, rope.low_freq_factor);
}

void read_scaling(const JsonObject& config, const JsonObject& object, const FamilyTraits& traits, int64_t max_position,
                  RopeConfig& rope) {
  for (const auto& [key, value] : object.raw()) {
    const std::string_view name(key);
    if (std::find(std::begin(kRopeKeys), std::end(kRopeKeys), name) == std::end(kRopeKeys) && !value.is_null())
      throw unsupported(
          "{}: expected only keys of the served scalings (linear, yarn, llama3), found {} = {}; choose another "
          "checkpoint",
          object.name(), cadre::quoted(name), describe(value));
  }
  const std::string type = scaling_type(object);
  if (type == "default") return;
  if (type == "linear")
    rope.scaling = RopeScaling::kLinear;
  else if (type == "yarn")
    rope.scaling = RopeScaling::kYarn;
  else if (type == "llama3")
    rope.scaling = RopeScaling::kLlama3;
  else
    throw unsupported(
        "{}: expected a served rotary scaling (default, linear, yarn, llama3), found {}; choose another checkpoint",
        object.name(), cadre::quoted(type));
  rope.factor = object.number("factor");
  if (rope.factor < 1 || rope.factor > 1e6)
    throw invalid_input("{}: expected 'factor' from 1 to 1000000, found {}; correct it", object.name(), rope.factor);
  auto original = config.maybe_integer("original_max_position_embeddings", 1, kMaxPositions);
  if (!original) original = object.maybe_integer("original_max_position_embeddings", 1, kMaxPositions);
  rope.original_max_position = original.value_or(max_position);
  if (rope.scaling == RopeScaling::kYarn) read_yarn(object, traits, rope);
  if (rope.scaling == RopeScaling::kLlama3) read_llama3(object, rope);
}

// Where the scaling is described, if anywhere. rope_scaling (older) takes precedence, as in transformers.
std::optional<JsonObject> find_parameters(const JsonObject& config) {
  if (auto older = config.maybe_object("rope_scaling"); older && !older->raw().empty()) return flat_parameters(*older);
  if (auto newer = config.maybe_object("rope_parameters"); newer && !newer->raw().empty())
    return flat_parameters(*newer);
  return std::nullopt;
}

int64_t rotary_dim(const JsonObject& config, const JsonObject* object, const FamilyTraits& traits, int64_t head_dim) {
  auto fraction = object ? object->maybe_number("partial_rotary_factor") : std::nullopt;
  if (!fraction) fraction = config.maybe_number("partial_rotary_factor");
  if (!fraction) fraction = traits.family == Family::kGlm4Moe ? 0.5 : 1.0;
  if (!(*fraction > 0 && *fraction <= 1))
    throw invalid_input("config.json: expected 'partial_rotary_factor' above 0 and at most 1, found {}; correct it",
                        *fraction);
  if (traits.family != Family::kGlm4Moe && *fraction != 1)
    throw unsupported(
        "config.json: expected {} to rotate whole heads, found 'partial_rotary_factor' {}; choose another checkpoint",
        traits.architecture, *fraction);
  const auto dim = static_cast<int64_t>(static_cast<double>(head_dim) * *fraction);
  if (dim < 2 || dim % 2 != 0)
    throw invalid_input(
        "config.json: expected an even number of rotating values in a head, found {} of {}; correct the head size or "
        "'partial_rotary_factor'",
        dim, head_dim);
  return dim;
}

}  // namespace

RopeReading read_rope(const JsonObject& config, const FamilyTraits& traits, int64_t head_dim, int64_t max_position) {
  RopeReading reading;
  RopeConfig& rope = reading.rope;
  const auto object = find_parameters(config);
  rope.rotary_dim = rotary_dim(config, object ? &*object : nullptr, traits, head_dim);
  rope.interleaved = is_mla(traits.family);
  if (traits.family == Family::kDeepseekV3) rope.interleaved = config.maybe_boolean("rope_interleave").value_or(true);
  rope.theta = positive_number(config, "rope_theta", traits.rope_theta, 1e15);
  if (object) rope.theta = positive_number(*object, "rope_theta", rope.theta, 1e15);
  if (rope.theta <= 1)
    throw invalid_input("config.json: expected 'rope_theta' above 1, found {}; correct it", rope.theta);

  if (object) {
    read_scaling(config, *object, traits, max_position, rope);
  } else if (traits.family == Family::kGptOss) {
    if (config.raw().contains("rope_scaling") && !config.raw().contains("rope_parameters"))
      throw unsupported(
          "config.json: expected gpt_oss to spell out 'rope_scaling', found it empty, which implementations read "
          "differently; write the rope_type (yarn or default) and its values");
    rope.scaling = RopeScaling::kYarn;  // the configuration class's default
    rope.factor = 32.0;
    rope.original_max_position = 4096;
    rope.yarn_truncate = false;
    rope.cos_sin_scale = yarn_mscale(rope.factor, 1.0);
  }
  if (is_mla(traits.family) && object && rope.scaling != RopeScaling::kNone) {
    // DeepSeek-V2 and V3: the logits, too, are scaled by the temperature, once for q and once for k.
    const double all_dim = object->maybe_number("mscale_all_dim").value_or(0.0);
    if (all_dim != 0) reading.softmax_factor = std::pow(yarn_mscale(rope.factor, all_dim), 2);
  }
  return reading;
}

}  // namespace cadre
