// Tokenizers and chat templates held against vectors that another implementation made: JSON lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"

namespace cadre {

struct VectorFailure {
  int64_t line = 0;      // of the file, from 1
  std::string what;      // "encode", "decode", "stream", "encode with special tokens", or a template's name and case
  std::string expected;  // shortened
  std::string found;
};

struct VectorReport {
  int64_t num_equal = 0;
  int64_t num_different = 0;
  int64_t num_skipped = 0;             // templates that are not there
  std::vector<VectorFailure> failures;  // the first twenty
  std::vector<std::string> missing;     // names of those templates
  bool passed() const { return num_equal > 0 && num_different == 0; }
};

// Lines {"text", "ids", and where decoding gives another text "decoded", and where special tokens are added "ids_special"
// (not compared for texts that begin with the begin token: encode() never doubles it)}.
// Each line is encoded, decoded, and decoded as a stream. dir holds tokenizer.json. Throws Error when a file cannot be
// read or a line is not in this form.
VectorReport verify_tokenizer(const std::filesystem::path& dir, const std::filesystem::path& vectors);

// Lines {"template", "case", the template's variables ("messages", "tools", "add_generation_prompt", "bos_token", ...),
// and "rendered" or, where it must refuse, "error"}. "template" is the path of a Jinja file in dir, or
// "tokenizer_config:NAME" for the one in dir/NAME/tokenizer_config.json; both are looked for beside dir too. Templates
// that are not there are skipped and named. now_unix_s: the time templates see.
VectorReport verify_templates(const std::filesystem::path& dir, const std::filesystem::path& vectors, int64_t now_unix_s);

std::string report_text(const VectorReport& report);
json::object report_json(const VectorReport& report);

}  // namespace cadre
