#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "models/quantization.h"
#include "verify/perplexity.h"

namespace cadre::cli {
namespace {

struct PerplexityFlags {
  EngineFlags engine;
  std::vector<std::string> files;
  std::string against = "none";
  int64_t context = 512;
  bool as_json = false;
};

std::vector<int32_t> tokens_of(const PerplexityFlags& flags, const Tokenizer& tokenizer) {
  std::string text;
  for (const std::string& name : flags.files) {
    std::ifstream file(name, std::ios::binary);
    std::stringstream content;
    content << file.rdbuf();
    if (!file) throw Error(ErrorKind::kNotFound, fmt::format("--file: expected a file to read, found none at {}; check the path", name));
    text += content.str();
  }
  return tokenizer.encode(text, false);
}

int perplexity(const PerplexityFlags& flags) {
  const ModelConfig config = load_model_config(flags.engine.model);
  const auto tokenizer = open_tokenizer(flags.engine, config);
  const std::vector<int32_t> tokens = tokens_of(flags, *tokenizer);
  const ResolvedLayout resolved = layout_to_run(flags.engine.layout, config, DType::kF32);
  const auto load = [&](const DecoderOptions& decoder) {
    ModelRunnerOptions options{.config = config, .open_weights = [&] { return open_weights(flags.engine); }, .decoder = decoder, .layout = resolved.layout, .num_blocks = flags.context / 16 + 2};
    return std::make_unique<ModelRunner>(std::move(options));
  };
  DecoderOptions decoder = decoder_options(flags.engine, resolved);
  const auto model = load(decoder);
  std::unique_ptr<ModelRunner> against;
  if (flags.against != "none") {
    decoder.quantization = flags.against == "stored" ? std::nullopt : parse_quantization(flags.against);
    against = load(decoder);
  }
  const Progress progress = terminal_progress();
  const PerplexityReport report =
      measure_perplexity(*model, against.get(), tokens, flags.context, [&](int64_t done, int64_t total) { if (progress) progress("predicting", done, total); });
  if (flags.as_json) std::printf("%s\n", json::serialize(report_json(report)).c_str());
  else std::fputs(report_text(report).c_str(), stdout);
  return kExitOk;
}

}  // namespace

void add_perplexity(CLI::App& app, Run* run) {
  auto f = std::make_shared<PerplexityFlags>();
  CLI::App* command = app.add_subcommand("perplexity", "How well a model predicts a text, and what quantisation costs");
  add_engine_flags(*command, f->engine);
  command->add_option("--file", f->files, "Text to predict; several are one text")->required();
  command->add_option("--context", f->context, "Tokens of a window; each begins anew")->capture_default_str();
  command->add_option("--against", f->against, "Compare with the same weights as stored, or converted as --quantization does: none, stored, float32, bfloat16, int8 or int4")
      ->check(CLI::IsMember({"none", "stored", "float32", "bfloat16", "int8", "int4"}))->capture_default_str();
  command->add_flag("--json", f->as_json, "Print JSON");
  command->callback([f, run] { *run = [f] { return perplexity(*f); }; });
}

}  // namespace cadre::cli
