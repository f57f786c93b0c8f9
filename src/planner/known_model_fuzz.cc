#include "base/error.h"
#include "planner/known_model.h"
#include "planner/report.h"

// Any bytes as a config.json, then a plan of what they say: a sentence or an answer, never a crash or a negative figure.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cadre::planner;
  try {
    const KnownModel known = parse_known_model(std::string(reinterpret_cast<const char*>(data), size), "config.json");
    PlanRequest request;
    request.hardware = HardwareTable::built_in().find("h100");
    request.devices = 4;
    if (!known.config) {
      known_text(known, request);
      return 0;
    }
    // Long lists of tensors say nothing new.
    if (known.config->num_layers * (1 + known.config->moe.router.num_experts) > 2000) return 0;
    const Plan plan = make_plan("model", PlannedModel(*known.config, known.weight_type.value_or(WeightType::kCheckpoint)), request);
    for (const char* bad : {"nan", "inf ", " -1", "-9223"})
      if (plan_text(plan).find(bad) != std::string::npos) __builtin_trap();
  } catch (const cadre::Error&) {
  }
  return 0;
}
