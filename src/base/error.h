// Error is bad input or a bad environment: what was expected, what was found, what to do, in one sentence.
// It harms only the request or command that caused it. A bug is a CADRE_CHECK instead.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace cadre {

// What kind of refusal it is; the HTTP layer maps each to one status, the command line to an exit code.
enum class ErrorKind {
  kInvalidInput,   // the request, file or flag is wrong (HTTP 400, exit 2)
  kContextLength,  // prompt plus asked tokens exceed the context (HTTP 400, code context_length_exceeded)
  kNotFound,       // no such model, file or id (HTTP 404)
  kOverloaded,     // a bounded queue is full; try later (HTTP 429)
  kUnavailable,    // starting or draining (HTTP 503)
  kUnsupported,    // understood, but not served (HTTP 400)
  kInternal,       // our own fault (HTTP 500)
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string message, std::string param = {})
      : std::runtime_error(std::move(message)), kind_(kind), param_(std::move(param)) {}
  ErrorKind kind() const { return kind_; }
  // The request field or flag at fault; empty when none is.
  const std::string& param() const { return param_; }

 private:
  ErrorKind kind_;
  std::string param_;
};

// throw invalid_input("{}: expected X, found {}; do Y", where, found)
template <typename... Args>
Error invalid_input(fmt::format_string<Args...> format, Args&&... args) {
  return Error(ErrorKind::kInvalidInput, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
Error unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return Error(ErrorKind::kUnsupported, fmt::format(format, std::forward<Args>(args)...));
}

// Quotes text of unknown origin for a message: at most max_bytes bytes, control and invalid bytes as \xNN.
std::string quoted(std::string_view text, size_t max_bytes = 80);

}  // namespace cadre
