// Chat templates: an interpreter of the Jinja subset that published templates use, with limits on steps and output.
// Follows the behaviour of Jinja 2 with trim_blocks and lstrip_blocks on, as Hugging Face transformers sets it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"

namespace cadre {

struct ChatTemplateLimits {
  uint64_t max_steps = 2'000'000;           // evaluated nodes; past it the template is said not to end
  uint64_t max_output_bytes = 16u << 20;
  int max_depth = 200;                      // nesting of expressions, statements and macro calls
};

class ChatTemplate {
 public:
  // Parses the template. Throws Error with line number and cause when it is not one.
  explicit ChatTemplate(std::string_view source, ChatTemplateLimits limits = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Renders with the given variables (messages, add_generation_prompt, tools, bos_token, eos_token, and any
  // chat_template_kwargs). now_unix_s is the time strftime_now formats (UTC). Throws Error (kInvalidInput): what the
  // template raised through raise_exception, an undefined operation with its line, or a limit.
  std::string render(const json::object& variables, int64_t now_unix_s) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre
