#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/replay.h"
#include "cli/units.h"
#include "planner/known_model.h"
#include "planner/report.h"

namespace cadre::cli {
namespace {

struct PlanFlags {
  std::string model, hardware_file, weight_type = "auto", kv_type = "auto", load, html;
  std::optional<std::string> context, sla_tpot;
  std::vector<std::string> hardware;
  int64_t devices = 0, nodes = 0, batch = 0, max_batch = 256, prefill_rows = 512, redundant = 0;
  double balancedness = 1;
  bool has_nodes = false, as_json = false, lists_hardware = false;
  ReplayFlags replay;
};

Error bad_flag(std::string_view flag, std::string what) {
  return Error(ErrorKind::kInvalidInput, fmt::format("{}: {}", flag, what), std::string(flag));
}

// "8192", "8k" and "128K" (powers of 1024, as context lengths are named), "1m".
int64_t parse_tokens(std::string_view text, std::string_view flag) {
  int64_t unit = 1;
  std::string_view digits = text;
  if (!digits.empty()) {
    const char last = digits.back();
    if (last == 'k' || last == 'K') unit = 1024;
    if (last == 'm' || last == 'M') unit = 1024 * 1024;
    if (unit > 1) digits.remove_suffix(1);
  }
  int64_t number = 0;
  bool is_number = !digits.empty() && digits.size() <= 9;
  for (const char c : digits) {
    is_number &= c >= '0' && c <= '9';
    if (is_number) number = number * 10 + (c - '0');
  }
  if (!is_number || number < 1 || number * unit > int64_t{1} << 30)
    throw bad_flag(flag, fmt::format("expected tokens such as 8192 or 8k, from 1 to 2^30, found {}; correct it", cadre::quoted(text)));
  return number * unit;
}

// "50ms", "2s", "800us", "50" (ms), in microseconds.
double parse_duration_us(const std::string& text, std::string_view flag) {
  size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string unit = text.substr(end);
  const double factor = unit == "ms" || unit.empty() ? 1e3 : unit == "us" ? 1.0 : unit == "s" ? 1e6 : 0;
  if (end == 0 || factor == 0 || !(value > 0) || !(value * factor <= 1e12))
    throw bad_flag(flag, fmt::format("expected a time such as 50ms, found {}; correct it", cadre::quoted(text)));
  return value * factor;
}

// {"logical_count": [layers][experts]}, as SGLang records it; layers without experts are all zero.
std::vector<std::vector<int64_t>> read_load(const std::string& path) {
  const json::value file = parse_json_file(path);
  const JsonObject root(file.is_object() ? file.get_object()
                                         : throw invalid_input("{}: expected an object with 'logical_count', found {}; record a load first",
                                                               path, describe(file)),
                        path);
  const json::array* layers = root.maybe_array("logical_count");
  if (!layers) throw invalid_input("{}: expected 'logical_count', a list of layers, found none; record a load first", path);
  std::vector<std::vector<int64_t>> out;
  for (const json::value& layer : *layers) {
    if (!layer.is_array())
      throw invalid_input("{}: expected lists of counts in 'logical_count', found {}; record it again", path, describe(layer));
    std::vector<int64_t> rows;
    bool is_zero = true;
    for (const json::value& count : layer.get_array()) {
      if (!count.is_number() || count.to_number<double>() < 0 || count.to_number<double>() > 1e15)
        throw invalid_input("{}: expected counts from 0 in 'logical_count', found {}; record it again", path, describe(count));
      rows.push_back(static_cast<int64_t>(count.to_number<double>()));
      is_zero &= rows.back() == 0;
    }
    if (!is_zero) out.push_back(std::move(rows));
  }
  if (out.empty()) throw invalid_input("{}: expected a layer with counts above 0, found none; record it under load", path);
  return out;
}

double kv_value_bytes(const std::string& name, bool is_cpu) {
  if (name == "auto") return is_cpu ? 4 : 2;
  if (name == "float32") return 4;
  if (name == "bf16" || name == "bfloat16") return 2;
  if (name == "fp8" || name == "fp8_e4m3" || name == "fp8_e5m2") return 1;
  throw bad_flag("--kv-dtype", fmt::format("expected auto, float32, bf16 or fp8, found {}; name one of these", cadre::quoted(name)));
}

planner::PlanRequest request_of(const PlanFlags& f) {
  planner::HardwareTable table = planner::HardwareTable::built_in();
  if (!f.hardware_file.empty()) table.add_file(f.hardware_file);
  if (f.hardware.empty())
    throw bad_flag("--hardware", "expected a device such as h100-80g x16, found none; cadre plan --list-hardware names those it knows");
  const planner::HardwareRequest asked = planner::parse_hardware(fmt::format("{}", fmt::join(f.hardware, " ")));
  planner::PlanRequest r;
  r.hardware = table.find(asked.name);
  if (asked.count > 0 && f.devices > 0 && asked.count != f.devices)
    throw bad_flag("--gpus", fmt::format("expected the number of --hardware ({}), found {}; give it once", asked.count, f.devices));
  r.devices = static_cast<int>(std::max<int64_t>({asked.count, f.devices, 1}));
  r.nodes = static_cast<int>(f.nodes);
  if (f.nodes > r.devices)
    throw bad_flag("--nodes", fmt::format("expected at most as many nodes as devices ({}), found {}; lower it", r.devices, f.nodes));
  if (f.nodes > 0 && r.devices % f.nodes != 0)
    throw bad_flag("--nodes",
                   fmt::format("expected a divisor of the {} devices, found {}; every node has equally many", r.devices, f.nodes));
  r.weight_type = planner::parse_weight_type(f.weight_type);
  r.kv_type = f.kv_type;
  r.kv_value_bytes = kv_value_bytes(f.kv_type, r.hardware.is_cpu);
  if (f.context) r.context = parse_tokens(*f.context, "--context");
  r.batch = f.batch;
  r.max_batch_per_rank = f.max_batch;
  if (f.sla_tpot) r.max_tpot_us = parse_duration_us(*f.sla_tpot, "--sla-tpot");
  r.prefill_rows = f.prefill_rows;
  r.redundant_experts = f.redundant;
  r.balancedness = f.balancedness;
  if (!(r.balancedness > 0 && r.balancedness <= 1))
    throw bad_flag("--balancedness", fmt::format("expected above 0 and at most 1, found {}; correct it", f.balancedness));
  if (!f.load.empty()) r.load = read_load(f.load);
  return r;
}

int list_hardware(const PlanFlags& f) {
  planner::HardwareTable table = planner::HardwareTable::built_in();
  if (!f.hardware_file.empty()) table.add_file(f.hardware_file);
  for (const planner::HardwareSpec& h : table.all())
    std::printf("%-16s %s: %s, %s/s, %d a domain\n", h.name.c_str(), h.what.c_str(), planner::bytes_si(h.memory_bytes).c_str(),
                planner::bytes_si(h.memory_bytes_per_s).c_str(), h.domain_size);
  return kExitOk;
}

int plan(const PlanFlags& f) {
  if (f.lists_hardware) return list_hardware(f);
  if (!f.replay.cost.empty() && f.replay.trace.empty()) throw bad_flag("--replay-cost", "expected a trace to replay (--replay), found none; name one");
  if (!f.replay.cost.empty()) return run_measured_replay(f.replay, f.as_json);
  if (f.model.empty()) throw bad_flag("--model", "expected a model folder or a config.json, found none; name one");
  const planner::PlanRequest request = request_of(f);
  const planner::KnownModel known = planner::read_known_model(f.model);
  if (!known.config) {
    std::fputs((f.as_json ? json::serialize(planner::known_json(known)) + "\n" : planner::known_text(known, request)).c_str(), stdout);
    return kExitFailed;
  }
  for (const std::string& note : known.notes) std::fprintf(stderr, "cadre: %s\n", note.c_str());
  planner::PlanRequest r = request;
  if (r.weight_type == planner::WeightType::kCheckpoint && known.weight_type) r.weight_type = *known.weight_type;
  if (r.context > known.config->max_position && f.context)
    throw bad_flag("--context", fmt::format("expected at most the model's context of {} tokens, found {}; lower it",
                                            known.config->max_position, r.context));
  r.context = std::min(r.context, known.config->max_position);
  if (r.redundant_experts > 0 && known.config->moe.router.num_experts == 0)
    throw bad_flag("--redundant-experts", "expected a model with experts, found none; leave it out");
  const planner::Plan made = planner::make_plan(f.model, planner::PlannedModel(*known.config, r.weight_type), r);
  if (!f.replay.trace.empty())
    return run_replay(f.replay, planner::PlannedModel(*known.config, r.weight_type), r, made.search.ranked, f.context ? r.context : 0, f.as_json);
  if (!f.html.empty()) {
    std::ofstream out(f.html, std::ios::binary);
    out << planner::plan_html(made);
    if (!out.flush())
      throw bad_flag("--html", fmt::format("expected a file that can be written, found {}; choose another path", cadre::quoted(f.html)));
  }
  std::fputs((f.as_json ? json::serialize(planner::plan_json(made)) + "\n" : planner::plan_text(made)).c_str(), stdout);
  return made.search.ranked.empty() ? kExitFailed : kExitOk;
}

}  // namespace

void redirect_plan_check(std::vector<std::string>* arguments) {
  if (arguments->empty() || arguments->front() != "plan") return;
  const auto check = std::find(arguments->begin(), arguments->end(), "--check");
  if (check == arguments->end()) return;
  arguments->erase(check);
  arguments->front() = "serve";
  if (arguments->size() > 1 && (*arguments)[1] == "serve") arguments->erase(arguments->begin() + 1);  // a whole command line
  const auto json = std::find(arguments->begin(), arguments->end(), "--json");
  if (json == arguments->end()) arguments->push_back("--check");
  else *json = "--check-json";
}

void add_plan_command(CLI::App& app, Run* run) {
  CLI::App* command =
      app.add_subcommand("plan", "Say before a launch whether a model fits some devices, how best to lay it out, and what bounds a step");
  auto f = std::make_shared<PlanFlags>();
  command->add_option("--model", f->model, "Model folder or a config.json; no weights are read");
  command->add_option("--hardware", f->hardware, "Device and how many: h100-80g x16, or h100-80g:16")->expected(1, 2);
  command->add_option("--hardware-file", f->hardware_file, "More devices, in the form of the built-in table (docs/planner.md)");
  command->add_flag("--list-hardware", f->lists_hardware, "Name the devices that are known, and exit");
  command->add_option("--gpus,--devices", f->devices, "How many, if --hardware does not say")->check(CLI::Range(int64_t{1}, int64_t{4096}));
  command->add_option("--nodes", f->nodes, "Nodes they are in; as few as the fast link allows unless told")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  command->add_option("--dtype", f->weight_type, "Weights as auto (the checkpoint's), bf16, fp8, mxfp4, nvfp4, int8 or int4")
      ->capture_default_str();
  command->add_option("--kv-dtype", f->kv_type, "KV cache as auto (bf16; float32 on CPUs), float32, bf16 or fp8")->capture_default_str();
  command->add_option("--context", f->context, "Tokens of a sequence, prompt and answer together: 8192 or 8k; 8k unless told");
  command->add_option("--batch", f->batch, "Sequences that decode at once, over all devices; as many as fit unless told")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command->add_option("--max-batch", f->max_batch, "At most so many on one data-parallel rank")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--sla-tpot", f->sla_tpot, "Longest time of a token, such as 50ms");
  command->add_option("--prefill-rows,--max-num-batched-tokens", f->prefill_rows, "Rows of a step on a data-parallel rank")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command
      ->add_option("--redundant-experts,--ep-num-redundant-experts,--num-redundant-experts", f->redundant,
                   "Slots for second replicas of experts, over all ranks")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  command
      ->add_option("--balancedness", f->balancedness,
                   "Mean over maximum of expert rows a rank: what the fullest rank makes the others wait")
      ->capture_default_str();
  command->add_option("--load", f->load, "A recorded load ({\"logical_count\": [layers][experts]}) to take it from");
  add_replay_flags(*command, f->replay);
  command->add_flag("--json", f->as_json, "As JSON");
  command->add_option("--html", f->html, "Write a report with plots to this file, too");
  command->footer(
      "cadre plan --check MODEL [flags of serve]: what serve checks at start, with its budget of memory; loads nothing.\n"
      "Exit codes: 0 a layout fits; 1 none does, or the model's architecture is not served; 2 a flag or file is wrong.");
  command->callback([run, f] { *run = [f] { return plan(*f); }; });
}

}  // namespace cadre::cli
