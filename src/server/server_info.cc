#include "server/server_info.h"

namespace cadre {
namespace {

json::object rank_info(int rank, const RankStatus& status) {
  const EngineStats& s = status.stats;
  return {{"rank", rank},
          {"healthy", status.is_healthy},
          {"running", s.num_running},
          {"waiting", s.num_waiting},
          {"running_tokens", s.num_running_tokens},
          {"waiting_tokens", s.num_waiting_tokens},
          {"load", {{"requests", status.load.num_requests}, {"tokens", status.load.num_tokens}}},
          {"free_kv_blocks", s.num_free_blocks},
          {"total_kv_blocks", s.num_blocks},
          {"steps", s.num_steps},
          {"prompt_tokens", s.num_prompt_tokens},
          {"generated_tokens", s.num_generated_tokens},
          {"preemptions", s.num_preemptions},
          {"requests_assigned", status.num_assigned}};
}

json::object limits(const ServedModel& model, const Controller& controller) {
  const EngineOptions& engine = controller.engine(0).options();
  const ControllerOptions& options = controller.options();
  return {{"max_model_len", model.max_model_len},
          {"max_num_seqs", engine.max_num_seqs},
          {"max_num_batched_tokens", engine.max_num_batched_tokens},
          {"max_prefill_tokens_per_step", engine.max_prefill_tokens_per_step},
          {"max_queued_requests", options.max_queued_requests},
          {"max_queued_tokens", options.max_queued_tokens},
          {"step_timeout_s", static_cast<double>(options.step_timeout_us) * 1e-6}};
}

}  // namespace

json::object server_info(const std::string& version, const ServedModel& model, const Controller& controller, bool is_draining) {
  json::array ranks;
  for (int rank = 0; rank < controller.num_ranks(); ++rank) ranks.push_back(rank_info(rank, controller.status(rank)));
  return {{"version", version},
          {"model", model.names[0]},
          {"status", is_draining ? "draining" : "serving"},
          {"layout", model.layout},
          {"load_balance_method", load_balance_name(controller.options().load_balance)},
          {"limits", limits(model, controller)},
          {"ranks", std::move(ranks)}};
}

}  // namespace cadre
