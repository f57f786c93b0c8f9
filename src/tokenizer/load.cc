#include <fstream>

#include "base/error.h"
#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/json_kind.h"
#include "tokenizer/tokenizer.h"

namespace cadre {
namespace {

constexpr uint64_t kMaxTemplateBytes = 16 << 20;

std::unique_ptr<Tokenizer> make(const json::value& tokenizer, const json::value* config, std::string chat_template) {
  TokenizerConfig read;
  if (config) read = read_tokenizer_config(json_object(*config, "tokenizer_config.json"));
  if (!chat_template.empty()) read.chat_template = std::move(chat_template);
  return std::make_unique<HfTokenizer>(json_object(tokenizer, "tokenizer.json"), std::move(read));
}

std::string read_text(const std::filesystem::path& path) {
  const uint64_t bytes = std::filesystem::file_size(path);
  if (bytes > kMaxTemplateBytes)
    throw invalid_input("{}: expected a template of at most {} bytes, found {}; this is not the file it should be",
                        path.string(), kMaxTemplateBytes, bytes);
  std::string text(bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!in)
    throw Error(ErrorKind::kNotFound,
                fmt::format("expected to read {} bytes of {}, found fewer; check the file", bytes, path.string()));
  return text;
}

// Templates in files of their own, the newer form first.
std::string chat_template_file(const std::filesystem::path& model_dir) {
  const auto jinja = model_dir / "chat_template.jinja", in_json = model_dir / "chat_template.json";
  if (std::filesystem::is_regular_file(jinja)) return read_text(jinja);
  if (!std::filesystem::is_regular_file(in_json)) return {};
  const json::value holder = parse_json_file(in_json, kMaxTemplateBytes);
  return read_chat_template(json_object(holder, "chat_template.json"));
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_dir) {
  const auto path = model_dir / "tokenizer.json", config_path = model_dir / "tokenizer_config.json";
  if (!std::filesystem::is_regular_file(path))
    throw Error(ErrorKind::kNotFound,
                fmt::format("expected a tokenizer.json in {}, found none; convert the tokenizer to that form",
                            model_dir.string()));
  const json::value tokenizer = parse_json_file(path);
  std::optional<json::value> config;
  if (std::filesystem::is_regular_file(config_path)) config = parse_json_file(config_path);
  return make(tokenizer, config ? &*config : nullptr, chat_template_file(model_dir));
}

std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view tokenizer_json, std::string_view config_json,
                                               std::string chat_template) {
  const json::value tokenizer = parse_json(tokenizer_json, "tokenizer.json");
  std::optional<json::value> config;
  if (!config_json.empty()) config = parse_json(config_json, "tokenizer_config.json");
  return make(tokenizer, config ? &*config : nullptr, std::move(chat_template));
}

}  // namespace cadre
