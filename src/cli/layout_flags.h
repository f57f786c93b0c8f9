// The flags that spread a model over ranks, in the spelling of SGLang and of vLLM, and the text of --explain.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/model_config.h"
#include "parallel/options.h"

namespace cadre::cli {

struct LayoutFlags {
  ParallelOptions options;
  bool explain = false;  // print the layout and do nothing else
  bool explain_as_json = false;
};

void add_layout_flags(CLI::App& command, LayoutFlags& flags);

// The arguments after the program's name, with vLLM's -tp, -dp, -pcp and -ep (also as -tp=4) spelled out: the parser knows
// short options of one letter only.
std::vector<std::string> spell_out_layout_flags(int argc, const char* const* argv);

// The layout to run. Notes go to standard error (one of several ranks says them). Throws Error for what is not legal, or is and cannot run yet.
ResolvedLayout layout_to_run(const LayoutFlags& flags, const ModelConfig& config, DType kv_dtype, bool prints_notes = true);

// World, notes, the plan of each kind of layer, and what each rank has. Several lines.
std::string explain_text(const ModelConfig& config, const ResolvedLayout& resolved, DType kv_dtype, DType activation_dtype);

json::object explain_json(const ModelConfig& config, const ResolvedLayout& resolved, DType kv_dtype, DType activation_dtype);

// Ids as ranges: "0-15, 32", "1-253 by 3", "none".
std::string ids_text(const std::vector<int32_t>& ids);

}  // namespace cadre::cli
