// Refusals in OpenAI's shape: one status, type and code per condition, wherever it is detected.
#pragma once

#include <string>

#include "base/error.h"
#include "base/json.h"
#include "server/http_types.h"

namespace cadre {

struct ApiError {
  int status = 500;
  std::string type, code;
  std::string param;  // empty: null
  std::string message;
};

ApiError api_error(const Error& error);

// {"error": {"message", "type", "param", "code"}}
json::object error_body(const ApiError& error);

// The whole response; 429 and 503 carry Retry-After.
HttpResponse error_response(const ApiError& error);
inline HttpResponse error_response(const Error& error) { return error_response(api_error(error)); }

}  // namespace cadre
