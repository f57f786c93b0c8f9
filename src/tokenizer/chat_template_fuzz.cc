// Any bytes as a template, over fixed variables and tight limits: it renders or refuses with an Error.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "tokenizer/chat_template.h"

namespace {

const cadre::json::object& variables() {
  static const cadre::json::value kVariables = cadre::json::parse(R"({
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße, 日本 😀"},
                 {"role": "assistant", "content": null, "tool_calls": [{"id": "c0", "type": "function",
                  "function": {"name": "f", "arguments": {"a": 1, "b": [1.5, true, null, {"c": "<d>"}]}}}]},
                 {"role": "tool", "content": [{"type": "text", "text": "  x\n\ny "}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "n": 3, "f": 2.5, "s": "a b,c", "l": [3, 1, 2], "d": {"k": "v"}, "e": []})");
  return kVariables.get_object();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The first byte chooses whether templates may change values.
  if (size == 0) return 0;
  const cadre::ChatTemplateLimits limits{
      .max_steps = 20'000, .max_output_bytes = 64 << 10, .max_memory_bytes = 4 << 20, .max_depth = 100, .allow_mutation = (data[0] & 1) != 0};
  try {
    const cadre::ChatTemplate chat_template(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1), limits);
    chat_template.render(variables(), 1767312000);
  } catch (const cadre::Error&) {
  }
  return 0;
}
