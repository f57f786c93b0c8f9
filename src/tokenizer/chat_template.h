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
  // Evaluated nodes, visited items, and one for each 256 bytes copied; past it the template is said not to end.
  uint64_t max_steps = 20'000'000;
  uint64_t max_output_bytes = 16u << 20;
  size_t max_memory_bytes = 256u << 20;  // of all values that live at one time
  int max_depth = 1000;                  // nesting of expressions, statements, macro calls and printed values
  // Lets templates call list.append, dict.update and their like on their own copy of the variables. The sandbox of
  // transformers refuses these, and so does the default.
  bool allow_mutation = false;
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
