// Chat messages to a prompt: checked, rendered by the model's template, tokenised without adding special tokens (the
// template writes the begin token itself: exactly one).
#pragma once

#include "server/api_request.h"

namespace cadre {

// Reads messages, chat_template_kwargs, add_generation_prompt, continue_final_message and reasoning_effort of a
// request.
ApiPrompt read_chat_prompt(const JsonObject& request, const ServedModel& model);

}  // namespace cadre
