#include "server/api_error.h"

#include "server/json_text.h"

namespace cadre {

ApiError api_error(const Error& error) {
  ApiError out;
  out.message = error.what();
  out.param = error.param();
  const auto set = [&](int status, const char* type, const char* code) {
    out.status = status;
    out.type = type;
    out.code = code;
  };
  switch (error.kind()) {
    case ErrorKind::kInvalidInput:
      set(400, "invalid_request_error", "invalid_value");
      break;
    case ErrorKind::kContextLength:
      set(400, "invalid_request_error", "context_length_exceeded");
      break;
    case ErrorKind::kUnsupported:
      set(400, "invalid_request_error", "unsupported_value");
      break;
    case ErrorKind::kNotFound:
      set(404, "invalid_request_error", error.param() == "model" ? "model_not_found" : "not_found");
      break;
    case ErrorKind::kOverloaded:
      set(429, "rate_limit_error", "overloaded");
      break;
    case ErrorKind::kUnavailable:
      set(503, "service_unavailable_error", "unavailable");
      break;
    case ErrorKind::kInternal:
      set(500, "server_error", "internal_error");
      break;
  }
  return out;
}

json::object error_body(const ApiError& error) {
  json::object inner;
  inner["message"] = error.message;
  inner["type"] = error.type;
  inner["param"] = error.param.empty() ? json::value(nullptr) : json::value(error.param);
  inner["code"] = error.code;
  return json::object{{"error", std::move(inner)}};
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = json_text(error_body(error));
  if (error.status == 429) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 503) response.headers.emplace_back("Retry-After", "5");
  return response;
}

}  // namespace cadre
