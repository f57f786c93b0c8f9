// The fields that chat and completion requests share. Internal to api_request.
#pragma once

#include "server/api_request.h"

namespace cadre {

// The body as an object named "request"; throws when it is not one.
JsonObject request_object(const json::value& body);

// Checks 'model' against the served names and returns it. When it is not required and absent: the first name.
std::string read_model_name(const JsonObject& request, const ServedModel& model, bool is_required);

// Refuses known fields that are not served, unless their value asks for nothing.
void refuse_unserved_fields(const JsonObject& request, ApiKind kind);

// model, n, stream, stream_options and all sampling fields but max_tokens and logprobs.
void read_common_fields(const JsonObject& request, const ServedModel& model, ApiRequest* out);

// A list of token ids, each in [0, vocab_size); `where` names it in messages, param is the field.
std::vector<int32_t> read_token_ids(const json::array& array, std::string_view where, std::string_view param,
                                    int64_t vocab_size);

// Throws Error (kInvalidInput) about one field.
[[noreturn]] void refuse_field(std::string_view param, std::string message);
[[noreturn]] void refuse_unsupported(std::string_view param, std::string message);

}  // namespace cadre
