#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <cstdio>
#include <ctime>
#include <memory>
#include <random>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "verify/verify_model.h"
#include "verify/verify_text.h"

namespace cadre::cli {
namespace {

struct VerifyFlags {
  EngineFlags engine;
  std::string reference, tokenizer, templates, vectors, now = "2026-01-02";
  bool as_json = false;
};

int64_t parse_date(const std::string& text) {
  std::tm date{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%d", &date);
  if (!end || *end != '\0') throw invalid_input("--now: expected a date such as 2026-01-02, found {}; correct it", cadre::quoted(text));
  return ::timegm(&date);
}

// Standard output gets the report; the exit code its verdict.
template <typename Report>
int finish(const Report& report, json::object head, bool as_json) {
  if (as_json) {
    for (auto& [key, value] : report_json(report)) head.emplace(key, std::move(value));
    std::printf("%s\n", json::serialize(head).c_str());
  } else {
    std::fputs(report_text(report).c_str(), stdout);
  }
  return report.passed() ? kExitOk : kExitFailed;
}

int verify_reference(VerifyFlags flags) {
  flags.engine.model = flags.reference;
  if (flags.engine.layout.explain) return explain_layout(flags.engine);
  const ReferenceSet reference(flags.reference);
  const Progress progress = terminal_progress();
  ModelConfig config = load_model_config(flags.reference);
  const ResolvedLayout resolved = layout_to_run(flags.engine.layout, config, decoder_options(flags.engine, {}).kv_dtype);
  const DecoderOptions decoder = decoder_options(flags.engine, resolved);
  const VerifyBounds bounds = decoder.activation_dtype == DType::kF32 ? VerifyBounds{} : rounded_activation_bounds();
  const uint64_t seed = flags.engine.seed >= 0 ? static_cast<uint64_t>(flags.engine.seed) : std::random_device{}();
  ModelRunner runner({.config = std::move(config), .open_weights = [&] { return open_weights(flags.engine); }, .decoder = decoder, .layout = resolved.layout,
                      .num_blocks = verify_blocks(reference), .seed = seed});
  const ModelReport report = verify_model(runner, reference, bounds, seed, [&](int64_t done, int64_t total) { if (progress) progress("comparing prompts", done, total); });
  return finish(report, {{"reference", flags.reference}, {"seed", seed}}, flags.as_json);
}

int verify(const VerifyFlags& flags) {
  if (!flags.reference.empty()) return verify_reference(flags);
  if (flags.engine.layout.explain) throw invalid_input("--explain: expected --reference, a model whose layout it can tell, found none; give one or leave it out");
  if (flags.vectors.empty()) throw invalid_input("expected --vectors FILE.jsonl beside --tokenizer or --templates, found none; give one");
  if (!flags.tokenizer.empty())
    return finish(verify_tokenizer(flags.tokenizer, flags.vectors), {{"tokenizer", flags.tokenizer}, {"vectors", flags.vectors}}, flags.as_json);
  return finish(verify_templates(flags.templates, flags.vectors, parse_date(flags.now)), {{"templates", flags.templates}, {"vectors", flags.vectors}}, flags.as_json);
}

}  // namespace

void add_verify(CLI::App& app, Run* run) {
  CLI::App* command = app.add_subcommand("verify", "Hold a checkpoint, a tokenizer or chat templates against another implementation's answers");
  auto f = std::make_shared<VerifyFlags>();
  auto* subject = command->add_option_group("subject", "What is verified");
  subject->add_option("--reference", f->reference, "Checkpoint folder with reference.safetensors: logits, router choices and greedy tokens of each prompt (form: tests/reference/README.md)");
  subject->add_option("--tokenizer", f->tokenizer, "Folder with tokenizer.json; --vectors has lines {\"text\", \"ids\", \"decoded\" where it is another text}");
  subject->add_option("--templates", f->templates, "Folder with chat templates; --vectors has lines {\"template\", \"messages\" and other variables, \"rendered\" or \"error\"}");
  subject->require_option(1);
  command->add_option("--vectors", f->vectors, "JSON lines, for --tokenizer and --templates");
  command->add_option("--now", f->now, "The date templates see")->capture_default_str();
  command->add_flag("--json", f->as_json, "The report as JSON");
  add_run_flags(*command, f->engine);
  command->footer("Exit codes: 0 within the bounds; 1 not; 2 a flag or file is wrong.");
  command->callback([run, f] { *run = [f] { return verify(*f); }; });
}

}  // namespace cadre::cli
